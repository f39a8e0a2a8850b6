"""Forecasts as lines of text: a heading with the model, a table for each rate, and the rate below which compression pays."""

from __future__ import annotations

from collections.abc import Sequence

from psnode.config.amounts import amount, counted, milliseconds, proportion, rate_text
from psnode.jobs.planning.forecast import Forecast
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.routing.routed_groups import USUAL
from psnode.jobs.planning.scenario import CODING, LATENCY, LINK, MASTER, PASSES, TRANSPORT

_KINDS = (PASSES, CODING, MASTER, TRANSPORT, LINK, LATENCY)
NO_RATE = "none"  # the text in place of a rate for links on which transfers cost no time
_HEAD = f"{'step':>10}{'of passes':>11}{'sent':>11}  {'mostly':10}"


def heading(profile: Profile) -> str:
    """Return the line above all tables: the model, the time of its passes, and the size of its gradient."""
    passes = f"passes alone {milliseconds(profile.passes)} a step on {counted(profile.threads, 'thread')}"
    return f"{profile.model}: {passes}, gradient {amount(profile.nbytes)}"


def table(profile: Profile, workers: int, rate: str, rows: Sequence[Forecast], told: Sequence[str]) -> list[str]:
    """Return an empty line, the table of the forecasts `rows` at the rate `rate`, and `told`, the sentences of their verdict."""
    where = "links that cost nothing" if rate == NO_RATE else rate
    if len(others := _topologies(rows)) == 1 and others != {USUAL}:
        where += f", --topology {min(others)}"
    names = _names(rows)
    found = ["", f"{counted(workers, 'worker')}, {where}", " " * (2 + len(names[0])) + _HEAD]
    for name, row in zip(names, rows, strict=True):
        share = proportion(row.seconds / profile.passes)
        found.append(f"  {name}{milliseconds(row.seconds):>10}{share:>11}{amount(row.sent):>11}  {row.binds}")
    return found + [f"-> {line}" for line in told]


def _names(rows: Sequence[Forecast]) -> list[str]:
    """Return the entries of a table's first column: the names of schemes, with their topologies if there are several of them.

    With one topology the column is 26 characters wide. Otherwise it is as wide as its longest entry, but at
    least 26 characters wide.
    """
    if len(_topologies(rows)) < 2:
        return [f"{row.name[:26]:26}" for row in rows]
    names = [row.name if row.peer else f"{row.name}, {row.topology}" for row in rows]
    return [name.ljust(max(26, *map(len, names))) for name in names]


def _topologies(rows: Sequence[Forecast]) -> set[str]:
    return {row.topology for row in rows if not row.peer}


def chains(rows: Sequence[Forecast]) -> list[str]:
    """Return an empty line and a table: for each step, the milliseconds of each kind of work on its critical path.

    Work that is not on the critical path is not shown. It does not delay the step, because it runs in parallel.
    """
    names = _names(rows)
    found = ["", "of the step, in ms".ljust(2 + len(names[0])) + "".join(f"{kind:>11}" for kind in _KINDS)]
    for name, row in zip(names, rows, strict=True):
        found.append(f"  {name}" + "".join(f"{1e3 * row.spent.get(kind, 0.0):>11.1f}" for kind in _KINDS))
    return found


def ending(limit: float) -> list[str]:
    """Return the lines below all tables. `limit`: the rate, in bit/s, below which compression pays."""
    return ["", f"Compression pays on links below about {rate_text(limit)}."]
