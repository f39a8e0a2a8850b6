"""The server of forks (see the package). It imports the modules that ranks need, loads cached kernels, and has one thread.

The server ends when its standard input is closed. In a fork, `serve` returns the request, and the fork continues as the
interpreter's main program. It thus ends as any program does: threads are joined, exit handlers run, an exception is printed.
"""

from __future__ import annotations

import array
import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import resource
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy

from tests.forking import ROOT
from tests.forking.client import facts

PACKAGES = (
    "cli", "codecs", "config", "exchange", "feedback", "jobs", "master", "plans", "protocol", "records", "tasks", "worker",
)  # fmt: skip
OPTIONAL = {"cupy", "mpi4py.MPI", "tensorboard", "torchvision", "transformers"}  # imported only by the ranks that need them
_IMPORTS = (
    "ATEN",
    "CUDA",
    "DNNL",
    "GOTO",
    "KMP",
    "LANG",
    "LC_",
    "LD_",
    "LLVM",
    "MALLOC",
    "MKL",
    "NUMBA",
    "NUMEXPR",
    "OMP_",
    "ONEDNN",
    "OPENBLAS",
    "PYTHON",
    "PYTORCH",
)
_IMPORTS += ("TORCH", "VECLIB", "XDG_", "HOME", "VIRTUAL_ENV", "TMPDIR", "TZ")
_LATER = {"PYTHONFAULTHANDLER", "PYTHONUNBUFFERED", "PYTHONPATH"}  # these take effect in the fork
_LATER |= {"TORCHINDUCTOR_CACHE_DIR"}  # torch sets this variable when its compiler is imported
_LIBRARIES = os.path.join(sys.prefix, "lib")  # mpirun adds the folder of its own library, possibly several times
# settings of most jobs in the tests, which train LeNet
USED: tuple[dict[str, Any], ...] = (
    {"scheme": "dense"}, {"scheme": "qsgd"}, {"scheme": "qsgd", "feedback": "ef", "downlink": "dense"}, {"scheme": "atomo"}, {},
    {"scheme": "dense", "downlink": "bf16"}, {"scheme": "topk", "downlink": "topk"},
)  # fmt: skip
RANKS = "FORKING_RANKS"  # this variable names the interpreter with which a fork starts other processes
_PARENT_DIES = 1  # PR_SET_PDEATHSIG


class Request(NamedTuple):
    """A client's request; the fields are those of client.py, with the descriptors received."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    facts: dict[str, str]
    limits: list[tuple[int, int, int]]
    files: list[int]


def import_all() -> None:
    """Import torch, Numba and the modules of PACKAGES. No import starts MPI, a thread or a device."""
    import numba
    import safetensors.torch  # noqa: F401
    import torch._dynamo  # noqa: F401  # every optimizer imports it, which takes 2 s

    import psnode

    assert list(psnode.__path__) == [str(ROOT / "psnode")]
    for package in PACKAGES:
        for module in pkgutil.walk_packages([str(ROOT / "psnode" / package)], f"psnode.{package}."):
            importlib.import_module(module.name)
    numba.njit(lambda x: x + 1)(1.0)  # compiling a first function loads the types that Numba knows
    assert not OPTIONAL.intersection(sys.modules)


def load_kernels() -> None:
    """Load the cached kernels of USED, and compute the digest of psnode's source. Each rank would do so anew, which takes 0.3 s.

    Kernels that are not in Numba's cache are left to the forks, which compile them as interpreters do.
    """
    import torch

    from psnode.config import Config
    from psnode.config.resolve import resolve
    from psnode.config.source import source
    from psnode.exchange.compilation import _is_cached
    from psnode.exchange.flat_model import describe
    from psnode.exchange.kernel_pieces import pieces_of
    from psnode.plans.coding import Coding
    from psnode.plans.rule import plan_of
    from psnode.tasks.models import build

    source()
    with torch.random.fork_rng(devices=()), torch.device("meta"):
        tensors = describe(build("LeNet", (1, 28, 28), 10))
    for used in USED:
        config = Config(**used)
        scheme = resolve(config)
        for piece in pieces_of(Coding(plan_of(tensors, scheme, config), scheme), config):
            _is_cached(piece)


def read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are read during imports."""
    folders = set(environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)) - {"", _LIBRARIES}
    named = {**environment, "LD_LIBRARY_PATH": repr(sorted(folders))}
    return {name: value for name, value in named.items() if name.startswith(_IMPORTS) and name not in _LATER}


def would_differ(request: Request, own: dict[str, str]) -> bool:
    """Return True if a new interpreter of the client would differ from this one."""
    paths = request.environment.get("PYTHONPATH", str(ROOT)).split(os.pathsep)
    other = paths[0] != str(ROOT) or (request.folder != str(ROOT) and Path(request.folder, "psnode").exists())
    higher = any(hard > resource.getrlimit(number)[1] >= 0 for number, _, hard in request.limits)
    variables = read_by_imports(request.environment) != read_by_imports(os.environ)
    return other or higher or variables or request.facts != own


def received(connection: socket.socket) -> Request | None:
    """Receive and return a client's request, or None if the client has gone."""
    head, body, wanted, files = b"", b"", 0, array.array("i")
    with contextlib.suppress(OSError):
        head, extra, _flags, _address = connection.recvmsg(8, socket.CMSG_SPACE(12))
        for _level, _kind, found in extra:
            files.frombytes(found)
        wanted = int.from_bytes(head, "little")
        while len(body) < wanted and (more := connection.recv(wanted - len(body))):
            body += more
    if len(head) == 8 and len(body) == wanted and len(files) == 3:
        return Request(*json.loads(body), list(files))
    for file in files:
        os.close(file)
    return None


def kill(fork: int) -> None:
    """Kill a fork and the processes of its group, which it leads once it has begun."""
    try:
        os.killpg(fork, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(fork, signal.SIGKILL)  # it is not waited for yet, so the number is its own


class Server:
    """The server's loop. `_clients` maps the process id of each fork to its connection."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._facts = listener, facts()
        self._clients: dict[int, socket.socket] = {}
        self._woken, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno())
        self._wakes = wakes

    def serve(self) -> Request | None:
        """Serve until the standard input is closed, then return None; in a fork, return its request."""
        while True:
            waiting = [0, self._woken, self._listener, *self._clients.values()]
            ready, _, _ = select.select(waiting, [], [])
            if 0 in ready:
                for pid in self._clients:
                    kill(pid)
                return None
            for pid, connection in list(self._clients.items()):
                # clients send nothing after their request, so a ready connection is closed: the client was killed
                if connection in ready:
                    kill(pid)
                    connection.close()
                    del self._clients[pid]
            if self._woken in ready:
                self._woken.recv(4096)
                self._reap()
            if self._listener in ready and (request := self._accept()) is not None:
                return request

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                connection = self._clients.pop(found[0], None)
                if connection is not None:
                    with contextlib.suppress(OSError):
                        connection.sendall(found[1].to_bytes(8, "little"))
                    connection.close()

    def _accept(self) -> Request | None:
        """Accept a client and fork for it. Return the request in the fork, and None in the server."""
        connection, _ = self._listener.accept()
        request = received(connection)
        if request is None:
            connection.close()
            return None
        assert threading.active_count() == 1
        refused, pid = would_differ(request, self._facts), 0
        if not refused:
            try:
                pid = os.fork()
            except OSError:  # no memory, or too many processes
                refused = True
        if pid == 0 and not refused:
            self._leave(connection)
            return request
        with contextlib.suppress(OSError):
            connection.sendall(pid.to_bytes(8, "little"))
        for file in request.files:
            os.close(file)
        if refused:
            connection.close()
        else:
            self._clients[pid] = connection
        return None

    def _leave(self, connection: socket.socket) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for opened in (self._listener, self._woken, self._wakes, connection, *self._clients.values()):
            opened.close()


def keep_imported(imported: dict[str, ModuleType]) -> None:
    """Exempt these modules and their libraries from the teardown at the end of the process, which would take 0.4 s."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # called with the exit code before the destructors of C++
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(imported))

    def forget() -> None:
        for name, module in imported.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    atexit.register(forget)  # exit handlers run in reverse order, so the first one registered runs last


def become(request: Request) -> None:
    """Take over the files, the environment, the folder and the limits of a client."""
    ctypes.CDLL(None).prctl(_PARENT_DIES, signal.SIGKILL)
    os.setpgid(0, 0)
    for number, *values in request.limits:
        resource.setrlimit(number, (values[0], values[1]))
    for number, file in enumerate(request.files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    plain = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False), encoding=sys.stdin.encoding, errors=sys.stdin.errors)
    for name, number in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        binary = os.fdopen(number, "wb", 0 if plain else -1, closefd=False)
        line_by_line = number == 2 or os.isatty(number)
        new = io.TextIOWrapper(binary, encoding=old.encoding, errors=old.errors, line_buffering=line_by_line, write_through=plain)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    sys.__stdin__ = sys.stdin
    sys.executable = os.environ.get(RANKS, sys.executable)
    random.seed()
    numpy.random.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable(sys.__stderr__)


def run(words: list[str]) -> None:
    """Run the arguments as the interpreter does: -m MODULE, -c PROGRAM or FILE."""
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:2] = given  # replaces the server's folder and its PYTHONPATH
    namespace = sys.modules["__main__"].__dict__
    if words[0] == "-m":
        sys.argv[:] = ["-m", *words[2:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # no public function sets up __main__ as -m does
        return
    namespace.clear()
    namespace.update(__name__="__main__", __builtins__=builtins)
    namespace.update(dict.fromkeys(("__doc__", "__loader__", "__package__", "__spec__")))
    if words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), namespace)  # noqa: S102 (a test's own program)
    else:
        sys.argv[:] = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        namespace["__file__"] = words[0]
        exec(compile(Path(words[0]).read_bytes(), words[0], "exec", dont_inherit=True), namespace)  # noqa: S102


def main() -> None:
    """Serve; in a fork, run its request."""
    own = set(sys.modules)
    import_all()
    load_kernels()
    imported = {name: module for name, module in sys.modules.items() if name not in own}
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        listener.listen(64)
        os.write(1, b"ready\n")
        request = Server(listener).serve()
    if request is not None:
        keep_imported(imported)
        become(request)
        run(request.words)
