#!/usr/bin/env bash
# What a node needs, by hand: Python, psnode and an MPI. `psnode-ec2 setup` does the same on all nodes. See tools/ec2/pre_run.sh
# for what can be chosen.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../tools/ec2/pre_run.sh" "$@"
