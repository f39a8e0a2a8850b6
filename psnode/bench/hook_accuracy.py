"""`psnode bench hooks`: test accuracy of DDP with several communication hooks after the same number of steps.

The processes run on this host with one thread each, and communicate by gloo over the loopback interface. The learning rate falls
along half a cosine. Shards, batches and seeds are the same for all hooks. For the time of a step on links of a given rate, see
`psnode bench peers`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from psnode.bench.contest.contender_run import accuracies
from psnode.bench.contest.contenders import SharedSettings
from psnode.bench.contest.ddp_process import ProcessSettings
from psnode.bench.contest.local_processes import run_processes
from psnode.bench.hardware import hardware
from psnode.bench.saving import save
from psnode.config.plain_json import to_json
from psnode.jobs.planning.ddp_hooks import Communication

HOOKS = ("fp32", "fp16", "powersgd:rank=2", "psnode:topk:ratio=0.005+fp16")


def run(ground: SharedSettings, hooks: Sequence[str], seeds: Sequence[int], seconds: float = 3600.0) -> dict[str, Any]:
    """Return a row for each hook: `top1`, the test accuracy for each seed; `mean`, their mean; and `behind`.

    `behind` is the distance of the mean from the first hook's mean, in percentage points. Raises ConfigurationError for an
    unknown hook, and TransportError if a process fails.
    """
    for hook in hooks:
        Communication.parse(hook)
    rows: list[dict[str, Any]] = []
    for hook in hooks:
        found = [_accuracy(replace(ground, seed=seed), hook, seconds) for seed in seeds]
        rows.append({"hook": hook, "top1": found, "mean": statistics.fmean(found)})
        print(f"{hook}: {', '.join(f'{100 * each:.2f}' for each in found)} %", file=sys.stderr, flush=True)
    for row in rows:
        row["behind"] = 100 * (rows[0]["mean"] - row["mean"])
    return {**hardware(), "ground": asdict(ground), "seeds": list(seeds), "rows": rows}


def _accuracy(ground: SharedSettings, hook: str, seconds: float) -> float:
    """Train with `hook`; return the share of test examples classified correctly after `ground.steps` steps."""
    with tempfile.TemporaryDirectory(prefix="psnode-hooks-") as name:
        folder = Path(name)
        (folder / "marks").mkdir()
        program = ProcessSettings(
            communication=hook, options=ground.task_options(folder / "marks"), directory=name, batch=ground.batch,
            steps=ground.steps, lr=ground.lr, seed=ground.seed, evaluate_every=ground.steps, cosine=True,
        )  # fmt: skip
        (folder / "program.json").write_text(to_json(asdict(program)))
        command = [sys.executable, "-m", "psnode.bench.contest.ddp_process", str(folder / "program.json")]
        run_processes(command, ground.workers, seconds)
        weights = {ground.steps: folder / f"step-{ground.steps:08}.safetensors"}
        return accuracies(ground, weights)[ground.steps]


def main(
    hooks: Sequence[str], seeds: Sequence[int], *, data_dir: Path | None, batch_size: int, json_file: Path | None, **ground: Any
) -> int:
    """Measure, print a table, write everything to `json_file`, and return the exit code 0."""
    directory = None if data_dir is None else str(data_dir.expanduser().absolute())
    result = run(SharedSettings(data_dir=directory, batch=batch_size, **ground), hooks, seeds)
    _show(result)
    save(result, json_file)
    return 0


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    ground = result["ground"]
    title = f"{ground['network']} on {ground['dataset']}, {ground['workers']} processes, {ground['steps']} steps"
    table = Table("DDP's hook", *(f"seed {seed}, %" for seed in result["seeds"]), "mean, %", "behind, points", title=title)
    for row in result["rows"]:
        cells = [f"{100 * each:.2f}" for each in (*row["top1"], row["mean"])]
        table.add_row(row["hook"], *cells, f"{row['behind']:.2f}")
    Console().print(table)
