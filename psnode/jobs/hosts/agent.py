"""Program that answers questions about its host.

It reads one question per line from standard input, writes one answer per line to standard output, both as JSON objects, and
ends when its input ends. The source text of this module is sent to the hosts. So it needs only the standard library, and
runs on any Python from 3.8 on.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

_NUMBER = 8  # bytes of an integer that encodes a length
_MOST = 1 << 22  # maximum bytes of a test transfer
_LONG = 0.05  # seconds; the rate is that of the first transfer that takes at least this long


def facts(directory: str, data: str | None) -> dict[str, Any]:
    """Return versions, cores and free bytes of memory of this host.

    `directory`: the directory in which mpirun would start ranks; psnode is looked up there first. `data`: a path, or None.
    The entry "data" of the result is False if this path does not exist.
    """
    if os.path.isdir(directory):
        os.chdir(directory)
    found = {
        "host": socket.gethostname(),
        "python": ".".join(str(number) for number in sys.version_info[:3]),
        "torch": _version("torch"),
        "mpi4py": _version("mpi4py"),
        "mpi": _mpi(),
        "free": _free(),
        "data": data is None or os.path.exists(data),
        # addresses of the two ends of the ssh connection
        "client": os.environ.get("SSH_CONNECTION", "").split(" ")[0],
        "address": "".join(os.environ.get("SSH_CONNECTION", "").split(" ")[2:3]),
    }
    return {**found, **_psnode(), "cores": _cores()}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _psnode() -> dict[str, str]:
    """Return the version and the source digest of the psnode that `python -m psnode` would run."""
    sys.path.insert(0, os.getcwd())
    try:
        import psnode
    except ImportError:
        return {"psnode": "", "source": ""}
    try:
        from psnode.config.source import source
    except ImportError:  # an earlier version of psnode, which has no digest of its source
        return {"psnode": psnode.__version__, "source": ""}
    return {"psnode": psnode.__version__, "source": source()}


def _cores() -> int:
    """Return the number of cores that a rank on this host may use.

    If psnode can be imported, a container's quota limits this number, as in psnode.
    """
    try:
        from psnode.config.cores import usable_cores
    except ImportError:  # psnode is missing on this host, or too old to have this function
        return len(os.sched_getaffinity(0))
    return usable_cores()


def _mpi() -> str:
    """Return the name and version of the mpirun next to this Python or, if there is none, of the first mpirun on the PATH.

    The result is empty if there is no mpirun.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
    found = beside if os.path.exists(beside) else shutil.which("mpirun")
    try:
        done = subprocess.run(
            [str(found), "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first = done.stdout.decode(errors="replace").split("\n")[0].strip()
    return first.replace("mpirun (", "").replace(")", "")[:60]


def _free() -> int:
    with open("/proc/meminfo") as lines:
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)


def listen() -> dict[str, Any]:
    """Open a port to which `reach` on other hosts can connect. Return its number, and a word that `reach` must send first."""
    server, word = socket.create_server(("", 0)), secrets.token_hex(8)
    threading.Thread(target=_serve, args=(server, word), daemon=True).start()
    return {"port": server.getsockname()[1], "word": word}


def _serve(server: socket.socket, word: str) -> None:
    while True:
        peer, _ = server.accept()
        threading.Thread(target=_answer, args=(peer, word), daemon=True).start()


def _answer(peer: socket.socket, word: str) -> None:
    with peer:
        if _read(peer, len(word)) != word.encode():
            return
        while len(header := _read(peer, _NUMBER)) == _NUMBER:
            left = int.from_bytes(header, "big")
            while left > 0 and (part := peer.recv(min(left, 1 << 16))):
                left -= len(part)
            peer.sendall(header)


def _read(peer: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (part := peer.recv(count - len(found))):
        found += part
    return found


def reach(address: str, port: int, word: str, seconds: float) -> dict[str, Any]:
    """Return the round trip in milliseconds and the rate in Mbit/s to a port that `listen` has opened on another host.

    If the port does not answer within `seconds`, the result contains only the entry "error", with the reason.
    """
    until = time.monotonic() + seconds
    try:
        with socket.create_connection((address, port), timeout=seconds) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.sendall(word.encode())
            trip = min(_sent(peer, 0, until) for _ in range(5))
            size, taken = 1 << 16, 0.0
            while taken < _LONG and size < _MOST:
                size *= 2
                taken = _sent(peer, size, until)
            return {"milliseconds": 1e3 * trip, "mbit": 8e-6 * size / taken}
    except OSError as error:
        return {"error": error.strerror or str(error) or type(error).__name__}


def _sent(peer: socket.socket, size: int, until: float) -> float:
    """Send `size` bytes, and return the seconds until the other end has confirmed their arrival."""
    start = time.perf_counter()
    peer.settimeout(max(0.001, until - time.monotonic()))
    header = size.to_bytes(_NUMBER, "big")
    peer.sendall(header + bytes(size))
    if _read(peer, _NUMBER) != header:
        raise OSError("another program answers at this port")
    return time.perf_counter() - start


_QUESTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "facts": facts,
    "listen": listen,
    "reach": reach,
    "time": lambda: {"time": time.time()},
}


def main() -> None:
    """Answer questions until the input ends."""
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(_QUESTIONS[question.pop("ask")](**question)), flush=True)


if __name__ == "__main__":
    main()
