#!/usr/bin/env bash
# Runs on a node: sets a new time at which the node ends itself.
#
#   extend.sh MINUTES TEXT    TEXT: the text of end_after.sh
set -euo pipefail
if [[ $(id -u) -eq 0 ]]; then sh -s -- "$1" <<<"$2"; else sudo -n sh -s -- "$1" <<<"$2"; fi
