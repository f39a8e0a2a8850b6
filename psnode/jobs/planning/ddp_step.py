"""A step of PyTorch's DistributedDataParallel in the model: buckets that a ring of workers adds up during the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psnode.jobs.planning.job_step import StepTime, steady
from psnode.jobs.planning.profile import Profile, TensorTimes
from psnode.jobs.planning.scenario import CODING, PASSES, TRANSPORT, HostModels, Scenario
from psnode.jobs.planning.simulation import Graph

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20  # bytes: torch's defaults
HOOKS = {"fp32": 4, "fp16": 2}  # bytes of a coordinate on the link; the hook for bf16 works with NCCL alone
_STEPS = 3


class DdpBucket(NamedTuple):
    """Gradients that are added up together: their bytes as float32, and when the last of them is ready."""

    nbytes: int
    ready: float


def buckets(tensors: Sequence[TensorTimes]) -> list[DdpBucket]:
    """Return DDP's buckets of tensors in the order in which their gradients finish: full as soon as they reach their limit."""
    found, size, limit = list[DdpBucket](), 0, FIRST_BUCKET
    for place, tensor in enumerate(tensors):
        size += tensor.nbytes
        if size >= limit or place == len(tensors) - 1:
            found.append(DdpBucket(size, tensor.ready))
            size, limit = 0, BUCKET
    return found


def ddp_bytes(nbytes: float, hook: str, workers: int) -> float:
    """Return the bytes that each worker sends to add up gradients of `nbytes` bytes as float32."""
    return 2 * (workers - 1) / workers * nbytes * HOOKS[hook] / 4


def ddp_step(profile: Profile, hook: str, scenario: Scenario) -> StepTime:
    """Return the step time under one of HOOKS.

    A ring all-reduce sends each bucket 2 (P - 1) / P times over every link, in as many steps as 2 (P - 1)
    (R. Thakur et al., Int. J. High Perform. Comput. Appl. 19, 2005).
    """
    graph = Graph()
    hosts = HostModels(graph, scenario, profile.host, master=False)
    ranks = range(scenario.workers)
    share = HOOKS[hook] / 4
    turns = 2 * (scenario.workers - 1)
    rounding = profile.host.half / 2 if share < 1 else 0.0
    last = [graph.add(PASSES, 0, []) for _ in ranks]
    connections, adders = [graph.queue() for _ in ranks], [graph.queue() for _ in ranks]
    begins = []
    for _ in range(_STEPS):
        last = [hosts.compute(PASSES, rank, profile.forward, [last[rank]]) for rank in ranks]
        begins.append([hosts.compute(PASSES, rank, 0.0, [last[rank]]) for rank in ranks])
        now, reduced = 0.0, list[list[int]]()
        for bucket in buckets(profile.tensors) if turns else ():
            last = [hosts.compute(PASSES, rank, bucket.ready - now, [last[rank]]) for rank in ranks]
            now = bucket.ready
            last = [hosts.compute(CODING, rank, bucket.nbytes * rounding, [last[rank]]) for rank in ranks]
            nbytes = ddp_bytes(bucket.nbytes, hook, scenario.workers)
            adding = nbytes / 2 / share * profile.host.add
            added = [hosts.compute(TRANSPORT, rank, adding, last, queue=adders[rank]) for rank in ranks]
            sent = [hosts.transfer(rank, (rank + 1) % scenario.workers, nbytes, last, connections[rank]) for rank in ranks]
            there = hosts.wait((turns - 1) * scenario.round_trip / 2, [*sent, *added])
            reduced.append([hosts.compute(CODING, rank, bucket.nbytes * rounding, [there]) for rank in ranks])
        last = [hosts.compute(PASSES, rank, profile.backward - now, [last[rank]]) for rank in ranks]
        done = [[last[rank], *(each[rank] for each in reduced)] for rank in ranks]
        last = [hosts.compute(PASSES, rank, profile.optimizer, done[rank]) for rank in ranks]
    return steady(graph, hosts, begins)
