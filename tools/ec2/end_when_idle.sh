#!/bin/sh
# Runs on a node as root, at its start: a timer ends the node when no process of the user has run for MINUTES. Jobs, logins,
# copies and programs of the user count; the watcher of this tool does not count.
#
#   end_when_idle.sh USER MINUTES
cat >/usr/local/sbin/psnode-idle <<'EOF'
#!/bin/sh
mark=/run/psnode-busy
if [ ! -e "$mark" ] || ps -u "$1" -o args= | grep -Evq 'watch_interruption\.py|systemd --user|^\(sd-pam\)|dbus-daemon'; then
    touch "$mark"
elif [ -n "$(find "$mark" -mmin "+$2")" ]; then
    shutdown -P now
fi
EOF
chmod 755 /usr/local/sbin/psnode-idle
cat >/etc/systemd/system/psnode-idle.service <<EOF
[Unit]
Description=The end of this node when nobody uses it
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/psnode-idle $1 $2
EOF
cat >/etc/systemd/system/psnode-idle.timer <<EOF
[Timer]
OnBootSec=60
OnUnitActiveSec=60
[Install]
WantedBy=timers.target
EOF
systemctl daemon-reload
systemctl enable --now psnode-idle.timer
