"""`psnode bench liars`: the accuracy with one worker whose gradients are lies, under several defences of the master.

The last of the workers lies: hooks on its parameters replace every gradient before psnode sees it. It pushes a valid
payload of a wrong gradient, and the losses that it reports are true. All runs are `psnode train --local P` in this process.

    flip      -g
    x100      100 g
    x-10      -10 g
    noise     g + 10 ||g|| n / sqrt(d), n ~ N(0, 1), tensor by tensor
    replay    the first gradient, in every step
    3e38      g, and 3e38 in the place of the first value of every tensor
    bit       g, and the highest bit of the exponent of every tensor's largest value flipped
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnode.bench.hardware import hardware
from psnode.bench.saving import save
from psnode.config import Config
from psnode.errors import DivergedError, NonFiniteGradientError, PsnodeError
from psnode.records import checkpoint
from psnode.records.metrics import METRICS, read_records
from psnode.task import Batch
from psnode.tasks.classification import Classification

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
    """Image classification whose worker `liar`, in a job of threads, sends the results of `lie` instead of its gradients."""

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
    """Function that makes the lie from a gradient; noise is drawn by `seed`."""
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
    """Train and evaluate once, unless `folder` holds the result: `top1` (None: the run ended without), median seconds a step."""
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
    """The share of test examples that the last weights of a run get right."""
    import torch

    from psnode.evaluator import evaluate

    newest = checkpoint.complete(folder)[-1]
    model = task.model()
    model.load_state_dict(checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL))
    return float(evaluate(task, model, task.eval_data(), 0, 1000, torch.device("cpu")).top1 or 0.0)


def measure(
    settings: Mapping[str, Any], defences: Sequence[str], lies: Sequence[str], seeds: Sequence[int], output: Path
) -> list[dict[str, Any]]:
    """A row for every lie and defence: the accuracies of all `seeds` and the median seconds of a step and of its decoding."""
    rows = []
    for lie in (HONEST, *lies):
        for defence in defences:
            found = [trial({**settings, **DEFENCES[defence]}, lie, seed, output / f"{lie}-{defence}-{seed}") for seed in seeds]
            times = {name: [each[name] for each in found if each[name] is not None] for name in ("step", "decode")}
            row: dict[str, Any] = {"lie": lie, "defence": defence, "all_top1": [each["top1"] for each in found]}
            rows.append(row | {name: statistics.median(values) if values else None for name, values in times.items()})
    return rows


def markdown(result: Mapping[str, Any]) -> str:
    """The result as a page for docs/results: accuracies in per cent, mean (least), by lie and defence."""
    cells = {(row["lie"], row["defence"]): row for row in result["rows"]}
    defences = list(dict.fromkeys(row["defence"] for row in result["rows"]))
    lines = [f"| lie | {' | '.join(defences)} |", f"|---|{'---:|' * len(defences)}"]
    for lie in dict.fromkeys(row["lie"] for row in result["rows"]):
        lines.append(f"| {lie} | {' | '.join(_cell(cells[lie, defence]['all_top1']) for defence in defences)} |")
    times = "; ".join(f"{name} {1e3 * row['step']:.1f}, {1e3 * row['decode']:.2f}" for name in defences
                      if (row := cells[HONEST, name])["step"])  # fmt: skip
    settings = ", ".join(f"{name} {value}" for name, value in result["settings"].items())
    head = f"{result['date']}, {result['cpu']}, {result['cores']} cores; {settings}; seeds {result['seeds']}"
    legend = (
        "Test accuracy in per cent: mean over the seeds (the least). Ended: in so many of them the job ended without a model."
    )
    return (
        f"{head}\n\n{legend}\n\n"
        + "\n".join(lines)
        + f"\n\nMilliseconds of a step, and of the master's decoding in it: {times}\n"
    )


def _cell(values: Sequence[float | None]) -> str:
    """Mean and least of the values that are there."""
    known = [100 * value for value in values if value is not None]
    ended = f"ended {len(values) - len(known)} of {len(values)}" if len(known) < len(values) else ""
    return "; ".join(part for part in (f"{statistics.fmean(known):.1f} ({min(known):.1f})" if known else "", ended) if part)


def main(
    network: str,
    scheme: str,
    workers: int,
    steps: int,
    defences: Sequence[str],
    lies: Sequence[str],
    seeds: Sequence[int],
    output: Path,
    json_file: Path | None,
    markdown_file: Path | None,
) -> int:
    """Measure, print the table, write it; the exit code."""
    settings = {"network": network, "dataset": "digits", "scheme": scheme, "local": workers, "max_steps": steps, "threads": 1}
    rows = measure(settings, defences or tuple(DEFENCES), lies or LIES, seeds, output)
    result = {**hardware(), "settings": settings, "seeds": list(seeds), "rows": rows}
    print(markdown(result))
    save(result, json_file)
    if markdown_file is not None:
        markdown_file.write_text(markdown(result))
    return 0
