"""Tables of the result of `psnode bench codecs`, one for each input."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

_HEADS = ("bits", "encode", "feedback", "decode", "decode_add", "α or ω", "over bound", "over R(D)", "memory", "operators")
_SPEEDS = ("encode", "feedback", "decode", "decode_add")
_WIDTH = 160
LEGEND = """\
encode, feedback (a step of error feedback as in training), decode, decode_add: GB/s of float32 on one core, median; behind it the
share of r, the read bandwidth measured beside it. All of them find their arrays in memory, not in a cache.
ω of unbiased codecs, α of others: ||x - decode||^2 / ||x||^2. over bound: bits above the fewest with which any codec, unbiased if
this one is, can have that error on every input; over R(D): above those that independent values of this distribution need.
memory: the most allocated in encode, as a share of the input. operators: encode against the same in PyTorch operators."""


def show(result: Mapping[str, Any]) -> None:
    """Print a table for each input in `result`, the reasons of failures, and LEGEND."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    for name, source in result["sources"].items():
        reads = [row["read"]["median"] for row in source["rows"] if "read" in row]
        r = f", r = {statistics.median(reads):.1f} GB/s ({source['cached']['median']:.1f} from the cache)" if reads else ""
        title = f"{name}: {source['size']:,} values, {100 * source['zeros']:.0f} % zeros{r}"
        table = Table(title=title, caption=f"{result['cpu']}, {result['cores']} cores, {result['date']}")
        table.add_column("codec", overflow="fold")
        for head in _HEADS:
            table.add_column(head, justify="right", no_wrap=True)
        for row in source["rows"]:
            table.add_row(row["spec"], *(_cells(row) if "failed" not in row else ["failed"]))
        console.print(table)
        for row in source["rows"]:
            if "failed" in row:
                console.print(f"failed: {row['spec']}: {row['failed']}", markup=False)
    console.print(LEGEND, markup=False)


def _cells(row: Mapping[str, Any]) -> list[str]:
    speeds = [f"{row[name]['median']:.2f} {row[name]['share']:.2f}r" for name in _SPEEDS]
    letter = "ω" if row["unbiased"] else "α"
    error = "0" if row["error"] == 0 else f"{letter} {row['error']:.3g}"
    over = ["" if row[name] is None else f"{row[name]:.3f}" for name in ("over_bound", "over_source")]
    beside = row["operators"]
    factor = "" if beside is None else f"{row['encode']['median'] / beside['median']:.0f}x"
    return [f"{row['bits']:.3f}", *speeds, error, *over, f"{row['allocated']['encode']:.2f}", factor]
