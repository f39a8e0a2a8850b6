"""The commands `psnode runs` and `psnode report`. They show run directories on the terminal, and as a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psnode.cli.debugging import debuggable
from psnode.config.amounts import amount, duration, loss_text, proportion
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    from psnode.report.run import Run

RUNS = Path("runs")  # the parent of the default run directories
_NAME = 12  # minimum width of the names, in characters
_TOPOLOGY = "topo"  # head of the topology column, which is shown only if the runs differ in topology
_WIDEST = {"scheme": 10, _TOPOLOGY: 6, "end": 9}  # maximum widths of other columns; topology and scheme also use free space
_PATH = click.Path(path_type=Path)
# sort key, and True if the largest value comes first
_ORDERS: dict[str, tuple[Callable[[Run], Any], bool]] = {
    "name": (lambda run: run.name, False),
    "scheme": (lambda run: run.coding, False),
    "steps": (lambda run: run.reached, True),
    "loss": (lambda run: run.last("loss"), False),
    "accuracy": (lambda run: run.best, True),
    "test-loss": (lambda run: run.best_loss, False),
    "sent": (lambda run: run.sent, False),
    "ratio": (lambda run: run.ratio, True),
    "time": (lambda run: run.steps.sum("seconds.step"), False),
}


@click.command(short_help="List and compare runs.")
@click.argument("places", nargs=-1, type=_PATH, metavar="[DIR]...")
@click.option(
    "--sort", type=click.Choice(list(_ORDERS)), default="name", show_default=True, help="Sort by this quantity, the best first."
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@debuggable
def runs(places: tuple[Path, ...], sort: str, reverse: bool, as_json: bool) -> int:
    """Print a line for every run in DIR and below [runs].

    A line has the scheme, workers, steps, last loss, bytes, time and end of a run, and its best accuracy or, without one, its
    lowest test loss.
    """
    if not places and not RUNS.is_dir():
        raise ConfigurationError(f"there is no directory {RUNS} here: name runs, or directories that contain some")
    found = _ordered(_read(places or (RUNS,)), sort, reverse)
    if as_json:
        click.echo(to_json([_facts(run) for run in found], indent=2))
    else:
        _show(found)
    return 0


@click.command(short_help="Write a page about runs.")
@click.argument("places", nargs=-1, required=True, type=_PATH, metavar="RUN...")
@click.option("-o", "--output", type=_PATH, default=Path("report.html"), show_default=True, metavar="FILE", help="The page.")
@click.option("--each", is_flag=True, help="Draw a line for each run, even for runs that differ only in their seeds.")
@debuggable
def report(places: tuple[Path, ...], output: Path, each: bool) -> int:
    """Write one HTML file about runs, or about all runs in directories. The page needs no network.

    It shows curves over steps, seconds and bytes, the parts of a step's time and its critical path, links, faults and events,
    plans, and the differences between settings. Completed runs that differ only by their seeds are drawn as one line with a band.
    An unfinished run is shown up to its present step.
    """
    from psnode.report.page import write

    found = _read(places)
    told = [len(run.problems) for run in found]
    write(found, output, each=each)
    for run, known in zip(found, told, strict=True):
        for problem in run.problems[known:]:  # problems with the timeline, which is read only by `write`
            _tell(problem)
    click.echo(f"{len(found)} run{'' if len(found) == 1 else 's'} in {output}")
    return 0


def _read(places: Sequence[Path]) -> list[Run]:
    """Return all runs in `places`, and print a line on standard error for every unusable file.

    Raises ConfigurationError if there is no run.
    """
    from psnode.report.run import read_all
    from psnode.report.run_search import find

    paths = find(places)
    if not paths:
        raise ConfigurationError(f"there is no run in {', '.join(map(str, places))}: name directories that contain some")
    found = read_all(paths)
    for run in found:
        for problem in run.problems:
            _tell(problem)
    return found


def _tell(problem: str) -> None:
    from psnode.protocol.messages import plain

    click.echo(f"psnode: {plain(' '.join(problem.split()))}", err=True)


def _ordered(found: list[Run], sort: str, reverse: bool) -> list[Run]:
    """Return the runs sorted by the quantity `sort`. Runs without this quantity come last."""
    key, most = _ORDERS[sort]
    known = [run for run in found if key(run) is not None]
    known.sort(key=lambda run: str(key(run)) if sort in ("name", "scheme") else key(run), reverse=most != reverse)
    return known + [run for run in found if key(run) is None]


def _facts(run: Run) -> dict[str, Any]:
    """Return the facts about a run in types that JSON has; None marks an unknown value."""
    return {
        "path": str(run.path),
        "scheme": run.coding,
        "topology": run.topology,
        "workers": run.workers,
        "steps": run.reached,
        "loss": run.last("loss"),
        "top1": run.best,
        "best_loss": run.best_loss,
        "uplink_bytes": int(run.steps.sum("uplink_bytes")),
        "downlink_bytes": int(run.steps.sum("downlink_bytes")),
        "uplink_control_bytes": int(run.steps.sum("uplink_control_bytes")),
        "downlink_control_bytes": int(run.steps.sum("downlink_control_bytes")),
        "compression_ratio": run.ratio,
        "seconds": run.steps.sum("seconds.step"),
        "ended": run.ended,
        "problems": run.problems,
    }


def _show(found: Sequence[Run]) -> None:
    """Print a table of runs, as wide as the terminal, or 80 columns wide if there is no terminal.

    Long names are shortened in the middle.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from psnode.protocol.messages import plain
    from psnode.report.run_names import shortened

    console = Console(highlight=False)
    by_loss = all(run.best is None for run in found) and any(run.best_loss is not None for run in found)
    best = "test" if by_loss else "top1"
    unlike = len({run.topology for run in found} - {None}) > 1
    heads = ("scheme", *([_TOPOLOGY] if unlike else []), "P", "steps", "loss", best, "sent", "/ f32", "time", "end")
    cells_of = [_cells(run, by_loss=by_loss, with_topology=unlike) for run in found]
    rows = [[plain("–" if cell is None else str(cell)) for cell in cells] for cells in cells_of]
    names = [plain(run.name) for run in found]
    longest = {head: max(map(len, (head, *cells))) for head, *cells in zip(heads, *rows, strict=True)}
    most = dict(_WIDEST)
    free = console.width - len(heads) - max(_NAME, *map(len, names)) - sum(_least(head, longest[head]) for head in heads)
    room = max(0, free)
    for head in (_TOPOLOGY, "scheme"):  # the free space goes to these columns, in this order
        more = min(room, max(0, longest.get(head, 0) - _WIDEST[head]))
        most[head], room = _WIDEST[head] + more, room - more
    widths = [min(most.get(head, 80), longest[head]) for head in heads]
    cut = shortened(names, max(_NAME, console.width - sum(widths) - len(widths)))

    table = Table("run", box=None, pad_edge=False, collapse_padding=True)
    table.columns[0].overflow, table.columns[0].min_width = "fold", _NAME
    for head in heads:
        left = head in ("scheme", _TOPOLOGY, "end")
        table.add_column(
            head, overflow="fold" if head == "end" else "ellipsis", no_wrap=head != "end", justify="left" if left else "right",
            max_width=most.get(head),
        )  # fmt: skip
    for name, row in zip(cut, rows, strict=True):
        table.add_row(Text(name), *map(Text, row))
    console.print(table)
    meaning = "test: lowest loss of the evaluations" if by_loss else "top1: best accuracy, %"
    click.echo(f"P: workers; {meaning}; / f32: bytes of float32 over those sent")
    if unlike:
        click.echo(f"{_TOPOLOGY}: --topology")
    if cut != names:
        click.echo("Long names are cut: a wider terminal and --json show all of them.")


def _least(head: str, longest: int) -> int:
    return min(_WIDEST.get(head, 80), longest)


def _cells(run: Run, *, by_loss: bool, with_topology: bool) -> list[object]:
    """Return the figures of a run for its row of the table. They include the topology if `with_topology` is True.

    If `by_loss` is True, the lowest loss of the evaluations takes the place of the best accuracy.
    """
    loss, ratio = run.last("loss"), run.ratio
    top1 = None if run.best is None else f"{100 * run.best:.2f}"
    lowest = None if run.best_loss is None else loss_text(run.best_loss)
    return [
        *(
            run.coding,
            *([run.topology] if with_topology else []),
            run.workers,
            run.reached,
            None if loss is None else loss_text(loss),
        ),
        *(lowest if by_loss else top1, amount(run.sent), None if ratio is None else proportion(ratio)),
        *(duration(run.steps.sum("seconds.step")), run.ended.partition(" (")[0]),
    ]
