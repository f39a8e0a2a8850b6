"""`python -m studies.liars`: accuracy if one worker sends false gradients, with several defences of the master.

The last worker lies: hooks on its parameters replace every gradient g before psnode gets it. So this worker sends valid
payloads with false gradients, and reports true losses. d is the number of values of a tensor. All runs are `psnode train
--local P` in this process.

    flip      -g
    x100      100 g
    x-10      -10 g
    noise     g + 10 ||g|| n / sqrt(d), n ~ N(0, 1), tensor by tensor
    replay    the first gradient in every step
    3e38      g with 3e38 as the first value of every tensor
    bit       g with the highest exponent bit of every tensor's largest value flipped
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import statistics
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnode.bench.saving import save
from psnode.config import Config
from psnode.config.declaration import ABSENT, option
from psnode.errors import DivergedError, NonFiniteGradientError, PsnodeError
from psnode.records import checkpoint
from psnode.records.metrics import METRICS, read_records
from psnode.task import Batch
from psnode.tasks.classification import Classification
from studies.harness import Column, Found, Result, Row, Study, main

if TYPE_CHECKING:
    import torch

    Gradient = torch.Tensor
    Lie = Callable[[torch.Tensor], torch.Tensor]

HONEST = "none"
LIES = ("flip", "x100", "x-10", "noise", "replay", "3e38", "bit")
DEFENCES: Mapping[str, dict[str, Any]] = {
    "mean": {"norm_cap": 0.0},
    "default": {},
    "cap": {"norm_cap": 10.0},
    "clip": {"norm_cap": 0.0, "aggregator": "mean:clip=median"},
    "clip+cap": {"norm_cap": 10.0, "aggregator": "mean:clip=median"},
}
_NOISE = 10.0


class Lying(Classification):
    """Image classification in a job of threads.

    The worker `liar` sends the results of the function `lie` instead of its gradients.
    """

    def __init__(self, lie: str, liar: int, network: str, dataset: str, seed: int) -> None:
        super().__init__(network, dataset, seed=seed)
        self._lie, self._liar, self._seed = lie, f"worker-{liar}", seed
        self._lying = set[int]()  # models that have the hooks

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        if threading.current_thread().name == self._liar and id(model) not in self._lying:
            self._lying.add(id(model))
            for index, parameter in enumerate(model.parameters()):
                parameter.register_hook(lie_of(self._lie, self._seed + index))  # type: ignore[no-untyped-call]
        return super().loss(model, batch)


def lie_of(name: str, seed: int) -> Lie:
    """Return the function that turns a gradient into the lie `name`. `seed` determines the noise."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    first: list[torch.Tensor] = []

    def noisy(gradient: torch.Tensor) -> torch.Tensor:
        length = _NOISE * float(gradient.norm()) / math.sqrt(gradient.numel())
        return gradient + length * torch.randn(gradient.shape, generator=generator)

    def replayed(gradient: torch.Tensor) -> torch.Tensor:
        if not first:
            first.append(gradient.clone())
        return first[0].clone()

    def huge(gradient: torch.Tensor) -> torch.Tensor:
        changed = gradient.clone()
        changed.view(-1)[0] = 3e38
        return changed

    def flipped(gradient: torch.Tensor) -> torch.Tensor:
        changed = gradient.contiguous().clone()
        changed.view(torch.int32).view(-1)[int(changed.abs().argmax())] ^= 1 << 30
        return changed

    lies: dict[str, Lie] = {
        HONEST: lambda gradient: gradient,
        "flip": lambda gradient: -gradient,
        "x100": lambda gradient: 100 * gradient,
        "x-10": lambda gradient: -10 * gradient,
        "noise": noisy,
        "replay": replayed,
        "3e38": huge,
        "bit": flipped,
    }
    return lies[name]


def trial(settings: Mapping[str, Any], lie: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train and evaluate once, and return the result. If `folder` already has the result, return that.

    The result has `top1` (None if the run ended without an accuracy), and the median seconds `step` of a step and `decode` of
    its decoding.
    """
    from psnode.jobs.job import run

    done = folder / "trial.json"
    if done.exists():
        return dict(json.loads(done.read_bytes()))
    shutil.rmtree(folder, ignore_errors=True)
    config = Config(train_dir=folder / "run", seed=seed, tensorboard=False, eval_freq=0, log_interval=10**9, **settings)
    task = Lying(lie, config.local or 0, config.network, config.dataset, seed)
    found: dict[str, Any] = {"top1": None}
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            code = run(config, task)
            found["top1"] = accuracy(task, folder / "run")
        except (DivergedError, NonFiniteGradientError) as error:
            code, found["ended"] = 0, str(error)
    if code:
        raise PsnodeError(f"a run was stopped before its last step (exit code {code}): give the same command again")
    records = list(read_records(folder / "run" / METRICS))
    for name in ("step", "decode"):
        found[name] = statistics.median(record["seconds"][name] for record in records) if records else None
    save(found, done)
    shutil.rmtree(folder / "run")
    return found


def accuracy(task: Classification, folder: Path) -> float:
    """Return the share of test examples that the last weights of a run classify correctly."""
    import torch

    from psnode.evaluator import evaluate

    newest = checkpoint.complete(folder)[-1]
    model = task.model()
    model.load_state_dict(checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL))
    return float(evaluate(task, model, task.eval_data(), 0, 1000, torch.device("cpu")).top1 or 0.0)


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.liars`."""

    network: str = option("FC", "Same as for train.")
    scheme: str = option("dense", "Same as for train.")
    workers: int = option(4, "Workers; the last one lies.", minimum=2, aliases=("-n",))
    steps: int = option(400, "Steps of each run.", minimum=1)
    defence: tuple[str, ...] = option(tuple(DEFENCES), "Repeat.", choices=tuple(DEFENCES), repeated=True)
    lie: tuple[str, ...] = option(LIES, "Repeat.", choices=LIES, repeated=True)
    seed: tuple[int, ...] = option((1, 2, 3), "Repeat.", minimum=0, repeated=True)
    output: Path = option(ABSENT, "Directory for the runs; those there are kept.")


def measure(options: Options) -> Found:
    """Return a row per lie.

    For every defence it has the accuracies of all seeds, and the median times of a step and of decoding.
    """
    settings = {
        "network": options.network, "dataset": "digits", "scheme": options.scheme, "local": options.workers,
        "max_steps": options.steps, "threads": 1,
    }  # fmt: skip
    lies = (HONEST, *options.lie)
    rows = [{"lie": lie} | {defence: _cell(options, settings, lie, defence) for defence in options.defence} for lie in lies]
    return Found(rows, {"settings": settings})


def _cell(options: Options, settings: Mapping[str, Any], lie: str, defence: str) -> dict[str, Any]:
    given = {**settings, **DEFENCES[defence]}
    found = [trial(given, lie, seed, options.output / f"{lie}-{defence}-{seed}") for seed in options.seed]
    times = {name: [each[name] for each in found if each[name] is not None] for name in ("step", "decode")}
    medians = {name: statistics.median(values) if values else None for name, values in times.items()}
    return {"all_top1": [each["top1"] for each in found], **medians}


def _columns(result: Result) -> list[Column]:
    """Return a column per defence: the mean accuracy in per cent, with the least accuracy in parentheses."""

    def cell(defence: str) -> Callable[[Row], str]:
        return lambda row: _accuracies(row[defence]["all_top1"])

    return [Column("lie", "{lie}", left=True), *(Column(defence, cell(defence)) for defence in result["defence"])]


def _accuracies(values: Sequence[float | None]) -> str:
    """Return as text the mean and the least of the known accuracies, and the number of runs without an accuracy."""
    known = [100 * value for value in values if value is not None]
    ended = f"ended {len(values) - len(known)} of {len(values)}" if len(known) < len(values) else ""
    return "; ".join(part for part in (f"{statistics.fmean(known):.1f} ({min(known):.1f})" if known else "", ended) if part)


def _head(result: Result) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in result["settings"].items())
    legend = "Test accuracy in per cent: mean over the seeds (the least). Ended: that many of them ended without a model."
    return f"{settings}; seeds {result['seed']}. {legend}"


def _foot(result: Result) -> str:
    honest = result["rows"][0]
    times = [
        f"{name} {1e3 * honest[name]['step']:.1f}, {1e3 * honest[name]['decode']:.2f}"
        for name in result["defence"]
        if honest[name]["step"]
    ]
    return f"Milliseconds of a step, and of the master's decoding in it: {'; '.join(times)}."


STUDY = Study(Options, measure, _columns, _head, _foot)


if __name__ == "__main__":
    sys.exit(main(STUDY))
