#!/usr/bin/env bash
# Make the virtual environment in the folder given, with everything `make` needs in it.
#
# Takes the Python named by $PYTHON, else the first of python3, python3.14 ... python3.11 that is new enough.
# Safe to run again: an environment that is already there is brought up to date, a half-made one is replaced.
set -euo pipefail

venv="$1"
minimum_minor=11
newest_tested_minor=14

minor_version() { # prints the minor version of a Python 3 that runs, else 0
    "$1" -c 'import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)' 2>/dev/null || echo 0
}

find_python() {
    local candidate minor
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        minor="$(minor_version "$candidate")"
        if [ "$minor" -ge "$minimum_minor" ] && [ "$minor" -le "$newest_tested_minor" ]; then
            echo "$candidate"
            return
        fi
    done
    if [ "$(minor_version python3)" -gt "$newest_tested_minor" ]; then
        echo python3 # newer than any tested here: let it try
    fi
}

refuse() {
    echo "error: $1"
    echo "To get a Python that will do:"
    echo "  Debian, Ubuntu   sudo apt-get install python3 python3-venv   (Debian 12, Ubuntu 24.04 or newer)"
    echo "  Fedora, RHEL     sudo dnf install python3.12"
    echo "  macOS            brew install python@3.12"
    echo "  anywhere         pyenv install 3.12   (https://github.com/pyenv/pyenv)"
    echo "Then run the same command again, or name the interpreter: make PYTHON=/path/to/python3.12 ..."
    exit 1
} >&2

python="${PYTHON:-$(find_python)}"
[ -n "$python" ] || refuse "no Python 3.$minimum_minor or newer found on the PATH (python3 is $(python3 --version 2>/dev/null || echo missing))."
[ "$(minor_version "$python")" -ge "$minimum_minor" ] || refuse "PYTHON=$python is not a Python 3.$minimum_minor or newer."

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "Making $venv with $("$python" --version) ..."
    rm -rf "$venv"
    "$python" -m venv "$venv" || refuse "$python cannot make a virtual environment; on Debian and Ubuntu that takes python3-venv."
fi
echo "Installing dependencies into $venv (PySpark is large: the first time takes a few minutes) ..."
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
