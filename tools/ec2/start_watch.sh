#!/usr/bin/env bash
# Runs on every spot node: leaves the watcher, which stands in DIR, running.
#
#   start_watch.sh DIR PYTHON
set -euo pipefail
setsid "$2" "$1/watch_interruption.py" "$1" </dev/null >/dev/null 2>&1 &
