#!/usr/bin/env bash
# Runs on the master: prints a word if a user asked the last job to end, and nothing if the job lost its nodes.
#
#   asked.sh DIR
set -euo pipefail
[[ ! -f $1/jobs/last/asked ]] || echo asked
