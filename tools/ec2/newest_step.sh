#!/usr/bin/env bash
# Runs on the master: prints the name of a run's newest checkpoint, or nothing.
#
#   newest_step.sh DIR RUN
set -euo pipefail
cd "$1"
[[ ! -f $2/checkpoints/latest ]] || cat "$2/checkpoints/latest"
