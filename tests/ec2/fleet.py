"""Emulated EC2 instances: each has a network namespace with a host name, processes, a home directory and a real sshd.

A bridge in a further namespace, `switch`, connects the instances. The user's ssh runs in that namespace, and the metadata service
answers from it. Instances see the files of this machine, except for /run, /etc/passwd, and /srv with the home of ec2-user.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

_HOME = "/srv/ec2-user"
_BOOT = """
set -e
mount --bind "$1/srv" /srv
mount --bind "$1/passwd" /etc/passwd
mount -t tmpfs tmpfs /run
mkdir /run/sshd
echo "$2" >/proc/sys/kernel/hostname
exec /usr/sbin/sshd -D -e -f "$1/sshd_config"
"""
# runs beside the tests, and kills their processes when the tests end, in whatever way
_GUARD = """
read -r _ || true
for namespace in $(ip netns list | awk -v prefix="$1-" 'index($1, prefix) == 1 { print $1 }'); do
    for _ in $(seq 100); do
        pids=$(ip netns pids "$namespace") && [ -n "$pids" ] || break
        kill -9 $pids 2>/dev/null
        sleep 0.02
    done
    ip netns delete "$namespace"
done
"""
_METADATA = """
import http.server, pathlib, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        self.answer(200, b"token")
    def do_GET(self):
        file = pathlib.Path(sys.argv[1], self.client_address[0])
        if self.headers.get("X-aws-ec2-metadata-token") != "token":
            self.answer(401, b"")
        elif self.path != "/latest/meta-data/spot/instance-action" or not file.exists():
            self.answer(404, b"")
        else:
            self.answer(200, file.read_bytes())
    def answer(self, code, body):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("169.254.169.254", 80), Handler).serve_forever()
"""


def unavailable() -> str | None:
    """Return the reason why this machine cannot run a fleet, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in ("ip", "unshare", "nsenter", "ssh", "scp", "ssh-keygen") if shutil.which(tool) is None]:
        return f"there is no {missing[0]}"
    if not Path("/usr/sbin/sshd").exists():
        return "there is no sshd"
    probe = f"fleet-{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode != 0:
        return "this system makes no network namespaces"
    inside = ["unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c", "mount -t tmpfs tmpfs /run"]
    done = subprocess.run(["ip", "netns", "exec", probe, *inside], capture_output=True)
    subprocess.run(["ip", "netns", "delete", probe], check=True)
    return None if done.returncode == 0 else "this system lets nobody mount"


@dataclass
class Instance:
    """A running instance: its namespace, its first process and its console."""

    identity: str
    address: str
    namespace: str
    process: subprocess.Popen[bytes]
    folder: Path
    console: str

    @property
    def home(self) -> Path:
        """Return the path of the home directory as this machine sees it."""
        return self.folder / "srv" / "ec2-user"


@dataclass
class Fleet:
    """A set of emulated instances.

    New instances accept the key `public`, and their Python environment sees the packages of the Python that runs the tests.
    """

    folder: Path
    public: str
    instances: dict[str, Instance] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        self.name = f"fleet-{os.getpid()}"
        self.switch = f"{self.name}-0"
        self.guard = subprocess.Popen(["bash", "-c", _GUARD, "guard", self.name], stdin=subprocess.PIPE, start_new_session=True)
        _ip("netns", "add", self.switch)
        _ip("-n", self.switch, "link", "set", "lo", "up")
        _ip("-n", self.switch, "link", "add", "name", "switch", "type", "bridge")
        _ip("-n", self.switch, "address", "add", "172.31.255.254/16", "dev", "switch")
        _ip("-n", self.switch, "address", "add", "169.254.169.254/32", "dev", "switch")
        _ip("-n", self.switch, "link", "set", "switch", "up")
        (self.folder / "notices").mkdir()
        self.metadata = subprocess.Popen(
            ["ip", "netns", "exec", self.switch, sys.executable, "-I", "-S", "-c", _METADATA, self.folder / "notices"]
        )
        self._wrap("ssh", "scp")

    def _wrap(self, *names: str) -> None:
        """Write a wrapper of each program that runs it inside the fleet's network. The wrappers must come first on the PATH."""
        (self.folder / "bin").mkdir()
        for name in names:
            path = self.folder / "bin" / name
            path.write_text(f'#!/bin/sh\nexec nsenter --net=/run/netns/{self.switch} {shutil.which(name)} "$@"\n')
            path.chmod(0o755)

    def boot(self, identity: str, address: str) -> Instance:
        """Start an instance. Its console shows the host keys at once; its sshd listens a moment later."""
        self.made += 1
        namespace, port = f"{self.name}-{self.made}", f"port{self.made}"
        folder = self.folder / identity
        _ip("netns", "add", namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", self.switch, "link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("-n", self.switch, "link", "set", port, "master", "switch", "up")
        _ip("-n", namespace, "address", "add", f"{address}/16", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        _ip("-n", namespace, "route", "add", "169.254.169.254", "dev", "eth0")
        self._image(folder)
        key = folder / "ssh_host_ed25519_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "root@node", "-f", key], check=True)
        line = ["ip", "netns", "exec", namespace, "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
        line += ["--mount-proc", "bash", "-c", _BOOT, "boot", str(folder), "ip-" + address.replace(".", "-")]
        with (folder / "sshd.log").open("wb") as log:
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        console = (
            "[    0.000000] Linux version 6.8.0\r\n-----BEGIN SSH HOST KEY KEYS-----\r\n"
            f"{key.with_suffix('.pub').read_text().strip()}\r\n-----END SSH HOST KEY KEYS-----\r\n"
        )
        self.instances[identity] = Instance(identity, address, namespace, process, folder, console)
        return self.instances[identity]

    def _image(self, folder: Path) -> None:
        home = folder / "srv" / "ec2-user"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        (home / ".ssh" / "authorized_keys").write_text(self.public + "\n")
        (home / "tmp").mkdir()
        users = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("ec2-user:")]
        # user 0 too, so that the mounts suffice; the first name of a user id is the one displayed
        (folder / "passwd").write_text("\n".join([f"ec2-user:*:0:0::{_HOME}:/bin/bash", *users, ""]))
        venv = home / "psnode" / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        (site,) = venv.glob("lib/python*/site-packages")
        (site / "image.pth").write_text(sysconfig.get_path("purelib") + "\n")
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        (folder / "sshd_config").write_text(
            f"HostKey {folder}/ssh_host_ed25519_key\nPidFile none\nUsePAM no\nPasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\nMaxStartups 100\n"
            f"SetEnv PATH={path} TMPDIR={_HOME}/tmp PIP_NO_INDEX=1 PIP_ROOT_USER_ACTION=ignore\n"
        )

    def interrupt(self, address: str) -> None:
        """Announce to the instance at `address` that EC2 will take it back."""
        file = self.folder / "notices" / address
        file.with_suffix(".new").write_text('{"action": "terminate", "time": "2026-11-21T12:00:00Z"}')
        file.with_suffix(".new").rename(file)

    def end(self, identity: str) -> None:
        """Remove an instance and kill everything that runs on it."""
        instance = self.instances.pop(identity)
        instance.process.kill()
        instance.process.wait()
        for _ in range(200):
            running = subprocess.run(["ip", "netns", "pids", instance.namespace], capture_output=True, text=True).stdout.split()
            if not running:
                break
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            time.sleep(0.02)
        _ip("netns", "delete", instance.namespace)

    def close(self) -> None:
        self.guard.communicate()
        for process in [self.metadata, *(instance.process for instance in self.instances.values())]:
            process.wait()

    def hear(self, action: str, body: bytes) -> dict[str, str]:
        """Carry out an EC2 call that moto has answered, and return the console outputs of the instances that it started."""
        text, consoles = body.decode(), {}
        if action == "RunInstances":
            for item in re.findall(r"<instanceId>.*?</privateIpAddress>", text, re.S):
                identity = re.search(r"<instanceId>(.*?)</instanceId>", item)
                address = re.search(r"<privateIpAddress>(.*?)</privateIpAddress>", item)
                assert identity and address
                if identity[1] not in self.instances:
                    consoles[identity[1]] = self.boot(identity[1], address[1]).console
        elif action == "TerminateInstances":
            for identity in re.findall(r"<instanceId>(.*?)</instanceId>", text):
                if identity in self.instances:
                    self.end(identity)
        return consoles


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
