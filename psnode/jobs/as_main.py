"""Execution of the user's program as if by `python PROGRAM.py`. The end of rank 0 is reported to the launcher."""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from typing import Any

from psnode.jobs import job_end

_WAYS_OUT = ("_exit", "execv", "execve")  # functions of os that leave the process without atexit


def run(arguments: Sequence[str]) -> None:
    """Run the program `arguments[0]` in the module __main__, so that pickles and spawned processes find its names there.

    The previous contents of __main__ are removed.
    """
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
    exec(code, names)  # noqa: S102  # running the program is the purpose


def _telling(leave: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that first reports the end of this process to the launcher, and then calls `leave`.

    In a fork of this process, the function only calls `leave`.
    """
    own = os.getpid()

    def told(*arguments: Any) -> Any:
        if os.getpid() == own:
            job_end.leave()
        return leave(*arguments)

    return told
