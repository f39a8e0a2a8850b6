#!/usr/bin/env bash
# Runs on the master: prints a word if the last job was asked to end, rather than having lost its nodes.
#
#   asked.sh DIR
set -euo pipefail
[[ ! -f $1/jobs/last/asked ]] || echo asked
