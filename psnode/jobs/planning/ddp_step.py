"""The model of a step under PyTorch's DDP: the workers form a ring and add up buckets of gradients during the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psnode.jobs.planning.ddp_hooks import Communication, payload_bytes, powersgd_values
from psnode.jobs.planning.fluid.simulation import Graph
from psnode.jobs.planning.job_step import StepTime, steady
from psnode.jobs.planning.profile import Profile, TensorTimes
from psnode.jobs.planning.scenario import CODING, PASSES, TRANSPORT, HostModels, Scenario

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20  # bytes: torch's defaults
# hooks that work over gloo; the bf16 hook needs NCCL
HOOKS = ("fp32", "fp16", "powersgd:rank=2")
_STEPS = 3
_MOST_RANKS = 4  # of a ring whose ranks are alike


class DdpBucket(NamedTuple):
    """Values that are added up together.

    It has their number of bytes, and the time at which the last gradient that they depend on is `ready`.
    """

    nbytes: float
    ready: float


def buckets(tensors: Sequence[TensorTimes]) -> list[DdpBucket]:
    """Return DDP's buckets of tensors, in the order in which their gradients finish.

    A bucket is closed when it has FIRST_BUCKET bytes (the first one) or BUCKET bytes (all others).
    """
    found, size, limit = list[DdpBucket](), 0, FIRST_BUCKET
    for place, tensor in enumerate(tensors):
        size += tensor.nbytes
        if size >= limit or place == len(tensors) - 1:
            found.append(DdpBucket(size, tensor.ready))
            size, limit = 0, BUCKET
    return found


def ddp_bytes(nbytes: float, workers: int) -> float:
    """Return the bytes that each of P workers sends through a ring to add up `nbytes` bytes: 2 (P - 1) / P times `nbytes`.

    R. Thakur et al., Int. J. High Perform. Comput. Appl. 19, 2005.
    """
    return 2 * (workers - 1) / workers * nbytes


def sums_of(tensors: Sequence[TensorTimes], hook: str) -> list[DdpBucket]:
    """Return the sums of a step under `hook`: for each sum its bytes, and the time at which its values are ready.

    PowerSGD first adds up all gradients that it does not factorize, and after that all first factors. Then it computes all
    second factors from the result, and adds them up. So it has three sums, one after another, or two if it factorizes all
    gradients. PowerSGD has one bucket, because torch over gloo does not support more with it.
    """
    communication = Communication.parse(hook)
    if communication.kind != "powersgd":
        share = payload_bytes(communication, [(1,)], 1) / 4
        return [DdpBucket(bucket.nbytes * share, bucket.ready) for bucket in buckets(tensors)]
    values = [powersgd_values(tensor.shape, communication.parameters["rank"]) for tensor in tensors]
    ready = max((tensor.ready for tensor in tensors), default=0.0)
    whole = sum(first for first, second in values if not second)
    factors = [sum(first for first, second in values if second), sum(second for _, second in values)]
    return [DdpBucket(4 * each, ready) for each in ([whole] if whole else []) + factors]


def ddp_step(profile: Profile, hook: str, scenario: Scenario) -> StepTime:
    """Return the step time under `hook`, one of HOOKS whose overhead is in the profile.

    If every rank has its own host, all ranks are alike, and each link carries one connection in each direction. Then a ring
    of a few ranks stands for the whole ring: each of them sends as many bytes in as many turns as a rank of the whole ring.
    """
    graph = Graph()
    ranks = range(scenario.workers if scenario.shared else min(scenario.workers, _MOST_RANKS))
    turns = 2 * (scenario.workers - 1)
    costs = profile.host
    hosts = HostModels(graph, scenario, costs, ranks=len(ranks))
    sums = sums_of(profile.tensors, hook)
    whole = sum(each.nbytes for each in sums) or 1.0
    alike = not hook.startswith("powersgd")  # True if the next sum does not wait for the result of the previous sum
    last = [graph.add(PASSES, 0, []) for _ in ranks]
    connections, gloo = [graph.queue() for _ in ranks], [graph.queue() for _ in ranks]
    begins = []
    for _ in range(_STEPS):
        last = [hosts.passes(rank, profile.forward, [last[rank]]) for rank in ranks]
        begins.append([hosts.compute(PASSES, rank, 0.0, [last[rank]]) for rank in ranks])
        now, reduced = 0.0, list[int]()
        for each in sums:
            coding = profile.ddp[hook] * (each.nbytes / whole if alike else 1 / len(sums))
            last = [hosts.passes(rank, each.ready - now, [last[rank]]) for rank in ranks]
            last = [hosts.compute(CODING, rank, coding, [last[rank]]) for rank in ranks]
            now = each.ready
            if turns:
                nbytes = ddp_bytes(each.nbytes, scenario.workers)
                working = turns * costs.ring_turn + nbytes * (costs.ring_byte or costs.send + costs.receive + costs.add / 2)
                worked = [hosts.compute(TRANSPORT, rank, working, last, queue=gloo[rank]) for rank in ranks]
                sent = [hosts.carry(rank, (rank + 1) % len(ranks), nbytes, last, connections[rank]) for rank in ranks]
                reduced.append(hosts.wait(turns * hosts.latency, [*sent, *worked]))
                last = last if alike else [hosts.compute(CODING, rank, 0.0, [last[rank], reduced[-1]]) for rank in ranks]
        last = [hosts.passes(rank, profile.backward - now, [last[rank]]) for rank in ranks]
        last = [hosts.compute(PASSES, rank, profile.optimizer, [last[rank], *reduced]) for rank in ranks]
    return steady(graph, hosts, begins)
