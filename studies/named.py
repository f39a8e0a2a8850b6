"""`python -m studies.named ARGS`: `psnode ARGS` with thread names that the kernel knows, and thus top -H and perf.

Python before 3.14 does not pass the names of threads to the kernel.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import threading
from pathlib import Path
from types import FrameType


def tell_names() -> None:
    """Give every thread that `threading` starts after this call its name in /proc, cut to 15 characters."""

    def tell(frame: FrameType, event: str, argument: object) -> None:
        """Write the name of a new thread. This is called once, before the thread's own code."""
        sys.setprofile(None)
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(threading.current_thread().name)

    threading.setprofile(tell)


if __name__ == "__main__":
    tell_names()
    runpy.run_module("psnode", run_name="__main__", alter_sys=True)
