"""Run the user's program as `python PROGRAM.py` does, and have rank 0 report its end to the launcher."""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from typing import Any

from psnode.jobs import job_end

_WAYS_OUT = ("_exit", "execv", "execve")  # they bypass atexit


def run(arguments: Sequence[str]) -> None:
    """Run the program in the module __main__, whose contents it replaces, so that pickles and spawned processes find it."""
    path = os.path.abspath(arguments[0])
    job_end.watch()
    for name in _WAYS_OUT:
        setattr(os, name, _telling(getattr(os, name)))
    sys.argv[:] = arguments
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    names = sys.modules["__main__"].__dict__
    names.clear()
    names.update(
        __name__="__main__", __file__=path, __builtins__=builtins, __loader__=SourceFileLoader("__main__", path),
        __doc__=None, __package__=None, __spec__=None, __cached__=None,
    )  # fmt: skip
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, names)  # noqa: S102  # a program is there to be run


def _telling(leave: Callable[..., Any]) -> Callable[..., Any]:
    """Return `leave`, preceded by a report if this process exits, not a fork of it."""
    own = os.getpid()

    def told(*arguments: Any) -> Any:
        if os.getpid() == own:
            job_end.leave()
        return leave(*arguments)

    return told
