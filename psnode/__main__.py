"""`python -m psnode`."""

from __future__ import annotations

import sys

from psnode.cli import main

if __name__ == "__main__":
    sys.exit(main())
