"""A process group of PyTorch that contains the test's process alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.distributed as dist

# Every group is kept until the process ends. A thread of gloo refers to the group of a finished work for a moment longer than
# the test does. If it were the last to refer to it, it would wait for its own end: the process aborts, or hangs where no signal
# reaches it.
_KEPT: list[object] = []


@contextlib.contextmanager
def lone_group() -> Iterator[None]:
    """Make a group of gloo whose only rank is this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    _KEPT.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()
