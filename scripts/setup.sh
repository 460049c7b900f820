#!/usr/bin/env bash
# Makes .venv ready: `bash scripts/setup.sh run` for the commands, `bash scripts/setup.sh test` for the
# tests and tools too. Needs Python 3.11 or newer and nothing else; takes seconds when nothing changed.
set -euo pipefail

for python in python3 python3.13 python3.12 python3.11 python; do
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    exec "$python" "$(dirname "$0")/bootstrap.py" "$@"
  fi
done
found=$(python3 --version 2>&1) || found="not found"
echo "setup: Python 3.11 or newer is needed on the PATH; python3: $found" >&2
exit 1
