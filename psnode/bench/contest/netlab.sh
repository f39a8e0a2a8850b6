#!/usr/bin/env bash
# Emulated hosts on this machine: network namespaces with their own host names, joined by a bridge; every link is shaped at both
# ends. Makes the hosts, checks that the links carry the given rate, runs a command on the hosts, and removes them.
#
#   netlab.sh [--hosts N] [--rate RATE] [--counters FILE] [--each] -- COMMAND [ARG...]
#
#   --hosts N        the number of hosts [3]
#   --rate RATE[,ROUND_TRIP[,wireguard]]
#                    the rate of every link in each direction: 100mbit, 1gbit, ...; none: no limit [100mbit].
#                    ROUND_TRIP: the delay of a packet between two hosts plus that of its answer, such as 80ms.
#                    wireguard: ranks communicate in a WireGuard network of all hosts, 10.78.0.0/24
#   --counters FILE  write the byte and packet counts of the hosts' interfaces, before and after COMMAND, as JSON
#   --each           run COMMAND on every host, with the variables of torch.distributed: RANK, WORLD_SIZE, MASTER_ADDR, ...;
#                    without --each, COMMAND runs once, outside the hosts, and every mpirun in it starts one rank on each host
#
# Needs root, ip, tc and Python. The exit code is COMMAND's, 2 if hosts cannot be made here, or 1 if a link misses its rate.
# shellcheck disable=SC2016 # texts in single quotes are for other programs
set -euo pipefail

refuse() {
    echo "$0: error: $1" >&2
    exit 2
}

# sweep LAB: end all processes on the hosts of LAB, and remove the hosts and LAB's directory. Two processes may sweep
# concurrently.
sweep() {
    local host running
    for host in $(ip netns list | grep -o "^$1-[0-9]*"); do
        for _ in {1..100}; do
            mapfile -t running < <(ip netns pids "$host" 2>/dev/null)
            [[ ${#running[@]} -gt 0 ]] || break
            kill -KILL "${running[@]}" 2>/dev/null || sleep 0.05
        done
        ip netns delete "$host" 2>/dev/null || true
    done
    rm -rf -- "${TMPDIR:-/tmp}/$1".* "/run/wireguard/wg${1#netlab-}-"*.sock
}

# sweep_orphans: sweep labs whose sweeper process was ended together with the lab. A lab's maker holds a lock on the lab's switch,
# which processes in other containers see, too.
sweep_orphans() {
    local path lab
    for path in /run/netns/netlab-*-*; do
        lab=${path##*/} && lab=${lab%-*}
        [[ -e $path && ! -d /proc/${lab#netlab-} ]] || continue
        [[ ! -e /run/netns/$lab-0 ]] || flock -n "/run/netns/$lab-0" true || continue
        sweep "$lab"
    done
}

hosts=3 rate=100mbit counters='' each=''
while [[ $# -gt 0 && $1 != -- ]]; do
    case $1 in
    --hosts | --rate | --counters) [[ $# -ge 2 ]] || refuse "$1 needs a value" ;;&
    --hosts) hosts=$2 && shift 2 ;;
    --rate) rate=$2 && shift 2 ;;
    --counters) counters=$2 && shift 2 ;;
    --each) each=yes && shift ;;
    --sweep) # the sweeper of a lab: it sweeps after the lab's maker has ended, even if the maker was killed
        trap '' INT TERM HUP USR1
        cat >/dev/null
        sweep "$2"
        exit
        ;;
    *) refuse "unknown option $1: the head of this script lists them" ;;
    esac
done
[[ $# -ge 2 ]] || refuse "no command: end the options with -- COMMAND"
shift
[[ $hosts =~ ^[1-9][0-9]{0,2}$ && $hosts -ge 2 && $hosts -le 250 ]] || refuse "--hosts must be 2 to 250, not $hosts"
[[ $rate =~ ^([1-9][0-9]*[mg]bit|none)(,([1-9][0-9]{0,3})ms(,wireguard)?)?$ ]] ||
    refuse "--rate must be such as 100mbit, none, 20mbit,80ms or 20mbit,80ms,wireguard, not $rate"
link=$rate rate=${BASH_REMATCH[1]} round_trip=${BASH_REMATCH[3]} private=${BASH_REMATCH[4]}
mbit=${rate/none/0}
mbit=${mbit/gbit/000}
mbit=${mbit%mbit}
[[ $(id -u) -eq 0 ]] || refuse "network namespaces need root: run it as root"
for tool in ip tc unshare setsid flock; do
    command -v $tool >/dev/null || refuse "there is no $tool: install iproute2 and util-linux"
done
[[ -z $round_trip || -c /dev/net/tun ]] || refuse "a round trip needs /dev/net/tun: let this container have it"
[[ -z $private ]] || command -v wg >/dev/null || refuse "there is no wg: install wireguard-tools"
python=("${PSNODE_PYTHON:-python3}" -I -S)

# The names contain the process id, and all devices are inside the namespaces, so that they do not conflict with other labs or
# with devices of the machine.
lab=netlab-$$ switch=netlab-$$-0
sweep_orphans
work=$(mktemp -d -t "$lab.XXXXXX")
exec 9> >(exec setsid --wait "$BASH" "${BASH_SOURCE[0]}" --sweep "$lab")
sweeper=$!
trap 'exec 9>&-; wait "$sweeper" || true' EXIT

# shape NAMESPACE DEVICE: limit the rate at which DEVICE sends.
shape() {
    [[ $rate == none ]] || tc -n "$1" qdisc add dev "$2" root tbf rate "$rate" burst 256kb latency 400ms
}

# make I: make host I and its link to the switch.
make() {
    local host=$lab-$1
    ip netns add "$host"
    ip netns exec "$host" sh -c 'f=/proc/sys/net/ipv6/conf/default/disable_ipv6; [ ! -e $f ] || echo 1 >$f'
    # TCP's usual congestion control, whatever this machine has, or reno, which every kernel has, where cubic is missing or forbidden
    control=$(ip netns exec "$host" sh -c 'cd /proc/sys/net/ipv4
        echo cubic >tcp_congestion_control || echo reno >tcp_congestion_control
        cat tcp_congestion_control' 2>/dev/null) || true
    ip -n "$host" link set lo up
    if [[ $round_trip ]]; then
        ip -n "$switch" link set "far$1" netns "$host" name eth0
    else
        ip -n "$switch" link add name "port$1" type veth peer name eth0 netns "$host"
    fi
    ip -n "$switch" link set "port$1" master switch up
    ip -n "$host" address add "10.77.0.$1/24" dev eth0
    ip -n "$host" link set eth0 up
    shape "$host" eth0
    shape "$switch" "port$1"
}

# goodput FROM TO: print the Mbit/s that TO gets from FROM after the shapers' bursts are used up.
goodput() {
    local program=("${python[@]}" "${BASH_SOURCE[0]%/*}/link_goodput.py") sender
    local timed=$((mbit ? mbit * 125000 / 2 : 128000000)) # bytes: half a second at this rate
    local begin=$((640 * 1024 + 4 * mbit * 125 * ${round_trip:-0})) # two bursts of 256 KiB, and the bytes while TCP's window grows
    ip netns exec "$lab-$1" "${program[@]}" send "10.77.0.$2" "$timed" "$begin" 8<&- 9>&- &
    sender=$!
    ip netns exec "$lab-$2" "${program[@]}" receive "10.77.0.$2" "$timed" "$begin" 8<&- 9>&-
    wait "$sender"
}

# verify FROM TO: check that the goodput is near the rate. A miss is measured again, since other programs may use this machine.
verify() {
    local found
    for _ in 1 2 3; do
        found=$(goodput "$1" "$2")
        if awk -v found="$found" -v mbit="$mbit" 'BEGIN {exit !(!mbit || (found >= 0.85 * mbit && found <= 1.02 * mbit))}'; then
            carried+=("$found")
            return
        fi
    done
    echo "$0: error: a link of $rate carries $found Mbit/s: is the machine busy, or shaped elsewhere?" >&2
    return 1
}

# count: print the counts of every host's interface, one object a line.
count() {
    local i
    for ((i = 1; i <= hosts; i++)); do
        ip netns exec "$lab-$i" awk '$1 == "eth0:" {
            printf "{\"rx_bytes\": %s, \"rx_packets\": %s, \"tx_bytes\": %s, \"tx_packets\": %s}\n", $2, $3, $10, $11
        }' /proc/net/dev
    done
}

# report BEFORE AFTER: print both counts, the rate and the measured goodputs as JSON.
report() {
    paste -d '|' <(echo "$1") <(echo "$2") | awk -F '|' -v rate="$link" -v lab="$lab" -v carried="${carried[*]}" '
        BEGIN {gsub(" ", ", ", carried); printf "{\"rate\": \"%s\", \"goodput_mbit\": [%s], \"hosts\": [", rate, carried}
        {printf "%s\n  {\"name\": \"%s-%d\", \"before\": %s, \"after\": %s}", (NR > 1 ? "," : ""), lab, NR, $1, $2}
        END {print "\n]}"}'
}

# join I KEYS...: put host I into the private network of all hosts, whose private keys are files named 1, 2, ... in $work.
join() {
    local host=$lab-$1 device=wg${lab#netlab-}-$1 other
    ip -n "$host" link add "$device" type wireguard 2>/dev/null ||
        ip netns exec "$host" wireguard-go "$device" 8<&- 9>&- >/dev/null 2>&1 ||
        refuse "this kernel has no WireGuard: load its module, or install wireguard-go"
    ip netns exec "$host" wg set "$device" private-key "$work/$1" listen-port 51820
    for ((other = 1; other <= hosts; other++)); do
        ((other == $1)) || ip netns exec "$host" wg set "$device" peer "$(wg pubkey <"$work/$other")" \
            endpoint "10.77.0.$other:51820" allowed-ips "10.78.0.$other/32"
    done
    ip -n "$host" address add "10.78.0.$1/24" dev "$device"
    ip -n "$host" link set "$device" mtu 1420 up
}

declare -A running
# begin HOST COMMAND...: start COMMAND on HOST.
begin() {
    ip netns exec "$1" unshare --uts sh -c 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"' "$@" 8<&- 9>&- </dev/null &
    running[$!]=$1
}

# forward SIGNAL CODE: send SIGNAL to all running commands, which then end with CODE.
forward() {
    told=$2
    [[ ${#running[@]} -eq 0 ]] || kill -s "$1" "${!running[@]}" 2>/dev/null || true
}

# finish: wait until all started commands have ended. The first failure ends the other commands, and its code is returned.
finish() {
    local ended pid got code=0
    while [[ ${#running[@]} -gt 0 ]]; do
        ended='' got=0
        wait -n -p ended "${!running[@]}" 2>/dev/null || got=$?
        # no command ended, but a signal came and was forwarded; bash may miss commands that end at this moment, and their codes
        for pid in ${ended:-"${!running[@]}"}; do
            [[ ${ended:-} ]] || ! kill -0 "$pid" 2>/dev/null || continue
            unset "running[$pid]"
            [[ ${ended:-} ]] || got=$told
            if ((got && !code)); then
                code=$got
                forward TERM 143
            fi
        done
    done
    return "$code"
}

ip netns add "$switch" 2>/dev/null || refuse "this system makes no network namespaces: run it where root may"
exec 8<"/run/netns/$switch"
flock -n 8 || refuse "another process $$ has a lab of this name: try again"
ip -n "$switch" link set lo up
shape "$switch" lo 2>/dev/null || refuse "this kernel does not shape with tbf: load sch_tbf, or ask for --rate none"
ip -n "$switch" link add name switch type bridge
ip -n "$switch" address add 10.77.0.254/24 dev switch
ip -n "$switch" link set switch up
if [[ $round_trip ]]; then
    # a packet and its answer pass four links in all
    each_way=$(awk -v ms="$round_trip" 'BEGIN {print ms / 4000}')
    exec 7< <(exec ip netns exec "$switch" "${python[@]}" "${BASH_SOURCE[0]%/*}/delay_forwarder.py" "$each_way" "$hosts" 8<&- 9>&-)
    read -r -u 7 || refuse "this system makes no network devices: run it where root may"
fi
for ((i = 1; i <= hosts; i++)); do
    make $i
done
carried=()
for ((i = 1; i <= hosts; i++)); do
    verify $i $((i % hosts + 1))
done
network=10.77.0
if [[ $private ]]; then
    for ((i = 1; i <= hosts; i++)); do
        (umask 077 && wg genkey >"$work/$i")
    done
    for ((i = 1; i <= hosts; i++)); do
        join $i
    done
    network=10.78.0
fi
echo "netlab: $hosts hosts, links of $link, ${control:-unknown} congestion control, goodput ${carried[*]} Mbit/s" >&2
before=$(count)

set -m # gives each background command its own process group, in which INT is not ignored
for signal in INT TERM HUP USR1; do
    # shellcheck disable=SC2064 # the name is expanded now
    trap "forward $signal $((128 + $(kill -l $signal)))" $signal
done
if [[ $each ]]; then
    export WORLD_SIZE=$hosts LOCAL_RANK=0 MASTER_ADDR=$network.1 MASTER_PORT=29500
    for ((i = 1; i <= hosts; i++)); do
        device=eth0
        [[ -z $private ]] || device=wg$$-$i
        RANK=$((i - 1)) GLOO_SOCKET_IFNAME=$device begin "$lab-$i" "$@"
    done
else
    printf '%s slots=1\n' $(seq -f "$lab-%g" "$hosts") >"$work/hosts"
    cat >"$work/agent" <<'AGENT'
#!/bin/sh
# used in place of ssh
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "echo $host >/proc/sys/kernel/hostname && $*"
AGENT
    chmod +x "$work/agent"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_MCA_plm_ssh_agent=$work/agent PRTE_MCA_prte_default_hostfile=$work/hosts PRTE_MCA_prte_tmpdir_base=$work
    # if mpirun bound ranks to cores, as on separate hosts, all ranks would share the first core of this machine
    export PRTE_MCA_hwloc_default_binding_policy=none
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=$network.0/24
    begin "$switch" "$@"
fi
code=0
finish || code=$?
[[ -z $counters ]] || report "$before" "$(count)" >"$counters"
exit "$code"
