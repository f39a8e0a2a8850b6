#!/usr/bin/env bash
# Runs on every node: lets in the key of the master, and on the master tells ssh the way to the others.
#
#   trust.sh PUBLIC KNOWN_HOSTS ADDRESS...   the master's public key, the lines of all nodes, their private addresses
set -euo pipefail
umask 077
public=$1 known=$2
shift 2
mkdir -p ~/.ssh
# one at a time: each writes what it has read
exec 9>~/.ssh/.psnode.lock
flock 9

# replace FILE: by standard input, with a rename: whoever is cut off here can still log in
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
