#!/usr/bin/env bash
# Install the browser that tests/services/test_console.py drives: Debian's package, where it is not there yet.
set -euo pipefail
command -v chromium >/dev/null && exit 0
apt-get update -q
apt-get install -yq --no-install-recommends chromium
