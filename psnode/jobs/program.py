"""Program of the ranks of `psnode launch -- PROGRAM.py ...`, run as `python -m psnode.jobs.program PROGRAM.py ...`."""

from __future__ import annotations

import sys

from psnode.jobs.as_main import run

if __name__ == "__main__":
    run(sys.argv[1:])
