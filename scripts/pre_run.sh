#!/usr/bin/env bash
# Manual installation of the software that a node needs: Python, psnode and an MPI. `psnode-ec2 setup` does the same on all nodes.
# See tools/ec2/pre_run.sh for the options.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../tools/ec2/pre_run.sh" "$@"
