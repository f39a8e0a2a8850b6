"""`python -m studies.both_ways`: rates of rank 0's link with frames in one direction, and in both at the same time; needs root.

On emulated hosts, rank 0 and --workers other ranks of an MPI job exchange frames of --size bytes as a master and its workers do
(studies/both_ways_rank.py): first --senders of the workers send to rank 0, then rank 0 sends to all workers, then both. A rate is
that of the payload until the first direction is done. The share is the sum of both rates when all send, divided by the sum of the
rates of one direction at a time. It would be 1 if the two directions of a link did not disturb each other.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psnode.bench.contest.labs import on_hosts
from psnode.config.amounts import rate_of
from psnode.config.declaration import option
from psnode.errors import ConfigurationError
from psnode.jobs.launch import find_mpirun
from studies.harness import Column, Found, Study, main


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.both_ways`."""

    workers: int = option(4, "Number of workers.", minimum=1, metavar="P", aliases=("-n",))
    senders: tuple[int, ...] = option((1, 2, 3, 4), "How many of them send; repeat for more.", minimum=1, repeated=True)
    rate: tuple[str, ...] = option(("100mbit",), "Of the links; repeat for more.", repeated=True)
    size: int = option(1 << 20, "Bytes of a frame.", minimum=1)
    seconds: float = option(3.0, "For which one direction alone carries frames, about.", above=0)
    rounds: int = option(3, "How often the three exchanges are repeated; the median counts.", minimum=1)


def measure(options: Options) -> Found:
    """Return a row for each rate and number of senders.

    Raises ConfigurationError, before anything is measured, if there are fewer workers than senders, or if a rate is none.

    `inward` and `outward`: bytes per second of rank 0's link with frames in this direction alone; `both_in` and `both_out`: with
    frames in both directions; `share`: as in the module's docstring.
    """
    rows, workers = [], options.workers
    if max(options.senders) > workers:
        raise ConfigurationError(f"--senders {max(options.senders)} are more than the {workers} workers")
    limits = {text: rate_of(text) for text in options.rate}
    for rate, limit in limits.items():
        for senders in options.senders:
            frames = max(2, round(options.seconds * limit / 8 / workers / options.size))
            with tempfile.TemporaryDirectory(prefix="psnode-both-ways-") as folder:
                result = Path(folder) / "result.json"
                program = [
                    sys.executable,
                    "-m",
                    "studies.both_ways_rank",
                    *map(str, (frames, options.size, senders, options.rounds, result)),
                ]
                on_hosts(
                    [find_mpirun(), "-n", str(workers + 1), *program], hosts=workers + 1, rate=rate, each=False,
                    counters=Path(folder) / "counters",
                    seconds=60 + 6 * options.rounds * options.seconds,
                )  # fmt: skip
                found = json.loads(result.read_bytes())
            rows.append({"workers": workers, "senders": senders, "rate": rate, **row(found)})
    return Found(rows)


def row(rounds: list[Mapping[str, float]]) -> dict[str, Any]:
    """Return the medians of the rounds, and their share."""
    found = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    alone, together = found["inward"] + found["outward"], found["both_in"] + found["both_out"]
    return {**found, "share": together / alone}


def _megabits(key: str) -> Column:
    titles = {"inward": "in alone", "outward": "out alone", "both_in": "in, both", "both_out": "out, both"}
    return Column(f"{titles[key]}, Mbit/s", lambda row: f"{row[key] * 8e-6:.1f}")


STUDY = Study(
    Options,
    measure,
    (
        Column("rate", "{rate}"),
        Column("workers", "{workers}"),
        Column("of them send", "{senders}"),
        *map(_megabits, ("inward", "outward", "both_in", "both_out")),
        Column("share", "{share:.2f}"),
    ),
    head=lambda result: f"Frames of {result['size']:,} bytes; medians of {result['rounds']} rounds.",
)


if __name__ == "__main__":
    sys.exit(main(STUDY))
