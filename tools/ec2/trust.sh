#!/usr/bin/env bash
# Runs on every node: accepts the master's key, and on the master configures ssh for the other nodes.
#
#   trust.sh PUBLIC KNOWN_HOSTS ADDRESS...   the master's public key, the known_hosts lines of all nodes, their private addresses
set -euo pipefail
umask 077
public=$1 known=$2
shift 2
mkdir -p ~/.ssh
# one process at a time, since each process reads and then rewrites a file
exec 9>~/.ssh/.psnode.lock
flock 9

# replace FILE: write standard input to FILE by a rename, so that an interruption does not prevent logins
replace() {
    local new
    new=$(mktemp ~/.ssh/.psnode-XXXXXX)
    if ! cat >"$new"; then
        rm -f "$new"
        return 1
    fi
    mv "$new" "$1"
}

touch ~/.ssh/authorized_keys
kept=$(grep -v ' psnode-nodes$' ~/.ssh/authorized_keys) || [[ $? -eq 1 ]]
printf '%srestrict %s\n' "${kept:+$kept$'\n'}" "$public" | replace ~/.ssh/authorized_keys

[[ -f ~/.ssh/psnode ]] || exit 0
printf '%s' "$known" | replace ~/.ssh/psnode_known_hosts
touch ~/.ssh/config
kept=$(sed '/^# psnode: begin$/,/^# psnode: end$/d' ~/.ssh/config)
{
    printf '# psnode: begin\nHost %s\n' "$*"
    printf '    %s\n' 'IdentityFile ~/.ssh/psnode' 'IdentitiesOnly yes' 'StrictHostKeyChecking yes' \
        'UserKnownHostsFile ~/.ssh/psnode_known_hosts' 'UpdateHostKeys no' 'BatchMode yes'
    printf 'Host *\n# psnode: end\n%s' "${kept:+$kept$'\n'}"
} | replace ~/.ssh/config
