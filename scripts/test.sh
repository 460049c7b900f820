#!/usr/bin/env bash
# Sets up .venv where needed and runs the linter, the type checker and the quick tests. --all adds the slow
# tests, and those marked gpu or browser where this machine can run them; other arguments are pytest's. Tests
# marked vllm run in a pytest of their own: an engine changes the process that it is in.
# Every part runs; the exit code is that of the first one that failed.
set -uo pipefail
cd "$(dirname "$0")/.."

bash scripts/setup.sh test || exit
python=.venv/bin/python
$python scripts/get_smollm2.py || exit  # once
# The sandbox's tests need bubblewrap; they fail without it instead of being skipped.
if ! command -v bwrap >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q && apt-get install -y -q bubblewrap || exit
  else
    echo "test: bubblewrap is missing; install it (Debian, Ubuntu: apt-get install bubblewrap)" >&2
    exit 1
  fi
fi
# The libraries' threads would fight over the cores, and no test may need a network.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 PYRIGHT_PYTHON_IGNORE_WARNINGS=1

# Finds Chromium for the report's tests, or installs it where that needs no question.
has_browser() {
  command -v chromium || command -v chromium-browser || command -v google-chrome && return
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return
  apt-get update -q && apt-get install -y -q --no-install-recommends chromium
}

arguments=()
marks="not slow and not gpu and not browser"
for argument in "$@"; do
  if [ "$argument" = --all ]; then
    marks=""
    without() { marks+="${marks:+ and }not $1"; }
    has_browser || without browser
    $python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || without gpu
  else
    arguments+=("$argument")
  fi
done

status=0
part() {
  "$@"
  local code=$?
  [ $status -ne 0 ] || status=$code
}
part $python -m ruff check .
part $python -m ruff format --check .
part $python -m pyright
vllm_tests() {
  $python -m pytest -m "vllm${marks:+ and $marks}" "${arguments[@]}"
  local code=$?
  [ $code -ne 5 ] || code=0  # the arguments may name none of them
  return $code
}
part $python -m pytest -m "not vllm${marks:+ and $marks}" "${arguments[@]}"
if $python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("vllm") is None)'; then
  part vllm_tests
fi
exit $status
