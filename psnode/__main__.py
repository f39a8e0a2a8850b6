"""Entry point of `python -m psnode`."""

from __future__ import annotations

import sys

from psnode.cli import main
from psnode.jobs import job_end

if __name__ == "__main__":
    job_end.watch()
    sys.exit(main())
