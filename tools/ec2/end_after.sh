#!/bin/sh
# Runs on a node as root, at its start and when its time is extended: ends the node after MINUTES, even if it restarts, and warns
# logged-in users an hour before. A systemd timer survives a restart of the node. Systems without systemd get a planned shutdown,
# which does not survive it.
#
#   end_after.sh MINUTES    0: never
units=/etc/systemd/system
# unit NAME SECONDS DESCRIPTION COMMAND PERSISTENT: a timer that runs COMMAND at SECONDS since 1970
unit() {
    cat >"$units/$1.service" <<EOF
[Unit]
Description=$3
[Service]
Type=oneshot
ExecStart=/bin/sh -c '$4'
EOF
    cat >"$units/$1.timer" <<EOF
[Timer]
OnCalendar=$(date -u -d "@$2" '+%Y-%m-%d %H:%M:%S UTC')
Persistent=$5
AccuracySec=1s
[Install]
WantedBy=timers.target
EOF
}
shutdown -c 2>/dev/null
for name in psnode-end psnode-warn; do
    [ ! -e "$units/$name.timer" ] || systemctl disable --now "$name.timer"
    rm -f "$units/$name.service" "$units/$name.timer"
done
if [ "$1" -gt 0 ]; then
    shutdown -P "+$1"
    end=$(($(date +%s) + 60 * $1))
    unit psnode-end "$end" "The end of this node" "exec shutdown -P now" true
    [ "$1" -le 60 ] || unit psnode-warn $((end - 3600)) "An hour before the end of this node" \
        'echo "This node ends itself in an hour, with all that lies on it: fetch what was trained." | wall' false
fi
systemctl daemon-reload
for name in psnode-end psnode-warn; do
    [ ! -e "$units/$name.timer" ] || systemctl enable --now "$name.timer" || failed=1
done
exit "${failed:-0}"
