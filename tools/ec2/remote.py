"""Commands and files on the nodes, through the system's ssh: host keys pinned, the key of the user, no agent forwarded."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.ec2.cloud import progress
from tools.ec2.cluster import Cluster, Node
from tools.ec2.errors import DeadlineError, HostKeyError, NoClusterError, RemoteError
from tools.ec2.hostkeys import pin
from tools.ec2.resources import public_key
from tools.ec2.settings import Settings

_UNREACHED = 255  # what ssh itself ends with
_AT_ONCE = 32  # connections


@dataclass(frozen=True)
class Access:
    """The way to the nodes of a cluster. With `dry_run` nothing is run on a node; what would be is printed."""

    settings: Settings
    nodes: list[Node]
    known_hosts: Path
    dry_run: bool = False

    @property
    def master(self) -> Node:
        return self.choose("master")[0]

    def choose(self, name: str) -> list[Node]:
        """The nodes that `name` stands for: all, workers, a node's name, or an instance id. Raises NoClusterError."""
        groups = {"all": self.nodes, "workers": self.nodes[1:]}
        chosen = groups.get(name, [node for node in self.nodes if name in (node.name, node.id)])
        if not chosen:
            raise NoClusterError(f"there is no node {name}: choose all, workers, or {', '.join(n.name for n in self.nodes)}")
        return chosen

    def options(self, node: Node, *, batch: bool = True) -> list[str]:
        """For ssh and scp. The node must show the key that is pinned for its id, whatever its address is."""
        values = {
            "IdentityFile": str(self.settings.keyfile),
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": node.id,
            "CheckHostIP": "no",
            "UpdateHostKeys": "no",
            "ForwardAgent": "no",
            "ConnectTimeout": "15",
            "ServerAliveInterval": "15",
            "BatchMode": "yes" if batch else "no",
            "LogLevel": "ERROR",
        }
        return [word for name, value in values.items() for word in ("-o", f"{name}={value}")]

    def target(self, node: Node) -> str:
        return f"{self.settings.ssh_username}@{node.address(self.settings.connect)}"

    def line(self, node: Node, command: str, *, terminal: bool = False) -> list[str]:
        """The ssh command line that runs `command`, for the node's shell; "" is a login."""
        return [
            "ssh",
            *self.options(node, batch=not terminal),
            *(["-t"] if terminal and command else []),
            self.target(node),
            *([command] if command else []),
        ]

    def script(self, node: Node, name: str, *arguments: str, env: dict[str, str] | None = None) -> str:
        """Run the script `name` of this folder on a node with bash; returns what it printed. Raises RemoteError."""
        words = ["env", *(f"{key}={value}" for key, value in (env or {}).items()), "bash", "-s", "--", *arguments]
        if self.dry_run:
            print(f"would run {name} on {node.name}: {shlex.join(words)}")
            return ""
        text = Path(__file__).with_name(name).read_text()
        done = subprocess.run(self.line(node, shlex.join(words)), input=text, capture_output=True, text=True)
        if done.returncode != 0:
            raise failure(node, name, done.returncode, done.stderr)
        return done.stdout

    def everywhere(self, nodes: Sequence[Node], name: str, *arguments: str, env: dict[str, str] | None = None) -> list[str]:
        """The same on several nodes at once. The first error is raised when all have ended."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda node: self.script(node, name, *arguments, env=env), nodes))

    def put(self, nodes: Sequence[Node], local: Path, remote: str) -> None:
        """Copy a file or a folder to `remote` on every one of `nodes`. Raises RemoteError."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda node: self._copy(node, str(local), f"{self._scp_target(node)}:{remote}"), nodes))

    def get(self, node: Node, remote: str, local: Path) -> None:
        """Copy a file or a folder from a node. Raises RemoteError."""
        self._copy(node, f"{self._scp_target(node)}:{remote}", str(local))

    def _scp_target(self, node: Node) -> str:
        address = node.address(self.settings.connect)
        return f"{self.settings.ssh_username}@{f'[{address}]' if ':' in address else address}"

    def _copy(self, node: Node, source: str, target: str) -> None:
        if self.dry_run:
            print(f"would copy {source} to {target}")
            return
        line = ["scp", "-q", "-r", *self.options(node), "--", source, target]
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise failure(node, "scp", done.returncode, done.stderr)

    def reach(self) -> None:
        """Wait until all nodes let us in. Raises HostKeyError, RemoteError, DeadlineError."""
        if self.dry_run:
            return
        deadline = time.monotonic() + self.settings.launch_deadline
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda node: self._reach(node, deadline), self.nodes))

    def _reach(self, node: Node, deadline: float) -> None:
        while True:
            done = subprocess.run(self.line(node, "true"), stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode == 0:
                return
            if done.returncode != _UNREACHED or _is_final(done.stderr):
                raise failure(node, "ssh", done.returncode, done.stderr)
            if time.monotonic() > deadline:
                raise DeadlineError(f"{node.name} ({node.id}) does not answer: {_last(done.stderr)}: check ssh_from and connect")
            progress(f"waiting for {node.name}: {_last(done.stderr)}")
            time.sleep(3.0)


def access(cluster: Cluster, settings: Settings, *, complete: bool = False) -> Access:
    """The way to the nodes that run, or to a complete cluster, their host keys known. Raises NoClusterError, HostKeyError."""
    public_key(settings.keyfile)
    nodes = cluster.complete(settings.n_workers) if complete else cluster.running()
    if lost := [node.id for node in nodes if not node.address(settings.connect)]:
        raise NoClusterError(f"{lost[0]} has no {settings.connect} address: set connect to the other kind, or use another subnet")
    dry = cluster.cloud.dry_run
    return Access(settings, nodes, settings.state / "known_hosts" if dry else pin(cluster, settings, nodes), dry)


def failure(node: Node, what: str, code: int, stderr: str) -> Exception:
    """The typed error for a command that ended with `code`."""
    if code == _UNREACHED and ("Host key verification failed" in stderr or "REMOTE HOST IDENTIFICATION" in stderr):
        return HostKeyError(
            f"{node.name} ({node.id}) shows another host key than its console did: somebody may be in between; "
            "if the node was made anew, end it and run launch"
        )
    return RemoteError(f"{node.name}: {what} ended with code {code}: {_last(stderr)}", code if 0 < code < 255 else 1)


def _is_final(stderr: str) -> bool:
    return "Host key verification failed" in stderr or ("Permission denied" in stderr and "publickey" in stderr)


def _last(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
