"""`psnode bench step`: the duration of a training step on one host under several schemes, relative to the passes alone.

One process runs everything in turn, a few steps of each kind in every round. The kind `none` is the forward and backward passes
alone. The kind of a scheme is a worker's full step under this scheme: it decodes and adds the change of the weights, runs the
passes, and ends with the gradient's payload on the host. A master in the same process decodes, updates and codes changes
between the steps; this is not timed. There is no network, so the difference between a scheme and `none` is the cost of coding
on the worker. With a device, one further step counts the bytes that are copied between device and host.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from psnode.bench.contest.contenders import Psnode
from psnode.bench.gpu import cuda
from psnode.bench.hardware import hardware
from psnode.bench.saving import save
from psnode.bench.yardsticks.device_transfers import crossed
from psnode.config.load import load
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

    from psnode.jobs.planning.step_rigs import Alone, Exchanging, TimedModel

NONE = "none"
SCHEMES = (NONE, "dense", "fp16", "qsgd", "topk:ratio=0.005", "atomo")
_LR = 1e-4  # used for all schemes; small, so that the weights change but stay near their first values
_HEADS = (
    "step, ms",
    "least to most",
    "over none",
    "sent, MB",
    "to the host, MB",
    "over sent",
    "received, MB",
    "to the device, MB",
)


class Workload(NamedTuple):
    """A network and a batch of noise images. `shape`: channels, height and width of an image."""

    network: str
    batch: int
    shape: tuple[int, ...]
    classes: int


USUAL = {"cpu": Workload("LeNet", 32, (3, 32, 32), 10), "cuda": Workload("torchvision:resnet50", 64, (3, 224, 224), 1000)}


def run(
    schemes: Sequence[str],
    workload: Workload,
    device: torch.device,
    *,
    coded_there: bool,
    rounds: int,
    steps: int,
    warmup: int,
    threads: int = 1,
    seed: int = 1,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure `none` and `schemes` in `rounds` rounds of `steps` steps each, after `warmup` untimed steps of each.

    The result has a row for each of them. `ms`: the median step time. `rounds`: the median of each round. `ratio`: the median
    over the rounds of each round's median divided by that of `none`. `sent`, `received`: bytes of a step's frames. `down`,
    `up`: bytes copied from device to host and from host to device; None if the driver does not report them. `gradients`,
    `changes`: the places where gradients are coded and where changes of weights are decoded. `on_host`: the reasons for coding
    on the host. Raises ConfigurationError for a scheme that train refuses.
    """
    import torch

    from psnode.jobs.planning.step_rigs import TimedModel
    from psnode.tasks.loading import make_task

    names = [NONE, *(scheme for scheme in schemes if scheme != NONE)]
    settings = {
        "network": workload.network, "dataset": "synthetic", "synthetic_shape": workload.shape, "batch_size": workload.batch,
        "synthetic_classes": workload.classes, "synthetic_examples": workload.batch, "seed": seed, "threads": threads,
        "enable_gpu": coded_there, "log_interval": 10**9, "lr": _LR,
    }  # fmt: skip
    chosen = {name: settings | Psnode(name).settings for name in names if name != NONE}
    used = torch.get_num_threads()
    torch.set_num_threads(threads)
    rigs: dict[str, Alone | Exchanging] = {}
    try:
        ground = TimedModel(make_task(load(settings, {})), workload.batch, device, coded_there=coded_there, seed=seed)
        for name in names:
            rigs[name] = _rig(ground, chosen.get(name))
            _take(rigs[name], warmup)
            tell(f"{name}: ready")
        taken: dict[str, list[list[float]]] = {name: [] for name in names}
        for number in range(rounds):
            for name, rig in rigs.items():
                taken[name].append(_take(rig, steps))
            tell(f"round {number + 1}: " + ", ".join(f"{name} {_ms(taken[name][-1]):.1f} ms" for name in names))
        rows = [_row(name, rig, taken[name], taken[NONE], device) for name, rig in rigs.items()]
    finally:
        for rig in rigs.values():
            rig.close()
        torch.set_num_threads(used)
    found = {**hardware(), "device": _name(device), "torch": torch.__version__, **workload._asdict(), "threads": threads}
    return {**found, "rounds": rounds, "steps": steps, "warmup": warmup, "rows": rows}


def _rig(ground: TimedModel, settings: dict[str, Any] | None) -> Alone | Exchanging:
    from psnode.jobs.planning.step_rigs import Alone, Exchanging

    if settings is None:
        return Alone(ground)
    config = load(settings, {})
    return Exchanging(ground, config, resolve(config))


def _take(rig: Alone | Exchanging, steps: int) -> list[float]:
    """Take `steps` steps, and return the seconds of each."""
    found = []
    for _ in range(steps):
        found.append(rig.step())
        rig.between()
    return found


def _ms(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds)


def _row(
    name: str, rig: Alone | Exchanging, taken: Sequence[Sequence[float]], alone: Sequence[Sequence[float]], device: torch.device
) -> dict[str, Any]:
    """Return the figures of a row. This takes one more step, to count the bytes that are copied between device and host."""
    found = crossed(rig.step, device)
    rig.between()
    return {
        "scheme": name,
        "ms": _ms([seconds for each in taken for seconds in each]),
        "rounds": [_ms(each) for each in taken],
        "ratio": statistics.median(_ms(each) / _ms(floor) for each, floor in zip(taken, alone, strict=True)),
        "sent": rig.sent,
        "received": rig.received,
        "down": None if found is None else found.down,
        "up": None if found is None else found.up,
        "gradients": rig.gradients.place if name != NONE else "",
        "changes": rig.changes.place if name != NONE else "",
        "on_host": list(rig.on_host),
    }


def _name(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page for docs/results."""
    lines = [
        f"{result['date']}, {result['cpu']}, {result['cores']} cores, {result['threads']} for torch; device: {result['device']}; "
        f"torch {result['torch']}. {result['network']}, batches of {result['batch']} x {'x'.join(map(str, result['shape']))}; "
        f"{result['rounds']} rounds of {result['steps']} steps.",
        "",
        f"| scheme | {' | '.join(_HEADS)} | gradients coded | changes decoded |",
        "|---|" + "---:|" * len(_HEADS) + "---|---|",
    ]
    for row in result["rows"]:
        spread = f"{min(row['rounds']):.1f} to {max(row['rounds']):.1f}"
        over = f"{row['down'] / row['sent']:.3f}" if row["down"] and row["sent"] else ""
        cells = [
            f"{row['ms']:.1f}",
            spread,
            f"{row['ratio']:.3f}",
            _mb(row["sent"]),
            _mb(row["down"]),
            over,
            _mb(row["received"]),
        ]
        lines.append(f"| {row['scheme']} | {' | '.join(cells)} | {_mb(row['up'])} | {row['gradients']} | {row['changes']} |")
    reasons = list(dict.fromkeys(line for row in result["rows"] for line in row["on_host"]))
    return "\n".join([*lines, *(["", *reasons] if reasons else [])]) + "\n"


def _mb(nbytes: int | None) -> str:
    return "not told" if nbytes is None else f"{nbytes / 1e6:.3f}"


def main(
    schemes: Sequence[str],
    device: str,
    network: str | None,
    batch_size: int | None,
    shape: tuple[int, ...] | None,
    classes: int | None,
    json_file: Path | None,
    **options: int,
) -> int:
    """Measure, print the table, write JSON, and return the exit code. Raises ConfigurationError for a missing device."""
    kind, found = device_of(device)
    usual = USUAL[kind]
    workload = Workload(network or usual.network, batch_size or usual.batch, shape or usual.shape, classes or usual.classes)
    result = run(
        schemes or SCHEMES, workload, found, coded_there=kind == "cuda", **options,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    print(markdown(result))
    save(result, json_file)
    return 0


def device_of(text: str) -> tuple[str, torch.device]:
    """Return the kind (cpu or cuda) and the device that `text` (cpu, cuda or cuda:N) names. Raises ConfigurationError."""
    import torch

    kind, _, number = text.partition(":")
    if text == "cpu":
        return kind, torch.device("cpu")
    if kind != "cuda" or not (number.isdecimal() or text == "cuda"):
        raise ConfigurationError(f"--device {text}: name cpu, cuda or cuda:1")
    return kind, cuda(int(number or 0))
