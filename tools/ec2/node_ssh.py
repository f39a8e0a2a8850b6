"""Commands on the nodes through the system's ssh, with pinned host keys, the user's key, and no forwarded agent."""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from psnode_ec2.cloud import progress
from psnode_ec2.cluster import Cluster, Node
from psnode_ec2.ec2_errors import UNREACHED, DeadlineError, NoClusterError, failure, last_line
from psnode_ec2.hostkeys import pin
from psnode_ec2.keys import public_key
from psnode_ec2.settings import Settings

_AT_ONCE = 32  # concurrent connections
Item = TypeVar("Item")
Result = TypeVar("Result")


class Children:
    """Child processes of one command of this tool."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[Any]] = set()
        self._interrupted = False

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Apply `work` to all items concurrently.

        The first error is raised after all calls; an interrupt ends the running processes.
        """
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            return [future.result() for future in [pool.submit(work, item) for item in items]]
        except KeyboardInterrupt:
            with self._lock:
                self._interrupted = True
                for process in self._running:
                    process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=self._interrupted)

    def run(self, line: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command `line` with `text` as its standard input, and return its code and output."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.started(line, text=True, **pipes) as process:
            out, err = process.communicate(text)
        return subprocess.CompletedProcess(line, process.returncode, out, err)

    @contextmanager
    def started(self, line: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[Any]]:
        """Start a process, and wait for its end when the context exits.

        Raises KeyboardInterrupt instead if an interrupt has ended `map`.
        """
        with self._lock:
            if self._interrupted:
                raise KeyboardInterrupt
            process = subprocess.Popen(line, **how)
            self._running.add(process)
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        finally:
            process.wait()
            with self._lock:
                self._running.discard(process)


@dataclass(frozen=True)
class Access:
    """Access to the nodes of a cluster. If `dry_run`, commands are printed instead of run."""

    settings: Settings
    nodes: list[Node]
    known_hosts: Path
    dry_run: bool = False
    children: Children = field(default_factory=Children)

    @property
    def master(self) -> Node:
        return self.choose("master")[0]

    def choose(self, name: str) -> list[Node]:
        """Return the nodes that `name` stands for: all, workers, a node's name or an instance id. Raises NoClusterError."""
        groups = {"all": self.nodes, "workers": [node for node in self.nodes if node.role != "master"]}
        chosen = groups.get(name, [node for node in self.nodes if name in (node.name, node.id)])
        if not chosen:
            raise NoClusterError(f"there is no node {name}: choose all, workers, or {', '.join(n.name for n in self.nodes)}")
        return chosen

    def options(self, node: Node, *, batch: bool = True) -> list[str]:
        """Return ssh options for `node`.

        Whatever its address, the node must show the host key that is pinned for its instance id.
        """
        values = {
            "IdentityFile": _quoted(self.settings.keyfile),
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": _quoted(self.known_hosts),
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
        """Return the ssh command line that runs `command` in the node's shell, or logs in if `command` is empty."""
        return [
            "ssh",
            *self.options(node, batch=not terminal),
            *(["-t"] if terminal and command else []),
            self.target(node),
            *([command] if command else []),
        ]

    def script(self, node: Node, name: str, *arguments: str, env: dict[str, str] | None = None) -> str:
        """Run the script `name` of this package on a node with bash, and return its output. Raises RemoteError.

        Variables and arguments are sent through standard input, because other users can read a command line, and because the
        length of its words is limited.
        """
        if self.dry_run:
            variables = "".join(f"{key}=... " for key in env or {})  # a value may be a secret
            click.echo(f"would run {name} on {node.name}: {variables}{shlex.join(['bash', '-s', '--', *arguments])}")
            return ""
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in (env or {}).items())
        text = f"{exports}set -- {shlex.join(arguments)}\n{Path(__file__).with_name(name).read_text()}"
        done = self.children.run(self.line(node, "bash -s"), text)
        if done.returncode != 0:
            raise failure(node, name, done.returncode, done.stderr)
        return done.stdout

    def everywhere(self, nodes: Sequence[Node], name: str, *arguments: str, env: dict[str, str] | None = None) -> list[str]:
        """Run a script on several nodes concurrently, and return its outputs. The first error is raised after all have ended."""
        return self.children.map(lambda node: self.script(node, name, *arguments, env=env), nodes)

    def reach(self) -> None:
        """Wait until all nodes accept ssh. Raises HostKeyError, RemoteError and DeadlineError."""
        if self.dry_run:
            for node in self.nodes:
                click.echo(f"would wait until this works: {shlex.join(self.line(node, 'true'))}")
            return
        deadline = time.monotonic() + self.settings.launch_deadline
        self.children.map(lambda node: self._reach(node, deadline), self.nodes)

    def _reach(self, node: Node, deadline: float) -> None:
        while True:
            done = self.children.run(self.line(node, "true"))
            if done.returncode == 0:
                return
            if done.returncode != UNREACHED or _is_final(done.stderr):
                raise failure(node, "ssh", done.returncode, done.stderr)
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"{node.name} ({node.id}) does not answer: {last_line(done.stderr)}: check connect, and run launch "
                    "if your own address has changed"
                )
            progress(f"waiting for {node.name}: {last_line(done.stderr)}")
            time.sleep(3.0)


def access(cluster: Cluster, settings: Settings, *, complete: bool = False) -> Access:
    """Return access to the running nodes, with their host keys pinned. If `complete`, all nodes of the cluster must be running.

    Raises NoClusterError, HostKeyError and SettingsError.
    """
    public_key(settings.keyfile)
    nodes = cluster.complete(settings.n_workers) if complete else cluster.running()
    if lost := [node.id for node in nodes if not node.address(settings.connect)]:
        raise NoClusterError(f"{lost[0]} has no {settings.connect} address: set connect to the other kind, or use another subnet")
    return Access(settings, nodes, pin(cluster, settings, nodes), cluster.cloud.dry_run)


def _quoted(path: Path) -> str:
    """Return a path, which may contain spaces, quoted for ssh's configuration."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'


def _is_final(stderr: str) -> bool:
    return "Host key verification failed" in stderr or ("Permission denied" in stderr and "publickey" in stderr)
