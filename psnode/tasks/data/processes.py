"""Processes that make batches: started without forking, so that none of them shares this one's MPI, threads or locks.

Each is a fresh Python that imports what its data set needs, from the file of a task too; an exception there comes back as a line
with the place where it was raised. None imports mpi4py unless the data set does.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import Dataset, IterableDataset

from psnode.config.extensions import TASK_MODULES, import_file
from psnode.errors import ConfigurationError, in_one_line

_METHOD = "forkserver"


class Fault(NamedTuple):
    """An exception of the data set or of its collate function, in one line."""

    text: str


def context() -> Any:
    """The way to start processes: from a server of their own, which has imported torch and nothing of MPI.

    mpirun sends USR1 to all processes of a rank: the server, and Python's tracker of semaphores, begin with it blocked.
    """
    found = multiprocessing.get_context(_METHOD)
    found.set_forkserver_preload([__name__])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return found


class _Code(NamedTuple):
    """The file of a task, which a process has to import before what is defined there can come."""

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
    """The ingredients of `kind(inner)` in a process: first the files of tasks, in the order of the tuple."""
    files = tuple(_Code(module.__file__) for module in _task_modules())
    return _arrive, (files, kind, inner)


def _arrive(files: tuple[str, ...], kind: Callable[[Any], Any], inner: Any) -> Any:
    return kind(inner)


class Batches(Dataset[Any]):
    """`make(wanted)` for each batch that is wanted, or a Fault."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __getitems__(self, wanted: Any) -> Any:
        try:
            return self._make(wanted)
        except Exception as error:  # told in one line where the batch was to be
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
    """`collate`, which lets faults pass, and makes one of an exception of its own. None: batches come whole."""

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
    """Begin a process: leave Ctrl-C and USR1 to its parent, then call `then` with its number."""

    then: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        for each in (signal.SIGINT, signal.SIGUSR1):
            signal.signal(each, signal.SIG_IGN)
        if self.then is not None:
            self.then(number)


def sound(batch: Any) -> Any:
    """`batch`; ConfigurationError if it is a Fault."""
    if isinstance(batch, Fault):
        raise ConfigurationError(f"the data cannot make a batch: {batch.text}")
    return batch


def explained(error: Exception) -> Exception:
    """One line for what can be wrong with processes themselves; other errors as they are."""
    text = " ".join(str(error).split())
    if isinstance(error, RuntimeError) and text.startswith("DataLoader worker"):
        return ConfigurationError(
            f"a process that makes batches died ({text}): is there too little memory, or /dev/shm? --data-workers 0 does without"
        )
    if "pickle" in text or type(error).__name__ == "PicklingError":
        return ConfigurationError(
            f"the data cannot be handed to other processes ({in_one_line(error)}): define classes and functions at the top of a "
            "module, or say --data-workers 0"
        )
    return error


def _line(error: Exception) -> str:
    return str(error) if isinstance(error, ConfigurationError) else in_one_line(error)
