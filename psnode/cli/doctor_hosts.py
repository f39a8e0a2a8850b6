"""The command `psnode doctor --hosts`, which prints a table of hosts and a line for each problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnode.config import Config, settings
from psnode.config.amounts import counted
from psnode.config.plain_json import to_json

if TYPE_CHECKING:
    from psnode.jobs.hosts.problems import Problem
    from psnode.jobs.hosts.survey import Answer


def examine(hostfile: Path, deadline: float, data_dir: Path | None, *, topology: str | None = None, as_json: bool) -> int:
    """Query every host in a hostfile and print the answers. Returns 1 if a problem would stop a job, otherwise 0.

    `topology`: the job's setting. If workers send to each other under it, the links between their hosts are measured too.
    """
    from psnode.exchange.routes.topologies import is_plain
    from psnode.jobs.hosts.hostfile import hosts_of
    from psnode.jobs.hosts.problems import problems
    from psnode.jobs.hosts.survey import ask

    chosen: str = settings()["topology"].parse(topology, "--topology") if topology else Config().topology
    own, answers = ask(hosts_of(hostfile), deadline, data_dir, all_links=not is_plain(chosen))
    found = problems(own, answers, data_dir)
    if as_json:
        hosts = [{**asdict(answer), "host": answer.host.name, "slots": answer.host.slots} for answer in answers]
        print(to_json({"here": own, "hosts": hosts, "problems": [each._asdict() for each in found]}, indent=2))
    else:
        _show(own, answers, found)
    return 1 if any(problem.stops for problem in found) else 0


def _show(own: Mapping[str, Any], answers: Sequence[Answer], found: Sequence[Problem]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for head in ("host", "Python", "torch", "psnode", "MPI", "cores", "free", "clock", "ping", "Mbit/s"):
        table.add_column(head, overflow="fold", no_wrap=head not in ("host", "torch"))
    if not any(answer.host.is_here for answer in answers):
        table.add_row("(here)", *_software(own), "", "", "")
    for answer in answers:
        facts = answer.facts
        cells = [*_software(facts), f"{1e3 * answer.clock:+.0f} ms", *_ways(answer)] if facts else ["?"] * 9
        table.add_row(escape(answer.host.name), *(escape(cell) for cell in cells))
    console = Console()
    console.print(table)
    for problem in found:
        colour = "red" if problem.stops else "yellow"
        kind = "stops a job" if problem.stops else "note"
        text = f"[{colour}]{kind}[/]: {escape(problem.host)}: {escape(problem.text)}: {escape(problem.remedy)}"
        console.print(text, soft_wrap=True)
    console.print(escape(_verdict(len(answers), found)))


def _verdict(hosts: int, found: Sequence[Problem]) -> str:
    """Return the last line of the output. It states if a job can work on the hosts and, if not, which host to mend first."""
    stopping = list(dict.fromkeys(problem.host for problem in found if problem.stops))
    if stopping:
        then = f"; then look at {', '.join(stopping[1:])}" if stopping[1:] else ""
        return f"A job cannot work on these hosts. Mend {stopping[0]} first{then}."
    notes = f"; {counted(len(found), 'note')} above" if found else ""
    return f"All is well: no problem would stop a job on {counted(hosts, 'host')}{notes}."


def _software(facts: Mapping[str, Any]) -> list[str]:
    versions = [facts[key] or "-" for key in ("python", "torch", "psnode")]
    return [*versions, facts["mpi"].replace("Open MPI ", "") or "-", str(facts["cores"]), f"{facts['free'] / 1e9:.1f} GB"]


def _ways(answer: Answer) -> tuple[str, str]:
    """Return two texts on the links to the master's host: the round trip, and the rates in Mbit/s to that host and back."""
    if "mbit" not in answer.up or "mbit" not in answer.down:
        return ("no", "no") if answer.up else ("", "")
    return f"{answer.up['milliseconds']:.2g} ms", f"{answer.up['mbit']:.0f} / {answer.down['mbit']:.0f}"
