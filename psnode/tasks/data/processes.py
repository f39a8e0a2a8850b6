"""Processes that make batches, started without forking, so that they share no MPI, threads or locks with this one.

Each is a fresh Python that imports the modules of its data set, including the file of a task; an exception in it returns as a
line with the place where it was raised. It imports mpi4py only if the data set does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import Dataset, IterableDataset

from psnode.config.extensions import TASK_MODULES, import_file
from psnode.config.launcher import job_folder
from psnode.errors import ConfigurationError, in_one_line

_METHOD = "forkserver"
_SOCKET_BYTES = 107  # maximum length of the path of a socket
_BELOW = "/pymp-12345678/listener-12345678"  # added by Python


class Fault(NamedTuple):
    """An exception of the data set or of its collate function, in one line."""

    text: str


def context() -> Any:
    """Return the way to start processes: from a server of their own, which has imported torch and no part of MPI.

    mpirun sends USR1 to all processes of a rank, and a terminal HUP: the server, and Python's tracker of semaphores, start with
    both blocked. Raises ConfigurationError if no folder is short enough for their sockets.
    """
    make_place()
    found = multiprocessing.get_context(_METHOD)
    found.set_forkserver_preload([__name__])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGHUP})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return found


class _Code(NamedTuple):
    """The file of a task, which a process must import before it can receive objects defined in it."""

    file: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _import_again, (self.file,)


def _import_again(file: str) -> str:
    if not any(getattr(module, "__file__", None) == file for module in _task_modules()):
        import_file(Path(file), "task")
    return file


def _task_modules() -> list[Any]:
    return [module for name, module in list(sys.modules.items()) if name.startswith(TASK_MODULES)]


def _travel(kind: type, inner: Any) -> tuple[Any, ...]:
    """Return the ingredients of `kind(inner)` in a process: first the files of tasks, in the order of the tuple."""
    files = tuple(_Code(module.__file__) for module in _task_modules())
    return _arrive, (files, kind, inner)


def _arrive(files: tuple[str, ...], kind: Callable[[Any], Any], inner: Any) -> Any:
    return kind(inner)


class Batches(Dataset[Any]):
    """`make(wanted)` for each wanted batch, or a Fault."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __getitems__(self, wanted: Any) -> Any:
        try:
            return self._make(wanted)
        except Exception as error:  # reported in one line by the reader of the batch
            return Fault(_line(error))

    def __reduce__(self) -> tuple[Any, ...]:
        return _travel(Batches, self._make)


class Stream(IterableDataset[Any]):
    """The examples of `begin()`, and a Fault if it raises."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._begin()
        except Exception as error:
            yield Fault(_line(error))

    def __reduce__(self) -> tuple[Any, ...]:
        return _travel(Stream, self._begin)


@dataclass(frozen=True)
class Collated:
    """`collate`, which passes faults on and turns its own exceptions into one. None: batches come whole."""

    collate: Callable[[Any], Any] | None

    def __call__(self, examples: Any) -> Any:
        if isinstance(examples, Fault):
            return examples
        if isinstance(examples, list) and (faults := [each for each in examples if isinstance(each, Fault)]):
            return faults[0]
        try:
            return examples if self.collate is None else self.collate(examples)
        except Exception as error:
            return Fault(_line(error))


@dataclass(frozen=True)
class Begin:
    """Start a process: leave Ctrl-C, HUP and USR1 to its parent, end with it, then call `then` with the process's number."""

    then: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        for each in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        threading.Thread(target=_end_with_parent, name="psnode-parent", daemon=True).start()
        if self.then is not None:
            self.then(number)


def _end_with_parent() -> None:
    """Wait for the end of the process that uses the batches, and exit: it is not this one's parent, which torch watches.

    If that process was killed, its folder of sockets is left.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        if folder := getattr(multiprocessing.current_process(), "_config", {}).get("tempdir"):
            shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)


def make_place() -> None:
    """Have Python make its sockets in a folder that is removed with the job, or whose name is short enough.

    A killed rank removes nothing, and the processes that follow it may be killed before they do.
    """
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]  # no public way, but every version has it
    if settings.get("tempdir"):
        return
    own = job_folder()
    if own is None and _fits(tempfile.gettempdir()):
        util.get_temp_dir()  # before the first process, which must know it
        return
    for folder in (*([str(own)] if own is not None and _fits(own) else []), "/tmp", "/var/tmp", "/dev/shm"):
        with contextlib.suppress(OSError):  # mkdtemp creates one below it that belongs only to this user
            found = settings["tempdir"] = tempfile.mkdtemp(prefix="pymp-", dir=folder)
            util.Finalize(None, shutil.rmtree, args=(found, True), exitpriority=-100)  # as Python does with its own
            return
    raise ConfigurationError(
        f"TMPDIR is too long for the sockets of --data-workers ({tempfile.gettempdir()}) and /tmp cannot be written: "
        f"set TMPDIR to a folder of at most {_SOCKET_BYTES - len(_BELOW)} characters"
    )


def _fits(folder: Path | str) -> bool:
    return len(os.fsencode(folder)) <= _SOCKET_BYTES - len(_BELOW)


def sound(batch: Any) -> Any:
    """Return `batch`. Raises ConfigurationError if it is a Fault."""
    if isinstance(batch, Fault):
        raise ConfigurationError(f"the data cannot make a batch: {batch.text}")
    return batch


def explained(error: Exception) -> Exception:
    """Return a one-line error for faults of the processes themselves; other errors as they are."""
    text = " ".join(str(error).split())
    if isinstance(error, RuntimeError) and text.startswith("DataLoader worker"):
        return ConfigurationError(
            f"a process that loads batches died ({text}): is there too little memory, or /dev/shm? --data-workers 0 needs no "
            "processes"
        )
    if "pickle" in text or type(error).__name__ == "PicklingError":
        return ConfigurationError(
            f"the data cannot be sent to other processes ({in_one_line(error)}): define classes and functions at the top of a "
            "module, or use --data-workers 0"
        )
    return error


def _line(error: Exception) -> str:
    return str(error) if isinstance(error, ConfigurationError) else in_one_line(error)
