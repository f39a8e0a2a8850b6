"""`python -m studies.named ARGS`: run `psnode ARGS` with thread names that the kernel knows, so that top -H and perf show them.

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
    """Make every thread that `threading` starts from now on write its name, cut to 15 characters, to /proc."""

    def tell(frame: FrameType, event: str, argument: object) -> None:
        """Write the name of the current thread to /proc. A new thread calls this once, before its own code."""
        sys.setprofile(None)
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(threading.current_thread().name)

    threading.setprofile(tell)


if __name__ == "__main__":
    tell_names()
    runpy.run_module("psnode", run_name="__main__", alter_sys=True)
