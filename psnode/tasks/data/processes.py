"""Processes that make batches. They are not forked from this process, so they share no MPI, threads or locks with it.

Each is forked from a server process without MPI, and imports the modules of its data set, including the file of a task. It
imports mpi4py only if the data set does. An exception in such a process is returned as one line that states where it was
raised.
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

from psnode.codecs.registry.python_files import TASK_MODULES, import_file
from psnode.config.job_folder import job_folder
from psnode.errors import ConfigurationError, in_one_line

_METHOD = "forkserver"
_SOCKET_BYTES = 107  # maximum length of the path of a socket
_BELOW = "/pymp-12345678/listener-12345678"  # an example of the part that Python adds to the path


class Fault(NamedTuple):
    """One-line text of an exception in the data set or its collate function."""

    text: str


def context() -> Any:
    """Return the multiprocessing context for processes forked from a server that has imported torch but no part of MPI.

    mpirun sends USR1 to all processes of a rank, and a terminal sends HUP. Therefore the server and Python's tracker of
    semaphores start with both signals blocked. Raises ConfigurationError if no folder has a path short enough for their
    sockets.
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
    """The file of a task.

    When a process unpickles this object, it imports the file, on which objects unpickled later may depend.
    """

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
    """Return the arguments with which a process unpickles `kind(inner)`.

    The files of tasks come first, so that they are imported.
    """
    files = tuple(_Code(module.__file__) for module in _task_modules())
    return _arrive, (files, kind, inner)


def _arrive(files: tuple[str, ...], kind: Callable[[Any], Any], inner: Any) -> Any:
    return kind(inner)


class Batches(Dataset[Any]):
    """Data set that returns `make(wanted)` for each wanted batch, or a Fault if `make` raises."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __getitems__(self, wanted: Any) -> Any:
        try:
            return self._make(wanted)
        except Exception as error:  # the reader of the batch reports the error in one line
            return Fault(_line(error))

    def __reduce__(self) -> tuple[Any, ...]:
        return _travel(Batches, self._make)


class Stream(IterableDataset[Any]):
    """Data set of the examples from `begin()`, followed by a Fault if the iteration raises."""

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
    """Function that applies `collate`, passes on Faults, and turns exceptions of `collate` into Faults.

    If `collate` is None, batches are passed on unchanged.
    """

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
    """Function that prepares a process that makes batches.

    The prepared process ignores Ctrl-C, HUP and USR1, since the process that uses the batches handles these signals. When
    that process ends, the prepared process ends too. After the preparation, `then` is called with the number of the prepared
    process.
    """

    then: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        for each in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        threading.Thread(target=_end_with_parent, name="psnode-parent", daemon=True).start()
        if self.then is not None:
            self.then(number)


def _end_with_parent() -> None:
    """Wait until the process that uses the batches ends, remove its folder of sockets, and exit.

    If the process that uses the batches is killed, it does not remove the folder itself. torch ends a process only with the
    process that forked it, which is the server of processes here, not the process that uses the batches.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        if folder := getattr(multiprocessing.current_process(), "_config", {}).get("tempdir"):
            shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)


def make_place() -> None:
    """Make Python create its sockets in a folder whose path is short enough.

    If possible, this is a folder that is removed with the job. A killed rank does not remove its own folder, and its
    processes may be killed before they remove it.
    """
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]  # not public, but present in every version
    if settings.get("tempdir"):
        return
    own = job_folder()
    if own is None and _fits(tempfile.gettempdir()):
        util.get_temp_dir()  # create the folder now, since the first process must know its path
        return
    for folder in (*([str(own)] if own is not None and _fits(own) else []), "/tmp", "/var/tmp", "/dev/shm"):
        with contextlib.suppress(OSError):  # mkdtemp creates a folder that only this user can access
            found = settings["tempdir"] = tempfile.mkdtemp(prefix="pymp-", dir=folder)
            util.Finalize(None, shutil.rmtree, args=(found, True), exitpriority=-100)  # as Python does for its own folder
            return
    raise ConfigurationError(
        f"TMPDIR is too long for the sockets of --data-workers ({tempfile.gettempdir()}) and /tmp cannot be written: "
        f"set TMPDIR to a folder of at most {_SOCKET_BYTES - len(_BELOW)} characters"
    )


def _fits(folder: Path | str) -> bool:
    return len(os.fsencode(folder)) <= _SOCKET_BYTES - len(_BELOW)


def sound(batch: Any) -> Any:
    """Return `batch`. Raises ConfigurationError if `batch` is a Fault."""
    if isinstance(batch, Fault):
        raise ConfigurationError(f"the data cannot make a batch: {batch.text}")
    return batch


def explained(error: Exception) -> Exception:
    """Return a one-line error for a failure of the processes, or for data that cannot be pickled. Other errors are returned
    unchanged."""
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
