"""Measurement of a profile on this host: a model's passes, and a worker's and the master's work under every scheme."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psnode.config import Config
from psnode.config.cores import usable_cores
from psnode.config.names import DENSE
from psnode.config.resolve import resolve
from psnode.config.train_settings import WITH_BETAS
from psnode.jobs.planning.ddp_overhead import overheads
from psnode.jobs.planning.ddp_step import HOOKS
from psnode.jobs.planning.host_costs import add_cost, crowding, median_of, socket_costs
from psnode.jobs.planning.job_step import step_without_links
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.master.lines.opening import doubt_of, measured_cost

if TYPE_CHECKING:
    import torch

    from psnode.jobs.planning.step_rigs import Alone, Exchanging, TimedModel

UNCODED = frozenset({"identity", "fp16", "bf16", DENSE})  # codecs and downlinks without a noticeable loss
_STEPS, _SECONDS = 7, 1.0  # least number of steps of a measurement, and the seconds that it takes for fast models
_MESSAGE = (
    1e-4  # seconds of MPI's thread on a message at each end, since MPI is not started here: docs/results/2026-11-23-threads.md
)
_UPDATES = ("finish", "norm", "protect", "update", "constrain", "average", "downlink")  # spans of the master that close a group


def measure(config: Config, schemes: Mapping[str, Config], tell: Callable[[str], None] = lambda line: None) -> Profile:
    """Return the profile of the model that `config` trains, under each of `schemes`, by flags.

    Batches are those of training; nothing is trained. With several batches in a step, the forward pass stands for all passes
    before the last backward pass. Raises ConfigurationError for settings that train would refuse.
    """
    import torch

    from psnode.jobs.planning.step_rigs import Alone, TimedModel
    from psnode.tasks.device import choose_device
    from psnode.tasks.loading import make_task

    used, threads = torch.get_num_threads(), config.threads or 1
    torch.set_num_threads(threads)
    try:
        tell("passes")
        there = config.enable_gpu
        ground = TimedModel(make_task(config), config.batch_size, choose_device(there), coded_there=there, seed=config.seed)
        alone = Alone(ground)
        alone.step()
        whole = statistics.median(_steps(alone))
        needed, forward = first_uses(ground)
        ready = ground.findings.backward or {}
        ready, backward = scaled(ready, whole - forward)
        shapes = {name: tuple(parameter.shape) for name, parameter in ground.model().named_parameters() if name in ready}
        tensors = tuple(TensorTimes(shapes[name], at, needed.get(name, 0.0)) for name, at in ready.items())
        tell("this host and DDP")
        send, receive = socket_costs()
        crowded = crowding(alone.step, max(_SECONDS / 2, 2 * whole)) if ground.device.type == "cpu" else 1.0
        host = HostCosts(send, receive, _MESSAGE, add_cost(), usable_cores(), crowded)
        profile = Profile(
            config.network if config.task is None else str(config.task), threads, forward, backward,
            _optimizer_seconds(ground, config), tensors, host, {}, overheads(ground, HOOKS, whole, _SECONDS / 2),
            config.optimizer in WITH_BETAS,
        )  # fmt: skip
        names = list(ready)
        found = {}
        for flags, chosen in schemes.items():
            tell(flags)
            found[flags] = _scheme_costs(ground, chosen, profile, dict(zip(names, tensors, strict=True)))
        earlier = (config.batches_per_step - 1) * profile.passes  # passes before the last one, during which nothing is sent
        return replace(profile, forward=profile.forward + earlier, schemes=found)
    finally:
        torch.set_num_threads(used)


def first_uses(ground: TimedModel) -> tuple[dict[str, float], float]:
    """Return the seconds from the beginning of the forward pass to each parameter's first use, and those of the whole pass.

    A parameter counts as used when its module is called; one whose module is never called is used at the beginning.
    """
    model = ground.model().to(ground.device)
    computation = ground.computation(model)
    computation.loss(ground.batch, None)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    uses: dict[str, float] = {}
    begin = 0.0

    def note(module: torch.nn.Module, inputs: Any) -> None:
        for parameter in module.parameters(recurse=False):
            uses.setdefault(names[id(parameter)], time.perf_counter() - begin)

    handles = [module.register_forward_pre_hook(note) for module in model.modules()]
    try:
        found = []
        for _ in range(5):
            uses.clear()
            begin = time.perf_counter()
            computation.loss(ground.batch, None)
            ground.settle()
            found.append((time.perf_counter() - begin, dict(uses)))
    finally:
        for handle in handles:
            handle.remove()
    seconds, times = sorted(found, key=lambda pair: pair[0])[len(found) // 2]
    return times, seconds


def scaled(times: Mapping[str, float], seconds: float) -> tuple[dict[str, float], float]:
    """Return `times`, which ascend, scaled so that the last is `seconds`, a measured duration of the same pass; and `seconds`."""
    last = max(times.values(), default=0.0)
    return {name: at * seconds / last if last else 0.0 for name, at in times.items()}, seconds


def _steps(rig: Alone | Exchanging) -> list[float]:
    """Return the seconds of at least _STEPS steps, and of as many as take _SECONDS."""
    found = list[float]()
    while len(found) < _STEPS or sum(found) < _SECONDS:
        found.append(rig.step())
        rig.between()
    return found


def _optimizer_seconds(ground: TimedModel, config: Config) -> float:
    """Return the seconds of a step of torch's fused optimizer of the same kind, which DDP would use."""
    import torch

    parameters = [parameter for parameter in ground.model().to(ground.device).parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    kinds = {"sgd": lambda: torch.optim.SGD(parameters, 1e-6, momentum=0.9, fused=True)}
    make = kinds.get(config.optimizer, lambda: torch.optim.AdamW(parameters, 1e-6, fused=True))
    return median_of(make().step)


def _scheme_costs(ground: TimedModel, config: Config, profile: Profile, tensors: Mapping[str, TensorTimes]) -> SchemeCosts:
    from psnode.jobs.planning.step_rigs import Exchanging

    scheme = resolve(config)
    settings: dict[str, Any] = {
        "lr": config.lr or scheme.lr,
        "local": None,
        "timeline": True,
        "log_interval": 10**9,
        "hash_every": 0,
    }
    rig = Exchanging(ground, replace(config, **settings), scheme)
    try:
        for _ in range(2):
            rig.step()
            rig.between()
        before = len(rig.spans())
        taken, encoded, served = list[float](), list[float](), list[float]()
        while len(taken) < _STEPS or sum(taken) < _SECONDS:
            taken.append(rig.step())
            begin = time.perf_counter()
            rig.between()
            served.append(time.perf_counter() - begin)
            encoded.append(rig.report.encode)
        spans = _by_group(rig.spans()[before:], len(rig.plan.groups))
        places = rig.plan.slices()
        groups, encode = [], statistics.median(encoded)
        for group in rig.plan.groups:
            inside = [tensors[n] for n, p in places.items() if n in tensors and p.start < group.stop and group.start < p.stop]
            groups.append(
                GroupCosts(
                    rig.gradient_bytes[group.index], rig.weight_bytes[group.index],
                    encode * group.size / rig.plan.size, spans[group.index]["apply"], spans[group.index]["decode"],
                    sum(spans[group.index][name] for name in _UPDATES),
                    max((tensor.ready for tensor in inside), default=0.0), min((tensor.needed for tensor in inside), default=0.0),
                )
            )  # fmt: skip
        handled = sum(group.decode + group.update for group in groups)
        bookkeeping = max(0.0, statistics.median(served) - handled) / (len(groups) + 1)
        doubt = doubt_of(scheme, config.optimizer)
        lossy = not UNCODED.issuperset(spec.partition(":")[0] for spec in (scheme.codec, scheme.downlink))
        costs = SchemeCosts(tuple(groups), bookkeeping, 0.0, lossy, doubt or measured_cost(scheme, config.optimizer), bool(doubt))
        return replace(costs, extra=max(0.0, statistics.median(taken) - step_without_links(profile, costs)))
    finally:
        rig.close()


def _by_group(spans: Sequence[Mapping[str, Any]], groups: int) -> list[dict[str, float]]:
    """Return for each group the median seconds of every kind of span."""
    found: list[dict[str, list[float]]] = [defaultdict(list) for _ in range(groups)]
    for span in spans:
        if "group" in span["args"]:
            found[span["args"]["group"]][span["name"]].append(1e-6 * span["dur"])
    return [defaultdict(float, {name: statistics.median(each) for name, each in own.items()}) for own in found]
