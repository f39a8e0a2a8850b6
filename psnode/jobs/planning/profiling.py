"""Measurement of a profile on this host: the passes of a model, and the work of a worker and the master under each scheme."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psnode.config import Config
from psnode.config.cores import usable_cores
from psnode.config.names import PASSED
from psnode.config.resolve import resolve
from psnode.config.train_settings import WITH_BETAS
from psnode.jobs.planning.ddp_hooks import optimizer_of
from psnode.jobs.planning.ddp_overhead import overheads
from psnode.jobs.planning.ddp_step import HOOKS
from psnode.jobs.planning.host_prices.fixed_costs import fixed_costs
from psnode.jobs.planning.host_prices.gloo_costs import RingCosts, ring_costs
from psnode.jobs.planning.host_prices.host_costs import CoreRates, add_cost, all_seconds, core_rates, median_seconds, socket_costs
from psnode.jobs.planning.host_prices.mpi_costs import FrameCosts, frame_costs
from psnode.jobs.planning.job_step import step_without_links
from psnode.jobs.planning.profile import FixedCosts, GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.master.lines.opening import doubt_of, measured_cost
from psnode.plans.coding import loses
from psnode.plans.groups import IDENTITY, Plan
from psnode.plans.plan_file import stated_settings
from psnode.plans.rule import grouping_of

if TYPE_CHECKING:
    import torch

    from psnode.jobs.planning.step_rigs import Alone, TimedModel
    from psnode.task import Task
    from psnode.worker.computation import Computation

_STEPS, _SECONDS = 7, 1.0  # minimum steps of a measurement, and minimum seconds
_MOST = 99  # durations that a profile holds; an odd number, so that one of them is the median
_PASSES = 5  # number of passes, of which the pass with the median duration counts
_UPDATES = ("finish", "norm", "protect", "update", "constrain", "average", "downlink")  # the master's spans that close a group


def measure(
    config: Config,
    schemes: Mapping[str, Config],
    tell: Callable[[str], None] = lambda line: None,
    *,
    ranks: int = 1,
    task: Task | None = None,
    device: torch.device | None = None,
    in_job: bool = False,
    host: HostCosts | None = None,
    plans: Mapping[str, Plan] | None = None,
) -> Profile:
    """Return the profile of the model that `config` trains. `schemes`: the runs to measure, by the flags of their schemes.

    Batches are those of training, but nothing is trained. If a step has several batches, the measured forward pass includes
    all passes before the last backward pass. `ranks`: the number of ranks that share a host. They divide its cores unless
    --threads is set. `task` replaces the task that `config` names, and `device` replaces the device that `config` selects.
    `in_job`: True if this process is a rank of a job. It then starts no other process, so the costs of MPI, of DDP and of
    crowded cores are not measured. `host`: the costs of this host if they are known; they and DDP are then not measured.
    `plans`: the plans that schemes follow, by their flags; schemes without one have that of the rule. Raises
    ConfigurationError for settings that train would refuse.
    """
    import torch

    from psnode.jobs.planning.step_rigs import Alone, TimedModel
    from psnode.tasks.data.given import data_of
    from psnode.tasks.device import choose_device
    from psnode.tasks.loading import make_task

    used, threads = torch.get_num_threads(), config.threads or max(1, usable_cores() // ranks)
    torch.set_num_threads(threads)
    try:
        tell("passes")
        there = config.enable_gpu
        device = device or choose_device(there)
        task = task or make_task(config)
        data = data_of(task.train_data(), replace(config, data_workers=0), steps=task.steps_per_epoch)
        ground = TimedModel(task, config.batch_size, device, coded_there=there, seed=config.seed, data=data)
        alone = Alone(ground)
        taken = all_seconds(alone.step, _SECONDS)
        whole = statistics.median(taken)
        durations = _of_steps(taken, config.batches_per_step)
        tensors, forward = tensor_times(ground, whole)
        if host is None:
            tell("this host" if in_job else "this host and DDP")
        # forks have no threads of torch, and the other cores are idle only if the passes use a single core
        forks = threads == 1 and ground.device.type == "cpu" and not in_job
        costs = host or replace(_host_costs(alone if forks else None, whole, in_job=in_job), durations=durations)
        added = {} if in_job or host else overheads(ground, HOOKS, alone.step, _SECONDS / 2)
        profile = Profile(
            config.network if config.task is None else config.task.removeprefix(PASSED), threads, forward, whole - forward,
            _optimizer_seconds(ground, config), tuple(sorted(tensors.values(), key=lambda tensor: tensor.ready)),
            costs, {}, added, config.optimizer in WITH_BETAS,
        )  # fmt: skip
        found = {}
        for flags, chosen in schemes.items():
            tell(flags)
            found[flags] = _scheme_costs(ground, chosen, profile, tensors, alone, (plans or {}).get(flags))
        earlier = (config.batches_per_step - 1) * profile.passes  # passes before the last one, during which nothing is sent
        return replace(profile, forward=profile.forward + earlier, schemes=found)
    finally:
        torch.set_num_threads(used)


def _host_costs(alone: Alone | None, whole: float, *, in_job: bool) -> HostCosts:
    """Return the costs of this host, without durations.

    `alone`: passes, which take `whole` seconds, with which the rates of shared cores are measured; None not to measure them.
    """
    send, receive = socket_costs()
    rates = CoreRates() if alone is None else core_rates(alone.step, max(_SECONDS / 2, 2 * whole))
    frame, ring = (FrameCosts(), RingCosts()) if in_job else (frame_costs(), ring_costs())
    return HostCosts(
        send, receive, frame.message, add_cost(), usable_cores(), rates.crowded, frame.byte, *ring, turns=rates.turns
    )


def _of_steps(taken: Sequence[float], batches: int) -> tuple[float, ...]:
    """Return durations of the passes of steps, as at most _MOST quantiles. `taken`: the durations of passes over a batch.

    Each step has `batches` batches, whose durations are drawn from `taken` independently.
    """
    import numpy as np

    steps = np.array(taken) if batches == 1 else np.random.default_rng(0).choice(taken, (_MOST**2, batches)).sum(axis=1)
    count = min(len(taken), _MOST)
    return tuple(np.quantile(steps, (np.arange(count) + 0.5) / count, method="hazen").tolist())


def tensor_times(ground: TimedModel, whole: float) -> tuple[dict[str, TensorTimes], float]:
    """Return the times of the trainable tensors by name, and the seconds of the forward pass.

    Both passes are measured with hooks, which slow them down. The times are then scaled so that the passes together take
    `whole`, the seconds without hooks.
    """
    from psnode.exchange.flat_model import trainable
    from psnode.worker.backward_hooks import finish_times

    model = ground.model().to(ground.device)
    computation = ground.computation(model)
    computation.run(0, [ground.batch], None)
    needed, forward = first_uses(ground, model, computation)
    tensors = trainable(model)
    found = [finish_times(tensors, lambda watch: computation.run(0, [ground.batch], watch)).seconds for _ in range(_PASSES)]
    ready = sorted(found, key=lambda seconds: max(seconds.values()))[_PASSES // 2]
    scale = whole / (forward + max(ready.values()))
    return {
        name: TensorTimes(tuple(tensor.shape), scale * ready[name], scale * needed.get(name, 0.0), name)
        for name, tensor in tensors.items()
    }, scale * forward


def first_uses(ground: TimedModel, model: torch.nn.Module, computation: Computation) -> tuple[dict[str, float], float]:
    """Return the time of each parameter's first use, by name, and the duration of the forward pass, both in seconds.

    Times are counted from the beginning of the forward pass. A parameter counts as used when its module is called. Parameters
    of modules that are never called are left out.
    """
    from psnode.tasks import tensor_names

    names = {id(parameter): name for name, parameter in tensor_names.parameters(model)}
    uses: dict[str, float] = {}
    begin = 0.0

    def note(module: torch.nn.Module, inputs: Any) -> None:
        for parameter in module.parameters(recurse=False):
            uses.setdefault(names[id(parameter)], time.perf_counter() - begin)

    handles = [module.register_forward_pre_hook(note) for module in model.modules()]
    try:
        found = []
        for _ in range(_PASSES):
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


def _optimizer_seconds(ground: TimedModel, config: Config) -> float:
    """Return the seconds of a step of torch's fused optimizer, which a training under DDP would use.

    An optimizer other than SGD, Adam and AdamW is not compared with DDP, and counts as AdamW.
    """
    import torch

    parameters = [parameter for parameter in ground.model().to(ground.device).parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    kind = config.optimizer if config.optimizer in ("sgd", "adam", "adamw") else "adamw"
    momentum = 0.9 if config.momentum is None else config.momentum
    return median_seconds(optimizer_of(replace(config, optimizer=kind, lr=1e-6, momentum=momentum), parameters, fused=True).step)


def _scheme_costs(
    ground: TimedModel, config: Config, profile: Profile, tensors: Mapping[str, TensorTimes], alone: Alone, plan: Plan | None
) -> SchemeCosts:
    from psnode.jobs.planning.step_rigs import Exchanging

    scheme = resolve(config)
    settings: dict[str, Any] = {
        "lr": config.lr or scheme.lr,
        "local": None,
        "timeline": True,
        "log_interval": 10**9,
        "hash_every": 0,
    }
    rig = Exchanging(ground, replace(config, **settings), scheme, plan)
    try:
        for _ in range(2):
            rig.step()
            rig.between()
        before = len(rig.spans())
        taken, passes = list[float](), list[float]()
        encoded, served, handled = list[float](), list[float](), [_handled(rig.spans())]
        while len(taken) < _STEPS or sum(taken) < _SECONDS:
            passes.append(alone.step())
            taken.append(rig.step())
            begin = time.perf_counter()
            rig.between()
            served.append(time.perf_counter() - begin)
            handled.append(_handled(rig.spans()))
            encoded.append(rig.report.encode)
        spans = _by_group(rig.spans()[before:], len(rig.plan.groups))
        places = rig.plan.slices()
        groups, encode = [], statistics.median(encoded)
        for group in rig.plan.groups:
            inside = [tensors[n] for n, p in places.items() if n in tensors and p.start < group.stop and group.start < p.stop]
            coded = sum(segment.size for segment in group.segments if segment.codec != IDENTITY)
            groups.append(
                GroupCosts(
                    rig.gradient_bytes[group.index], rig.weight_bytes[group.index],
                    encode * group.size / rig.plan.size, spans[group.index]["apply"], spans[group.index]["decode"],
                    sum(spans[group.index][name] for name in _UPDATES),
                    max((tensor.ready for tensor in inside), default=0.0), min((tensor.needed for tensor in inside), default=0.0),
                    coded, group.size - coded,
                )
            )  # fmt: skip
        bookkeeping = _bookkeeping(served, handled, len(groups) + 1)
        doubt = doubt_of(scheme, config.optimizer)
        lossy = loses(scheme.codec) or loses(scheme.downlink)
        costs = SchemeCosts(
            tuple(groups), bookkeeping, 0.0, lossy, doubt or measured_cost(scheme, config.optimizer), bool(doubt),
            stated_settings(config), rig.plan.to_dict(), grouping_of(config),
            FixedCosts() if config.enable_gpu else fixed_costs(scheme),
        )  # fmt: skip
        return replace(costs, extra=_added(taken, passes, step_without_links(profile, costs) - profile.passes))
    finally:
        rig.close()


def _handled(spans: Sequence[Mapping[str, Any]]) -> float:
    """Return the sum of the seconds in which the master decoded or updated groups, over `spans`."""
    return float(sum(1e-6 * span["dur"] for span in spans if "group" in span["args"] and span["name"] in ("decode", *_UPDATES)))


def _bookkeeping(served: Sequence[float], handled: Sequence[float], frames: int) -> float:
    """Return the seconds of the master's other work for each frame. A step has `frames` frames.

    `served`: by step, the seconds from the gradient to the weights. `handled`: the results of `_handled` before the first
    step and after each step. For every step, the work on groups is subtracted from the whole time, and the median of these
    differences is used. The difference of two medians would be wrong, because a disturbance makes both times of a step
    longer.
    """
    rests = [whole - (after - before) for whole, (before, after) in zip(served, itertools.pairwise(handled), strict=True)]
    return max(0.0, statistics.median(rests)) / frames


def _added(taken: Sequence[float], passes: Sequence[float], known: float) -> float:
    """Return the median of the seconds that a scheme adds to a step, besides the `known` seconds of its work.

    `taken`: the seconds of steps under the scheme. `passes`: the seconds of the passes without a scheme, measured immediately
    before each of these steps, so that a change of the machine's speed affects both.
    """
    return max(0.0, statistics.median(step - alone - known for step, alone in zip(taken, passes, strict=True)))


def _by_group(spans: Sequence[Mapping[str, Any]], groups: int) -> list[dict[str, float]]:
    """Return, for each group, the median seconds of its spans by their name."""
    found: list[dict[str, list[float]]] = [defaultdict(list) for _ in range(groups)]
    for span in spans:
        if "group" in span["args"]:
            found[span["args"]["group"]][span["name"]].append(1e-6 * span["dur"])
    return [defaultdict(float, {name: statistics.median(each) for name, each in own.items()}) for own in found]
