#!/usr/bin/env bash
# Runs on every spot node: leaves the watcher, which stands in DIR, running.
#
#   start_watch.sh DIR PYTHON note|stop   what to do when EC2 recommends to leave the node
set -euo pipefail
echo "$3" >"$1/rebalance"
setsid "$2" "$1/watch_interruption.py" "$1" </dev/null >/dev/null 2>&1 &
