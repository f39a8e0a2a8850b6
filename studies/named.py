"""`python -m studies.named ARGS`: `psnode ARGS` whose threads the kernel knows by their names, as top -H and perf do.

Python below 3.14 keeps the name of a thread to itself.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import threading
from pathlib import Path
from types import FrameType


def tell_names() -> None:
    """From here on every thread that `threading` starts has its name in /proc as well, cut to 15 characters."""

    def tell(frame: FrameType, event: str, argument: object) -> None:
        """Called once in a new thread, before its own code."""
        sys.setprofile(None)
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(threading.current_thread().name)

    threading.setprofile(tell)


if __name__ == "__main__":
    tell_names()
    runpy.run_module("psnode", run_name="__main__", alter_sys=True)
