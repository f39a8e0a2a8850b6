#!/usr/bin/env bash
# Runs on every node: lets in the key of the master, and on the master tells ssh the way to the others.
#
#   trust.sh PUBLIC KNOWN_HOSTS ADDRESS...   the master's public key, the lines of all nodes, their private addresses
set -euo pipefail
umask 077
public=$1 known=$2
shift 2
mkdir -p ~/.ssh
touch ~/.ssh/authorized_keys
# a rename: whoever is cut off here can still log in
{
    grep -v ' psnode-nodes$' ~/.ssh/authorized_keys || true
    printf 'restrict %s\n' "$public"
} >~/.ssh/authorized_keys.new
mv ~/.ssh/authorized_keys.new ~/.ssh/authorized_keys

[[ -f ~/.ssh/psnode ]] || exit 0
printf '%s' "$known" >~/.ssh/psnode_known_hosts
touch ~/.ssh/config
{
    printf '# psnode: begin\nHost %s\n' "$*"
    printf '    %s\n' 'IdentityFile ~/.ssh/psnode' 'IdentitiesOnly yes' 'StrictHostKeyChecking yes' \
        'UserKnownHostsFile ~/.ssh/psnode_known_hosts' 'UpdateHostKeys no' 'BatchMode yes'
    printf 'Host *\n# psnode: end\n'
    sed '/^# psnode: begin$/,/^# psnode: end$/d' ~/.ssh/config
} >~/.ssh/config.new
mv ~/.ssh/config.new ~/.ssh/config
