"""`psnode bench transport`: rate at which the master ingests dense gradients, against MPI's bandwidth in the same run.

One worker sends `groups` groups of float32; the master receives them, checks their CRC32C and adds them up. The floor is the
rate of a master that does these three tasks one after another, each at the rate measured for it separately (raw, checksum,
accumulate):

    floor = 1 / (1/raw + 1/checksum + 1/accumulate)    bytes/s

On hosts with enough cores the tasks overlap, and the master is faster than the floor. On a host with two cores, TCP alone
occupies both cores.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psnode.bench.hardware import hardware
from psnode.bench.saving import save
from psnode.errors import ConfigurationError, TransportError
from psnode.jobs.launch import launch

LINKS = {"shared memory": "self,sm", "tcp": "self,tcp"}


def run(
    *,
    groups: int = 11,
    group_bytes: int = 4_000_000,
    rounds: int = 12,
    idle_seconds: float = 3.0,
    links: Sequence[str] = tuple(LINKS),
) -> dict[str, Any]:
    """Measure on this host, in one mpirun job for each of `links` (keys of LINKS). For the result see `summarise`.

    Raises TransportError if a job fails, and ConfigurationError if `group_bytes` is not a positive multiple of 4.
    """
    if group_bytes < 4 or group_bytes % 4:
        raise ConfigurationError(f"group_bytes is {group_bytes}: choose a multiple of 4, the size of a float32")
    nbytes = groups * group_bytes
    found = {link: _run_link(LINKS[link], [groups, group_bytes, rounds, idle_seconds]) for link in links}
    return {
        **hardware(),
        "groups": groups,
        "bytes": nbytes,
        "links": {link: summarise(raw["seconds"], raw["idle_share"], nbytes) for link, raw in found.items()},
    }


def _run_link(btl: str, arguments: Sequence[float]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        code = launch(
            1,
            [str(result), *map(str, arguments)],
            mpirun_args=["--mca", "pml", "ob1", "--mca", "btl", btl],
            program="psnode.bench.ingest_program",
        )
        if code != 0 or not result.exists():
            raise TransportError(f"the measuring job over {btl} ended with exit code {code}: see its messages above")
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def summarise(seconds: dict[str, list[float]], idle_share: float, nbytes: int) -> dict[str, Any]:
    """Return rates in bytes/s and other figures, from the seconds of every repetition.

    The result has: `median` and the quartiles `low` and `high` of raw, ingest, checksum and accumulate; the floor; the median
    of ingest relative to the median of raw and to the floor; the seconds of a small round trip, begun immediately or 5 ms after
    the previous round trip; and the share of a core that an idle process uses.
    """
    rates = {name: _spread([nbytes / each for each in seconds[name]]) for name in ("raw", "ingest", "checksum", "accumulate")}
    floor = 1 / sum(1 / rates[name]["median"] for name in ("raw", "checksum", "accumulate"))
    return {
        **rates,
        "floor": floor,
        "share_of_raw": rates["ingest"]["median"] / rates["raw"]["median"],
        "share_of_floor": rates["ingest"]["median"] / floor,
        "round_trip": _spread(seconds["ping"]),
        "round_trip_idle": _spread(seconds["ping_idle"]),
        "idle_share": idle_share,
    }


def targets(result: dict[str, Any]) -> dict[str, bool]:
    """Return for each target, by its name, True if the measured links reach it."""
    links = result["links"]
    found = {}
    if "tcp" in links:
        found["tcp: >= 80 % of raw or >= 95 % of the floor"] = (
            links["tcp"]["share_of_raw"] >= 0.8 or links["tcp"]["share_of_floor"] >= 0.95
        )
    if "shared memory" in links:
        found["shared memory: >= 2.5 GB/s"] = links["shared memory"]["ingest"]["median"] >= 2.5e9
    found["idle: <= 3 % of a core"] = all(link["idle_share"] <= 0.03 for link in links.values())
    return found


def main(json_file: Path | None = None, **sizes: Any) -> int:
    """Measure, print a table, write everything to `json_file`, and return the exit code 0."""
    result = run(**sizes)
    _show(result)
    save({**result, "targets": targets(result)}, json_file)
    return 0


def _spread(values: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "low": low, "high": high}


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", *result["links"], title=f"{result['cpu']}, {result['cores']} cores, {result['date']}")
    for name in ("raw", "ingest", "checksum", "accumulate"):
        cells = [link[name] for link in result["links"].values()]
        table.add_row(f"{name}, GB/s", *(f"{c['median'] / 1e9:.2f}  ({c['low'] / 1e9:.2f}-{c['high'] / 1e9:.2f})" for c in cells))
    rows = (("floor", "floor, GB/s", 1e9), ("share_of_raw", "ingest / raw", 1), ("share_of_floor", "ingest / floor", 1))
    for name, title, unit in rows:
        table.add_row(title, *(f"{link[name] / unit:.2f}" for link in result["links"].values()))
    for name, title in (("round_trip", "small round trip, µs"), ("round_trip_idle", "after 5 ms of rest, µs")):
        table.add_row(title, *(f"{link[name]['median'] * 1e6:.0f}" for link in result["links"].values()))
    table.add_row("idle, % of a core", *(f"{100 * link['idle_share']:.1f}" for link in result["links"].values()))
    console = Console()
    console.print(table)
    for target, reached in targets(result).items():
        console.print(f"{'reached' if reached else 'MISSED '}  {target}")
