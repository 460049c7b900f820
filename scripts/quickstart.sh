#!/usr/bin/env bash
# Sets up .venv where needed and trains; arguments are those of vpo-train. Without any it runs the default
# job: mazes with conflicting objectives, a tiny transformer, Vector Policy Optimization.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/setup.sh run
exec .venv/bin/vpo-train "$@"
