#!/usr/bin/env bash
# Runs on the master: makes a key pair only for this cluster, on the node that uses it. Prints the public half.
set -euo pipefail
umask 077
mkdir -p ~/.ssh
[[ -f ~/.ssh/psnode ]] || ssh-keygen -q -t ed25519 -N '' -C psnode-nodes -f ~/.ssh/psnode </dev/null >&2
cat ~/.ssh/psnode.pub
