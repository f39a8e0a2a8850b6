"""Measurement of the cost of all-reduces through gloo: two processes on this host form a ring.

A byte costs more than through a socket alone, since gloo divides an array into pieces, waits for each of them and adds it. An
all-reduce also costs a fixed time for each turn of the ring, in which threads of both processes wake up one after another. If
all cores are at work, a thread that wakes up may have to wait for the end of another one's time slice. So an all-reduce of a
few values then takes anything from some tenths of a millisecond to several milliseconds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from psnode.config.plain_json import to_json
from psnode.jobs.hosts.probes import probe
from psnode.jobs.planning.host_prices.other_work import OtherWork
from psnode.transport.mpi.environment import place

_COMMAND = [sys.executable, "-m", "psnode.jobs.planning.host_prices.gloo_costs"]  # followed by a rank
_RANKS = 2
_SECONDS, _PATIENCE = 60.0, 20.0  # until the measurement is given up, and until gloo gives up a silent rank
_FEW, _MANY = 256, 8 << 20  # float32 values of an array
_ROUNDS = {_FEW: 80, _MANY: 4}
_TOGETHER = 3  # all-reduces one after another in each round, as under PowerSGD; before them each rank works, as in a step
_WARMUP = 3


class RingCosts(NamedTuple):
    """The seconds that an all-reduce takes each rank: for each turn of the ring, and for each byte that the rank sends.

    `turn`: if every thread immediately gets a core when it wakes up. `wake`: the mean of the additional seconds for each turn, in
    all-reduces that come _TOGETHER after work that occupied a core of each rank. All are 0 if they could not be measured.
    """

    turn: float = 0.0
    wake: float = 0.0
    byte: float = 0.0

    @classmethod
    def of(cls, few: Sequence[float], many: Sequence[float]) -> RingCosts:
        """Return the costs from the seconds of all-reduces of _FEW and of _MANY values between _RANKS ranks."""
        turns, sent = 2 * (_RANKS - 1), 2 * (_RANKS - 1) / _RANKS * 4 * (_MANY - _FEW)
        prompt, usual, _ = statistics.quantiles(few, n=4)
        byte = (statistics.median(many) - usual) / sent  # a long pause of a rank during one of the all-reduces does not count
        return cls(prompt / turns, max(0.0, statistics.fmean(few) - prompt) / turns, byte) if byte > 0 else cls()


def ring_costs() -> RingCosts:
    """Return the costs of a ring of two processes on this host.

    They are 0 if two processes cannot form a ring here, and if this process is a rank of a job.
    """
    if place() is not None:
        return RingCosts()
    found = probe([*_COMMAND, "0"], {"GLOO_SOCKET_IFNAME": "lo"}, _SECONDS)
    return RingCosts(*(found[name] for name in RingCosts._fields)) if "byte" in found else RingCosts()


def be_rank(rank: int) -> None:
    """Be a rank of the ring. Rank 0 starts and ends rank 1, measures, and prints the costs as JSON.

    Both ranks meet at the file `store` in their current folder.
    """
    if rank:
        all_reduces(rank)
        return
    with subprocess.Popen([*_COMMAND, "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
        try:
            print(to_json(RingCosts.of(*all_reduces(rank))._asdict()), flush=True)
        finally:
            other.kill()


def all_reduces(rank: int) -> list[list[float]]:
    """Return the seconds of all-reduces of few values, and of many values. Other work precedes each _TOGETHER of them."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    store, patience = Path("store").absolute().as_uri(), timedelta(seconds=_PATIENCE)
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=_RANKS, timeout=patience)
    work, found = OtherWork(), list[list[float]]()
    for size, rounds in _ROUNDS.items():
        array, taken = torch.zeros(size), list[float]()
        for _ in range(_WARMUP + rounds):
            work.for_a_step()
            for _ in range(_TOGETHER):
                begin = time.perf_counter()
                distributed.all_reduce(array)
                taken.append(time.perf_counter() - begin)
        found.append(taken[_WARMUP * _TOGETHER :])
    distributed.destroy_process_group()
    return found


if __name__ == "__main__":
    be_rank(int(sys.argv[1]))
