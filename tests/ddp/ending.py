"""One rank that takes a step with the hook, then ends: python ending.py FOLDER. At Python's exit it prints the threads that
still run.
"""

from __future__ import annotations

import atexit
import sys
import threading
from pathlib import Path

# the function registered first runs last, after all functions that psnode registers
atexit.register(lambda: print("running:", *(each.name for each in threading.enumerate())))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from psnode import ddp  # noqa: E402


def main(folder: Path) -> None:
    """Run one backward pass."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    model.register_comm_hook(*ddp.comm_hook("topk:ratio=0.05"))
    model(torch.ones(2, 64)).sum().backward()
    print("during:", *(each.name for each in threading.enumerate()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
