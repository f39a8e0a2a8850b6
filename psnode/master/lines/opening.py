"""Lines at the start of a run: the model, the workers, the bytes of a step, the directory."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from psnode.codecs import Codec
from psnode.codecs.registry import brief, known_codec
from psnode.config import Config
from psnode.config.amounts import amount, counted
from psnode.config.coding_name import coding_name, is_replaced
from psnode.config.names import DENSE, PASSED
from psnode.config.resolve import resolve
from psnode.config.scheme import Scheme
from psnode.config.scheme_losses import Coded, costs_of
from psnode.config.train_settings import DEFAULT_SCHEME, WITH_BETAS
from psnode.exchange.expected import step_bytes
from psnode.exchange.footprint import Footprint
from psnode.exchange.machine import Machine
from psnode.exchange.routes.topologies import are_parts, is_central, is_plain, sent_by_master, sent_in_a_step, shares_of
from psnode.master.example_dealing import ExampleDealing
from psnode.master.lines.columns import tell
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.protocol.messages import Ready
from psnode.records.checkpoint import MANIFEST
from psnode.records.directory import RunDirectory
from psnode.records.metrics import resident_memory

# codecs that send sparse gradients, signs or low-rank factors
_COARSE = frozenset(
    {"topk", "randk", "graddrop", "adacomp", "entrywise", "fourier", "tbq", "sign", "scaledsign", "onebit", "svd"}
)
_LOG = logging.getLogger(__name__)


def tell_of_the_run(
    run: RunDirectory,
    plan: Plan,
    ready: Mapping[int, Ready],
    workers: Sequence[int],
    dealing: ExampleDealing,
    need: Footprint,
    threads: Mapping[int, int],
) -> None:
    """Log the facts of the run that is about to begin.

    `ready`: the READY message of each rank. `threads`: the number of threads of each rank. `workers`: the ranks that
    compute.
    """
    config, first = run.config, ready[workers[0]]
    rows = _resumed(run, dealing.last_step)
    rows.append(("model", f"{_model(config)}, {counted(plan.size, 'parameter')}, {counted(first.examples, 'example')}"))
    rows.append(("workers", _workers(config, [ready[rank].host for rank in workers], [threads[rank] for rank in workers])))
    rows.append(
        (
            "steps",
            f"{dealing.last_step:,}{'' if dealing.is_whole else ' by --stop-after'}; {dealing.epochs.steps:,} are an epoch",
        )
    )
    rows.append(("scheme", _scheme(run.scheme, config)))
    if doubt := doubt_of(run.scheme, config.optimizer):
        rows.append(("note", doubt))
    elif measured := measured_cost(run.scheme, config.optimizer):
        rows.append(("measured", measured))
    if config.servers:
        ranks = f"rank 0 and {counted(config.servers, 'server')}"
        rows.append(("topology", f"{config.topology}: {ranks} update parts of the weights; the job ends if a server is lost"))
    elif not is_central(config.topology):
        share = "a part of the weights" if are_parts(config.topology) else "all weights"
        who = "rank 0 and every worker update" if shares_of(config.topology, len(workers)).master else "every worker updates"
        ends = "; the job ends if a worker is lost" if are_parts(config.topology) else ""
        rows.append(("topology", f"{config.topology}: {who} {share}{ends}"))
    elif not is_plain(config.topology):
        sets = counted(sent_by_master(config.topology, len(workers)), "worker")
        rows.append(
            ("topology", f"{config.topology}: rank 0 sends the weights to {sets}, and workers pass them on to the others")
        )
    rows.append(("memory", _memory(config, need, len(workers))))
    rows.append(("directory", f"{config.directory}, {_checkpoints(config)}"))
    tell(_LOG, rows)


def doubt_of(scheme: Scheme, optimizer: str) -> str:
    """Return a warning about the scheme's cost in accuracy under `optimizer`; empty if there is no reason for a warning.

    The warning gives the largest notable cost that was measured with this scheme. If no notable cost was measured, there is a
    warning if the codec sends sparse gradients, signs or low-rank factors and the optimizer is a variant of Adam.
    """
    usual, coder = resolve(Config(optimizer=optimizer)), known_codec(scheme.codec)
    name = f"--codec {brief(coder)}" if is_replaced(scheme.name, coder) else scheme.name
    found = [cost for cost in costs_of(_coded(scheme), optimizer) if cost.is_notable]
    if found:
        worst = found[0]
        better = [cost for cost in costs_of(_coded(usual), optimizer) if cost.cell == worst.cell and cost.mean < worst.mean]
        advice = f"; --scheme {usual.name}, the default, {better[0].mean:.1f}" if better else ""
        return f"{name} under {optimizer} cost {worst}{advice} (docs/choosing.md)"
    if optimizer not in WITH_BETAS or not _COARSE.intersection(_stages(coder)):
        return ""
    return (
        f"{name} under {optimizer}: topk, onebit, efsignsgd and atomo cost a small transformer under adamw accuracy; "
        f"--scheme {DEFAULT_SCHEME}, the default, cost it least of all that send as little (docs/choosing.md)"
    )


def measured_cost(scheme: Scheme, optimizer: str) -> str:
    """Return a text with the range of the measured differences between the scheme and dense; "" if nothing was measured.

    Only measurements with the same kind of optimizer as `optimizer` count.
    """
    found = sorted((cost for cost in costs_of(_coded(scheme), optimizer) if cost.run != DENSE), key=lambda cost: cost.mean)
    parts = []
    for by_loss, name, unit in ((True, "loss", "%"), (False, "accuracy", "points")):
        own = [cost for cost in found if cost.by_loss == by_loss]
        if own:
            ends = dict.fromkeys(f"{round(cost.mean if by_loss else -cost.mean, 1) + 0.0:+.1f}" for cost in (own[0], own[-1]))
            models = ", ".join(dict.fromkeys(cost.model for cost in own))
            parts.append(f"{name} {' to '.join(ends)} {unit} on {models}")
    return f"beside dense, {'; '.join(parts)} (docs/choosing.md)" if parts else ""


def _stages(codec: Codec) -> list[str]:
    return [stage.id for stage in codec.spec.stages]


def _coded(scheme: Scheme) -> Coded:
    downlink = DENSE if scheme.downlink == DENSE else repr(known_codec(scheme.downlink))
    return repr(known_codec(scheme.codec)), scheme.feedback, downlink, scheme.downlink_lead


def tell_of_the_bytes(coding: Coding, workers: int, topology: str) -> None:
    """Log the expected bytes of a step of `workers` workers.

    Compile the kernels before this call, since the call encodes samples.
    """
    up, down = sent_in_a_step(topology, workers, *step_bytes(coding))
    dense = 4.0 * coding.plan.size * workers
    times = 2 * dense / (up + down) if up + down else 1.0
    ratio = f" ({times:.0f} x)" if times >= 9.5 else f" ({times:.1f} x)" if times >= 1.05 else ""
    weights = amount(down) if down else "nothing"
    tell(_LOG, [("a step", f"about {amount(up)} up, {weights} down; float32 {amount(dense)} each{ratio}")])


def _resumed(run: RunDirectory, last: int) -> list[tuple[str, str]]:
    if not run.config.resume:
        return []
    found = run.resume_point.checkpoint
    if found is None:
        return [("resumed", f"at the beginning: {run.config.directory} has no checkpoint yet")]
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime((found.path / MANIFEST).stat().st_mtime))
    return [("resumed", f"after step {found.step:,} of {last:,}; checkpoint of {written}")]


def _model(config: Config) -> str:
    if config.task is None:
        return f"{config.network} on {config.dataset}"
    return config.task.removeprefix(PASSED) if config.task.startswith(PASSED) else Path(config.task).name


def _workers(config: Config, hosts: Sequence[str], threads: Sequence[int]) -> str:
    fewest, most = min(threads), max(threads)
    each = f"{'' if fewest == most else f'{fewest} to '}{counted(most, 'thread')} each"
    on = "this host" if set(hosts) == {Machine.here().host} else counted(len(set(hosts)), "host")
    device = "CUDA where there is a device" if config.enable_gpu else "CPU"
    factors = [len(hosts), *([config.batches_per_step] if config.batches_per_step > 1 else []), config.batch_size]
    if config.batch_size == 1 and (config.task or "").startswith(PASSED):  # the batch size of a program's own loop may be unknown
        return f"{len(hosts)}; {on}, {device}, {each}"
    batch = f"{' x '.join(map(str, factors))} = {counted(math.prod(factors), 'example')} a step"
    return f"{batch}; {on}, {device}, {each}"


def _scheme(scheme: Scheme, config: Config) -> str:
    down = DENSE if scheme.downlink == DENSE else brief(known_codec(scheme.downlink))
    down = down if config.sends_weights else "none"
    feedback = "" if scheme.feedback == "none" else f" with feedback {scheme.feedback}"
    name = coding_name(scheme.name, scheme.codec, replaced=bool(config.codec))
    return f"{name}, lr {config.lr:g}; up {brief(known_codec(scheme.codec))}{feedback}; down {down}"


def _memory(config: Config, need: Footprint, workers: int) -> str:
    """Return a text about the expected memory of the master and of a worker.

    It is the memory that this process uses now, with libraries and model, plus the vectors of the exchange.
    """
    now = resident_memory() or 0
    beside = "" if now else " beside the libraries and the model"
    master, worker = now + need.master_bytes, now + need.worker_bytes
    if config.local is not None:
        together = master + workers * need.worker_bytes + config.servers * need.server_bytes
        return f"about {amount(together)} in this process{beside}, and activations"
    server = f"{amount(now + need.server_bytes)} a server, " if config.servers else ""
    return f"about {amount(master)} for the master, {server}{amount(worker)} and activations a worker{beside}"


def _checkpoints(config: Config) -> str:
    every = [f"{config.eval_freq} steps"] if config.eval_freq else []
    every += [f"{config.checkpoint_minutes:g} minutes"] if config.checkpoint_minutes else []
    often = f"a checkpoint every {' or '.join(every)}" if every else "a checkpoint at the end"
    return f"{often}, the last {config.keep_last} kept" if config.keep_last else often
