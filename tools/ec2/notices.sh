#!/usr/bin/env bash
# Runs on a spot node: prints the kinds of the notices that EC2 has given the node, one per line.
#
#   notices.sh DIR
set -euo pipefail
[[ ! -f $1/interruption.log ]] || awk '{ print $2 }' "$1/interruption.log" | sort -u
