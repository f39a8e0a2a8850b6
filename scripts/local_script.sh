#!/usr/bin/env bash
# On your machine, after launch: write the files of hosts, and set up all nodes. Arguments (--config FILE, ...) go to both
# commands.
set -euo pipefail
if command -v psnode-ec2 >/dev/null; then
    tool=(psnode-ec2)
else
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    tool=("${PSNODE_PYTHON:-python3}" -m psnode_ec2)
fi
"${tool[@]}" get_hosts "$@"
"${tool[@]}" setup "$@"
