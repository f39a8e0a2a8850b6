#!/usr/bin/env bash
# Runs on a spot node: prints what EC2 has told it, one kind a line.
#
#   notices.sh DIR
set -euo pipefail
[[ ! -f $1/interruption.log ]] || awk '{ print $2 }' "$1/interruption.log" | sort -u
