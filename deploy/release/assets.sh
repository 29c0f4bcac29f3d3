#!/bin/sh
# Writes what the program says of itself, for the archives and packages: completions for four shells
# and the manual page, into dist-assets. The argument is the version that the page names.
set -eu
cd "$(dirname "$0")/../.."
rm -rf dist-assets
mkdir -p dist-assets/completions dist-assets/man
go build -trimpath -ldflags "-X main.version=${1:-}" -o dist-assets/troupe ./cmd/troupe
dist-assets/troupe completion bash >dist-assets/completions/troupe.bash
dist-assets/troupe completion zsh >dist-assets/completions/_troupe
dist-assets/troupe completion fish >dist-assets/completions/troupe.fish
dist-assets/troupe completion powershell >dist-assets/completions/troupe.ps1
# -n: no time of day in the file.
dist-assets/troupe man | gzip -9n >dist-assets/man/troupe.1.gz
rm dist-assets/troupe
