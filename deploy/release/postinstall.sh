#!/bin/sh
# After installing: systemd learns of the unit. Whether it runs is the administrator's choice, but an
# upgrade restarts what already runs; it drains first.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	systemctl try-restart troupe.service || true
fi
