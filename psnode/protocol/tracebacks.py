"""Locations of exceptions in a user's own code, for messages to its author."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)
_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_LONGEST = 20_000


def location(error: BaseException) -> str:
    """`task.py:12 in batch`: the innermost frame that is neither psnode's nor a library's, else the innermost; "" without one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_PACKAGE, "<", *_PYTHON))] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else ""


def in_one_line(error: BaseException) -> str:
    """Type, message and location of an exception that psnode does not raise itself."""
    text, where = " ".join(f"{type(error).__name__}: {error}".split()), location(error)
    return f"{text.removesuffix(':')} ({where})" if where else text


def formatted(error: BaseException) -> str:
    """The traceback as Python prints it, or the end of it if it is very long."""
    return "".join(traceback.format_exception(error))[-_LONGEST:]
