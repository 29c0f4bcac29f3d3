#!/bin/sh
# Before removing, not before upgrading: deb says remove, rpm says 0.
set -e
case "${1:-}" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now troupe.service || true
	fi
	;;
esac
