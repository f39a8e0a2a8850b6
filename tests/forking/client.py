"""The client that stands for a forked process (see the package). It runs without site-packages, so that it starts in 20 ms.

A request is a JSON list (arguments, environment, folder, facts, limits), preceded by its length in 8 bytes and accompanied by the
file descriptors of the three standard streams. The first reply, in 8 bytes, is the fork's process id, or 0 if the server refuses.
The second reply, sent when the fork ends, is its status as os.waitpid returns it. Integers are little-endian.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import resource
import signal
import socket
import sys


def facts() -> dict[str, str]:
    """Return the properties of this process that a fork inherits from the server, and that therefore must be equal in both."""
    found = {}
    for name in ("mnt", "net", "pid", "user"):
        with contextlib.suppress(OSError):  # not every kernel has all of them
            found[name] = os.readlink(f"/proc/self/ns/{name}")
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:
        found["cgroup"] = file.read()
    ignored = [given for given in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM) if signal.getsignal(given) == signal.SIG_IGN]
    umask = os.umask(0)
    os.umask(umask)
    found |= {"ignored signals": repr(ignored), "umask": oct(umask)}
    cores, priority = sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)
    return {**found, "cores": repr(cores), "priority": str(priority), "user ids": repr((os.getresuid(), os.getresgid()))}


def limits() -> list[tuple[int, int, int]]:
    """Return the resource limits of this process, which the fork takes over: (number, soft value, hard value)."""
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return [(number, *resource.getrlimit(number)) for number in sorted(numbers)]


def ask(words: list[str]) -> socket.socket | None:
    """Connect to the server, send the request and return the connection; return None if there is no server."""
    connection = socket.socket(socket.AF_UNIX)
    request = json.dumps([words, dict(os.environ), os.getcwd(), facts(), limits()]).encode()
    files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
    try:
        connection.connect(os.path.join(os.path.dirname(sys.argv[0]), "socket"))  # the server's, beside this file
        connection.sendmsg([len(request).to_bytes(8, "little")], files)
        connection.sendall(request)
    except OSError:
        return None
    return connection


def number(connection: socket.socket) -> int | None:
    """Return the next reply, or None if the connection is closed."""
    reply = b""
    while len(reply) < 8:
        more = connection.recv(8 - len(reply))
        if not more:
            return None
        reply += more
    return int.from_bytes(reply, "little")


def forward(pid: int) -> None:
    """Forward signals to the fork."""

    def handle(given: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, given)

    for name in ("HUP", "INT", "QUIT", "ABRT", "TERM", "USR1", "USR2", "CONT", "WINCH"):
        given = getattr(signal, f"SIG{name}")
        if signal.getsignal(given) is not signal.SIG_IGN:
            signal.signal(given, handle)


def main(words: list[str]) -> None:
    """End as the fork ends, or become an ordinary interpreter."""
    plain = len(words) > 1 if words[:1] in (["-m"], ["-c"]) else bool(words) and not words[0].startswith("-")
    held = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    connection = ask(words) if plain else None
    pid = number(connection) if connection is not None else 0
    if not pid or connection is None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        os.execv(sys.executable, [sys.executable, *words])
    forward(pid)
    with open("/proc/self/comm", "w", encoding="ascii") as file:  # fork_of reads this
        file.write(f"fork-{pid}")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
    for file in (0, 1, 2):
        os.close(file)
    status = number(connection)
    if status is None:
        os.kill(os.getpid(), signal.SIGKILL)
    elif os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # SIGKILL's handler cannot be set
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status or 0))


if __name__ == "__main__":
    main(sys.argv[1:])
