"""`python -m psnode.jobs.program PROGRAM.py ...`: the ranks of `psnode launch -- PROGRAM.py ...`."""

from __future__ import annotations

import sys

from psnode.jobs.as_main import run

if __name__ == "__main__":
    run(sys.argv[1:])
