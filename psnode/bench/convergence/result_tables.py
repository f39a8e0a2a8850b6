"""The result of `psnode bench convergence` as a Markdown page, as CSV and as a LaTeX table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

_COLUMNS = ("name", "run", "lr", "seed", "step", "top1", "loss", "bytes", "seconds", "seconds_at_rate")
_ESCAPED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ESCAPED |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def edge_notes(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each contender whose best learning rate is the lowest or the highest rate tried."""
    for row in result["rows"]:
        rates = sorted(float(lr) for lr in row["tried"])
        if len(rates) < 2:
            continue
        best = min(rates, key=lambda rate: abs(rate - row["lr"]))
        if best == rates[0]:
            yield f"{row['name']}: {best:g} is the lowest learning rate tried: add --lr {_beyond(*rates[1::-1]):g}"
        elif best == rates[-1]:
            yield f"{row['name']}: {best:g} is the highest learning rate tried: add --lr {_beyond(*rates[-2:]):g}"


def _beyond(inner: float, edge: float) -> float:
    """Return the next learning rate to try: `edge` times the ratio of `edge` to `inner`, rounded to one digit."""
    return float(f"{edge * edge / inner:.0e}")


def markdown(result: Mapping[str, Any]) -> str:
    """Return the result as a page for docs/results."""
    lines = [
        "| run | lr | test top1 | s.e. | loss | bytes up | bytes down | ratio | step | encode |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        error = "" if row["standard_error"] is None else f"{100 * row['standard_error']:.2f}"
        figures = f"{row['uplink_bytes']:,.0f} | {row['downlink_bytes']:,.0f} | {_ratio(row)}"
        encode = "" if row["encode"] is None else f"{1e3 * row['encode']:.1f} ms"
        times = f"{1e3 * row['step']:.1f} ms | {encode}"
        accuracy = "" if row["top1"] is None else f"{100 * row['top1']:.2f} %"
        lines.append(f"| {row['name']} | {row['lr']:g} | {accuracy} | {error} | {row['loss']:.4f} | {figures} | {times} |")
    head = f"{result['date']}, {result['cpu']}, {result['cores']} cores, {result['workers']} workers, `{result['common']}`"
    named = [f"{row['name']}: `{row['run']}`." for row in result["rows"] if row["name"] != row["run"]]
    notes = ["Bytes are those of one worker in one step.", *named]
    return "\n\n".join((head, *notes, "\n".join(lines))) + "\n"


def _ratio(row: Mapping[str, Any]) -> str:
    """Return the compression ratio as text; empty if nothing is sent, as by a single worker under DDP."""
    return "" if row["ratio"] is None else f"{row['ratio']:.1f}"


def csv_table(result: Mapping[str, Any]) -> str:
    """Return the result as CSV, with a line for each evaluation of each seed.

    `top1` is a fraction; empty for a task without accuracy. `bytes` (in and out of one worker) and `seconds` (measured) are
    sums up to this step. `seconds_at_rate` is the estimate for links of the result's rate; empty without a rate.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in result["rows"]:
        for seed, curve in zip(row["seeds"], row["curves"], strict=True):
            for point in curve:
                figures = (point[name] for name in ("step", "top1", "loss", "nbytes", "seconds", "at_rate"))
                writer.writerow([row["name"], row["run"], f"{row['lr']:g}", seed, *figures])
    return text.getvalue()


def latex(result: Mapping[str, Any]) -> str:
    r"""Return a LaTeX table for \input, in the style of booktabs: means and standard errors over the seeds. Text is escaped."""
    accurate = all(row["top1"] is not None for row in result["rows"])
    heads = ("run", "learning rate", r"accuracy (\%)" if accurate else "loss", "kB up", "kB down", "ratio")
    rows = [" & ".join(_cells(row, accurate)) + r" \\" for row in result["rows"]]
    seeds = len(result["rows"][0]["seeds"])
    return "\n".join(
        [
            f"% psnode bench convergence, {result['date'][:10]}, {result['cpu']}: {result['common']}",
            f"% mean and standard error over {seeds} {'seed' if seeds == 1 else 'seeds'}; kB of one worker in one step",
            r"\begin{tabular}{lrrrrr}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _cells(row: Mapping[str, Any], accurate: bool) -> Iterator[str]:
    yield "".join(_ESCAPED.get(sign, sign) for sign in row["name"])
    yield f"{row['lr']:g}"
    mean, error, digits = (row["top1"], row["standard_error"], 2) if accurate else (row["loss"], row["loss_error"], 4)
    scale = 100 if accurate else 1
    yield f"${scale * mean:.{digits}f}" + ("$" if error is None else rf" \pm {scale * error:.{digits}f}$")
    yield from (f"{row[name] / 1e3:,.1f}" for name in ("uplink_bytes", "downlink_bytes"))
    yield _ratio(row)
