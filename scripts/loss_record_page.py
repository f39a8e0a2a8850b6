"""Make docs/results/loss-record.md and .png, and a part of docs/choosing.md, from psnode/config/loss_record.json.

scripts/loss_record_page.py [--check]   --check: write nothing; the exit code is 1 if a page differs from the record
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from psnode.config.scheme_losses import BY_LOSS, LossCost, costs
from psnode.config.train_settings import DEFAULT_SCHEME

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "psnode" / "config" / "loss_record.json"
PAGE = ROOT / "docs" / "results" / "loss-record.md"
CHOOSING = ROOT / "docs" / "choosing.md"
FIGURE = PAGE.with_suffix(".png")
_MARKS = "osD^vP*Xh<>pd8"
_COSTS, _RATIOS = (-2, -1, 0, 1, 2, 5, 10, 20, 50), (2, 4, 8, 16, 32, 64)  # ticks of the axes
START, END = "<!-- of the record: scripts/loss_record_page.py -->", "<!-- end of the record -->"

MODELS = {
    "gpt-small": "a decoder of width 96 and 2 layers on characters, {:,} parameters (examples/charlm.py)",
    "gpt-3m": "the same of width 256 and 4 layers, {:,} parameters",
    "lstm": "an LSTM of width 128 on characters, {:,} parameters (examples/charlm.py)",
    "lora": "LoRA adapters of rank 16 on a small Llama with random weights, {:,} parameters trained (examples/lora.py)",
    "vit": "a vision transformer of width 64 and 4 layers on MNIST, {:,} parameters (examples/vit.py)",
    "lenet": "LeNet on MNIST, {:,} parameters",
    "resnet-20": "ResNet-20 on CIFAR-10 (JPEG files), {:,} parameters",
}


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("+0.", "+.").replace("-0.", "-.")


def cost_text(cost: LossCost) -> str:
    """Return a cost as text, such as `+.91 +- .20 %` for a loss or `-.30 points` for an accuracy.

    The error after +- is left out if there is only one seed.
    """
    error = "" if cost.error is None else f" +- {cost.error:.2f}".replace(" 0.", " .")
    return f"{_signed(cost.mean if cost.by_loss else -cost.mean)}{error}{' %' if cost.by_loss else ' points'}"


def flags(run: str) -> str:
    """Return the flags of `psnode train` for a run of the record."""
    return f"--scheme {run}".replace("--scheme dense --codec", "--codec")


def page(entries: Sequence[dict[str, Any]]) -> str:
    """Return the text of docs/results/loss-record.md."""
    found = costs(entries)
    machines = sorted({f"{entry['cpu']}, {entry['date']}" for entry in entries})
    lines = [
        "# What schemes cost in loss",
        "",
        f"{'; '.join(machines)}. Two workers, cosine schedule. Made from psnode/config/loss_record.json; the first",
        "command trains the runs that are missing in it, the second makes this page, its figure and a part of",
        "[choosing.md](../choosing.md):",
        "",
        "    python scripts/loss_record.py run OUT --mnist DIR --cifar10 DIR",
        "    python scripts/loss_record_page.py",
        "",
        "Costs are differences to dense of the same seed: percent of the evaluation loss for models of language,",
        "points of accuracy for models of images; after +- the standard error over seeds. Bytes are those of both ways together.",
        "Learning rates: dense the best of three by one seed; the others dense's, but under SGD topk and efsignsgd, which",
        "train without momentum there, the best of three of their own.",
        "",
        "![Loss over dense against times fewer bytes](loss-record.png)",
    ]
    for cell in dict.fromkeys(cost.cell for cost in found):
        model, optimizer, steps = cell.split("/")
        own = [entry for entry in entries if entry["cell"] == cell and entry["run"] == "dense"]
        size = round(max(entry["uplink_bytes"] for entry in own) / 4 / 100) * 100
        best = min((entry for entry in own if entry["seed"] == 1), key=lambda entry: float(entry["loss"]))
        lines += ["", f"## {model}, {optimizer}, {int(steps):,} steps", ""]
        accuracy = "" if best["top1"] is None else f", accuracy {100 * best['top1']:.2f} %"
        lines += [
            f"{MODELS[model].format(size).capitalize()}. Dense, seed 1, lr {best['lr']:g}: loss {best['loss']:.4f}{accuracy}.",
            "",
        ]
        lines += ["| flags | lr | cost | seeds | times fewer bytes |", "|---|---:|---:|---:|---:|"]
        rows = [cost for cost in found if cost.cell == cell and cost.run != "dense"]
        lines += [f"| `{flags(cost.run)}` | {cost.lr:g} | {cost_text(cost)} | {cost.seeds} | {cost.ratio:.1f} |" for cost in rows]
    return "\n".join(lines) + "\n"


def choosing(entries: Sequence[dict[str, Any]]) -> str:
    """Return the generated part of docs/choosing.md.

    For each kind of optimizer it has a table of schemes, in which the default is marked.
    """
    found = costs(entries)
    lines = []
    for adam, kind in ((True, "an optimizer of Adam's kind"), (False, "SGD")):
        cells = _cells(found, adam)
        if not cells:
            continue
        heads = [f"{cell[0]}, {cell[1]:,} steps" for cell in cells]
        lines += [f"### Under {kind}", "", f"| flags | {' | '.join(heads)} |", "|---|" + "---:|" * len(cells)]
        for run in _runs(found, adam):
            row = []
            for model, steps in cells:
                here = [cost for cost in found if (cost.model, cost.steps, cost.of_adam, cost.run) == (model, steps, adam, run)]
                row.append(f"{cost_text(here[0])}, {here[0].ratio:.0f} x" if here else "")
            mark = " (default)" if run == DEFAULT_SCHEME else ""
            lines.append(f"| `{flags(run)}`{mark} | " + " | ".join(row) + " |")
        lines.append("")
    return "\n".join([*lines, *scatter(entries), ""])


def scatter(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return a section of the page, which shows how much the losses of language models vary with the seed."""
    by_run: dict[tuple[str, str, float], list[float]] = {}
    for entry in entries:
        if entry["cell"].startswith(BY_LOSS):
            by_run.setdefault((entry["cell"], entry["run"], entry["lr"]), []).append(float(entry["loss"]))
    rows = []
    for (cell, run, _), losses in by_run.items():
        if len(losses) > 1:
            model, optimizer, steps = cell.split("/")
            least, most = min(losses), max(losses)
            what = f"| {model}, {optimizer}, {int(steps):,} steps | `{flags(run)}` | {len(losses)} "
            rows.append(f"{what}| {least:.3f} to {most:.3f} | {100 * (most / least - 1):.1f} % |")
    heads = ["| model | flags | seeds | evaluation loss | range |", "|---|---|---:|---:|---:|"]
    return ["### From seed to seed", "", "Language models in runs that differ by the seed alone.", "", *heads, *rows]


def _cells(found: Sequence[LossCost], adam: bool) -> list[tuple[str, int]]:
    """Return the cells that have a coded run, each as its model and its number of steps, in the order of MODELS."""
    coded = {(cost.model, cost.steps) for cost in found if cost.of_adam == adam and cost.run != "dense"}
    return sorted(coded, key=lambda cell: (list(MODELS).index(cell[0]), cell[1]))


def _runs(found: Sequence[LossCost], adam: bool) -> list[str]:
    """Return the coded runs by descending bytes."""
    ratios: dict[str, list[float]] = {}
    for cost in found:
        if cost.of_adam == adam and cost.run != "dense":
            ratios.setdefault(cost.run, []).append(cost.ratio)
    return sorted(ratios, key=lambda run: sum(ratios[run]) / len(ratios[run]))


def with_part(text: str, part: str) -> str:
    """Return `text` with the part between START and END replaced by `part`."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{part}\n{END}{after}"


def pages() -> Iterator[tuple[Path, str]]:
    """Yield every generated page, with its text."""
    entries = json.loads(RECORD.read_bytes())
    yield PAGE, page(entries)
    yield CHOOSING, with_part(CHOOSING.read_text(), choosing(entries))


def draw() -> None:
    """Draw FIGURE, with a panel for each kind of optimizer.

    A colour stands for a model, a marker for a scheme, and a line for the least cost at each ratio.
    """
    from matplotlib.figure import Figure

    found = [cost for cost in costs(json.loads(RECORD.read_bytes())) if cost.by_loss and cost.run != "dense"]
    runs = list(dict.fromkeys(cost.run for cost in sorted(found, key=lambda cost: cost.ratio)))
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, adam in zip(panels, (True, False), strict=True):
        for index, (model, steps) in enumerate(_cells(found, adam)):
            points = sorted(
                (cost for cost in found if (cost.model, cost.steps, cost.of_adam) == (model, steps, adam)),
                key=lambda cost: (-round(cost.ratio, 1), cost.mean),
            )
            for cost in points:
                marker = _MARKS[runs.index(cost.run) % len(_MARKS)]
                axes.errorbar(cost.ratio, cost.mean, yerr=cost.error, color=f"C{index}", marker=marker, capsize=2)
            front = [cost for place, cost in enumerate(points) if all(cost.mean < other.mean for other in points[:place])]
            heights = [cost.mean for cost in front]
            axes.plot([cost.ratio for cost in front], heights, color=f"C{index}", label=f"{model}, {steps:,} steps")
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_xticks(_RATIOS, map(str, _RATIOS))
        axes.set_yticks(_COSTS, map(str, _COSTS))
        axes.minorticks_off()
        axes.set(xlabel="times fewer bytes, both ways", title="AdamW" if adam else "SGD")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(title="model (line: least cost)", fontsize=8)
    panels[0].set_ylabel("loss above dense's, %")
    marks = [
        panels[1].plot([], [], _MARKS[place % len(_MARKS)], color="0.4", label=flags(run))[0] for place, run in enumerate(runs)
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(FIGURE, dpi=100)


def main(arguments: Sequence[str]) -> int:
    """Write or check the pages, and return the exit code."""
    wrong = [path for path, text in pages() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        print("\n".join(f"{path.relative_to(ROOT)} is not what the record says" for path in wrong))
        return bool(wrong)
    for path, text in pages():
        path.write_text(text)
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
