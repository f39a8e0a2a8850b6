#!/usr/bin/env bash
# Runs on every spot node: starts the watcher in DIR and leaves it running.
#
#   start_watch.sh DIR PYTHON note|stop   the action when EC2 recommends leaving the node
set -euo pipefail
echo "$3" >"$1/rebalance"
setsid "$2" "$1/watch_interruption.py" "$1" </dev/null >/dev/null 2>&1 &
