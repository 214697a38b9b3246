#!/usr/bin/env bash
# Fetch axe-core (MPL 2.0, Deque Systems), with which tests/services/test_console.py checks that the console is accessible, from npm.
# It goes into build/, with its licence, and is never part of the package.
set -euo pipefail
version=4.14.1
sha256=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
cd "$(dirname "$0")/.."
place="build/axe-core-$version"
if [ ! -f "$place/axe.min.js" ]; then
  mkdir -p build
  work="$(mktemp -d build/axe-XXXXXX)"
  (cd "$work" && npm pack --silent "axe-core@$version" >/dev/null && tar xzf "axe-core-$version.tgz" package/axe.min.js package/LICENSE)
  mkdir -p "$place"
  mv "$work/package/LICENSE" "$work/package/axe.min.js" "$place/"
  rm -r "$work"
fi
echo "$sha256  $place/axe.min.js" | sha256sum --check --quiet
