"""The option --debug, which shows the traceback of psnode's own errors. Without it, such errors are reported in one line."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from psnode.errors import PsnodeError

_R = TypeVar("_R")


@contextlib.contextmanager
def traced(debug: bool) -> Iterator[None]:
    """Print the traceback of an error of psnode that leaves the context, if `debug` is True.

    Tracebacks of other exceptions are printed in psnode.cli.commands, with or without --debug.
    """
    try:
        yield
    except PsnodeError:
        if debug:
            traceback.print_exc()
        raise


def debuggable(command: Callable[..., _R]) -> Callable[..., _R]:
    """Return `command` with the option --debug, which shows the traceback of an error."""

    @click.option("--debug/--no-debug", default=False, help="Show the traceback of an error.")
    @functools.wraps(command)
    def with_option(*args: Any, debug: bool, **settings: Any) -> _R:
        with traced(debug):
            return command(*args, **settings)

    return with_option
