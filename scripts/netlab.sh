#!/usr/bin/env bash
# Emulated hosts on this machine: runs psnode/bench/contest/netlab.sh, which the wheel has too. The head of that file describes
# the options.
#
#   scripts/netlab.sh [--hosts N] [--rate RATE] [--counters FILE] [--each] -- COMMAND [ARG...]
set -euo pipefail
exec "$(dirname "$(readlink -f "$0")")/../psnode/bench/contest/netlab.sh" "$@"
