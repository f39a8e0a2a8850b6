"""`python -m studies.links`: bytes through every rank's link on emulated hosts, compared with the routes; needs root.

A job is run for each number of --workers and each --topology, with float32 values both ways, whose frames have a known size
(docs/payload-format.md). The ranks' own counts in `summary.json` are compared with the frames that the routes send over each
link. Under all topologies, the weights at the end must be those of the first topology, bit for bit. All hosts share this
machine's cores, so the step times of these jobs are not meaningful.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psnode.bench.contest.labs import on_hosts
from psnode.config import Config
from psnode.config.declaration import option
from psnode.exchange.routes.topologies import routes_of
from psnode.jobs.launch import find_mpirun
from psnode.jobs.planning.routing.link_loads import link_loads
from psnode.plans.groups import Plan
from psnode.plans.roles import Layout
from studies.harness import Column, Found, Result, Study, main

_HEADER, _COUNT, _LENGTH, _PAYLOAD, _EXTENT = 52, 4, 4, 8, 4  # bytes in a frame, see docs/wire-format.md
_WAYS = ("gradients_in", "weights_in", "gradients_out", "weights_out")
_TOPOLOGIES = ("star", "star:down=tree", "mesh", "mesh:master=auto", "sharded:servers=4", "gather")


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.links`."""

    network: str = option("LeNet", "As for train.")
    workers: tuple[int, ...] = option((8, 16), "Repeat for more.", minimum=1, repeated=True, metavar="P", aliases=("-n",))
    topology: tuple[str, ...] = option(_TOPOLOGIES, "As for train; repeat for more.", repeated=True)
    steps: int = option(10, "Of every job.", minimum=1)
    rate: str = option("1gbit", "Of the links.")
    seconds: float = option(600.0, "Seconds after which a job is given up.", above=0)


def measure(options: Options) -> Found:
    """Return a row for each job.

    `busiest`: the rank with the most bytes on its link in one direction; `expected` and `counted`: these bytes in a step, by
    the routes and by the ranks' own counts; `wrong`: the number of counts that differ from the routes; `same`: True if the
    weights are those of the first topology.
    """
    rows = list[dict[str, Any]]()
    for workers in options.workers:
        first = ""
        for topology in options.topology:
            with tempfile.TemporaryDirectory(prefix="psnode-links-", ignore_cleanup_errors=True) as folder:
                row = _job(options, workers, topology, Path(folder))
            first = first or row["hash"]
            rows.append({**row, "same": row["hash"] == first})
            print(rows[-1], file=sys.stderr, flush=True)
    return Found(rows)


def _job(options: Options, workers: int, topology: str, folder: Path) -> dict[str, Any]:
    layout = Layout(workers, servers=Config(topology=topology).servers)
    size = layout.others.stop
    flags = {
        "--network": options.network, "--dataset": "synthetic", "--batch-size": 4, "--scheme": "dense", "--lr": 0.01,
        "--max-steps": options.steps, "--topology": topology, "--threads": 1, "--train-dir": folder / "run",
    }  # fmt: skip
    words = [find_mpirun(), "-n", str(size), sys.executable, "-m", "psnode", "train"]
    on_hosts(
        [*words, *(str(word) for pair in flags.items() for word in pair)], hosts=size, rate=options.rate, each=False,
        counters=folder / "counters.json", seconds=options.seconds,
    )  # fmt: skip
    summary = json.loads((folder / "run" / "summary.json").read_text())
    plan = Plan.from_dict(json.loads((folder / "run" / "config.json").read_text())["plan"])
    return {"workers": workers, "topology": topology, **compared(plan, layout, topology, summary), "hash": summary["model_hash"]}


def compared(plan: Plan, layout: Layout, topology: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a row that compares the counts of bytes in a summary with the routes of a plan."""
    sizes = [frame_bytes([segment.shape for segment in group.segments]) for group in plan.groups]
    loads = link_loads(routes_of(layout, plan, topology), layout.computing, sizes=sizes, ups=sizes, downs=sizes)
    steps, ranks = summary["link_bytes"]["steps"], summary["link_bytes"]["ranks"]
    counts = {load.rank: ranks.get(str(load.rank), dict.fromkeys(_WAYS, 0)) for load in loads}
    wrong = sum(counts[load.rank][way] != steps * getattr(load, way) for load in loads for way in _WAYS)
    busiest = max(loads, key=lambda load: max(load.received, load.sent))
    way = "in" if busiest.received >= busiest.sent else "out"
    counted = sum(counts[busiest.rank][f"{kind}_{way}"] for kind in ("gradients", "weights"))
    return {
        "busiest": busiest.rank, "way": way, "expected": max(busiest.received, busiest.sent), "counted": counted / steps,
        "counts": len(_WAYS) * len(loads), "wrong": wrong,
    }  # fmt: skip


def frame_bytes(shapes: Sequence[Sequence[int]]) -> int:
    """Return the bytes of a frame with float32 values in segments of these shapes."""
    found = _HEADER + _COUNT
    for shape in shapes:
        size = 1
        for extent in shape:
            size *= extent
        found += _LENGTH + _PAYLOAD + _EXTENT * len(shape) + 4 * size
    return found


def _passed(result: Result) -> bool:
    return all(row["same"] and not row["wrong"] for row in result["rows"])


STUDY = Study(
    Options,
    measure,
    (
        Column("workers", "{workers}"),
        Column("topology", "{topology}", left=True),
        Column("busiest link", "rank {busiest} {way}", left=True),
        Column("bytes of the routes", "{expected:,}"),
        Column("bytes counted", "{counted:,.0f}"),
        Column("counts that differ", "{wrong} of {counts}"),
        Column("weights", lambda row: "equal" if row["same"] else "differ", left=True),
    ),
    head=lambda result: f"{result['network']}, float32 both ways, {result['steps']} steps on emulated hosts; bytes are per step.",
    passed=_passed,
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
