#!/usr/bin/env bash
# On the master: train on all hosts of a list, of which the first is the master. Arguments go to `psnode train`.
#
#   run_psnode.sh --network ResNet18 --dataset cifar10 --scheme atomo --train-dir runs/first
#   HOSTS   one address per line [hosts_address]
set -euo pipefail
hosts=${HOSTS:-hosts_address}
[[ -r $hosts ]] || {
    echo "run_psnode.sh: error: $hosts cannot be read: write it with psnode-ec2 get_hosts, or set HOSTS" >&2
    exit 2
}
venv=${PSNODE_VENV:-$HOME/psnode/.venv}
[[ -z $(find -L "$venv" "$venv/bin" -maxdepth 0 -perm -o+w ! -perm -o+t 2>/dev/null) ]] || {
    echo "run_psnode.sh: error: everybody may write into $venv, whose programs would be executed: chmod o-w it and its bin" >&2
    exit 2
}
PATH=$venv/bin:$PATH
# no tree of ssh connections through the workers, since only the master can log in to the other hosts
export PRTE_MCA_plm_ssh_no_tree_spawn=1
nodes=$(grep -cE '^[^#[:space:]]' "$hosts" || true)
[[ $nodes -gt 1 ]] || {
    echo "run_psnode.sh: error: $hosts names $nodes hosts: a master and at least one worker are needed" >&2
    exit 2
}
exec psnode launch -n "$((nodes - 1))" --hostfile "$hosts" -- train "$@"
