"""The bytes of a step on the link of every rank. The run has counted them, or they are calculated from its routes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple
from xml.etree.ElementTree import Element

from psnode.config import Config
from psnode.config.amounts import amount, counted
from psnode.errors import ConfigurationError
from psnode.exchange.routes.route import Route
from psnode.exchange.routes.topologies import routes_of
from psnode.jobs.planning.routing.link_loads import LinkLoad, link_loads
from psnode.jobs.planning.routing.route_lines import ranks_text, role_of
from psnode.plans.roles import MASTER, Layout
from psnode.report.comparisons import named
from psnode.report.elements import e, table
from psnode.report.run import Run
from psnode.report.steps import finite
from psnode.report.variants import Variant

WAYS = ("gradients_in", "weights_in", "gradients_out", "weights_out")
_HEADS = ("ranks", "gradients in", "weights in", "gradients out", "weights out")
_MOST_RANKS, _MOST_FRAMES = 100_000, 1_000_000  # maximum for summary.json, and for routes that are followed


class RankLinks(NamedTuple):
    """The bytes of a run on the link of every rank. `loads`: by rank, the bytes of all `steps` steps together.

    `is_counted`: True if the ranks have counted these bytes. Otherwise the total of all ranks is divided among the links by
    the coordinates that pass them.
    """

    loads: Sequence[LinkLoad]
    steps: int
    is_counted: bool


def rank_links(run: Run) -> RankLinks | None:
    """Return the bytes of a run on the link of every rank; None if they cannot be derived from its files."""
    return _counted(run) or _by_routes(run)


def sections(variants: Iterable[Variant]) -> list[Element]:
    """Return a table of the bytes by rank for every variant whose first run has them."""
    found = [(variant, links) for variant in variants if (links := rank_links(variant.first)) is not None]
    tables = [_table(variant, links) for variant, links in found]
    if len(found) < 2:
        return tables
    return [
        e("details", e("summary", "Bytes by rank of ", named(variant)), shown)
        for (variant, _), shown in zip(found, tables, strict=True)
    ]


def _table(variant: Variant, links: RankLinks) -> Element:
    """Return the table of the bytes of a step by rank. Neighbouring ranks with the same figures share a row."""
    rows = [(load.rank, [amount(getattr(load, way) / links.steps) for way in WAYS]) for load in links.loads]
    cells = []
    for (_, figures), same in groupby(rows, key=lambda row: (row[0] == MASTER, row[1])):
        ranks = [rank for rank, _ in same]
        cells.append([role_of(ranks[0]) if len(ranks) == 1 else ranks_text(ranks), *figures])
    busiest = max(links.loads, key=lambda load: max(load.received, load.sent))
    heavy = f"{amount(busiest.received / links.steps)} in and {amount(busiest.sent / links.steps)} out"
    topology, first = variant.first.topology, "" if len(variant.runs) == 1 else " of its first run"
    way = f"counted by the ranks in {counted(links.steps, 'step')}"
    if not links.is_counted:
        way = "by the routes: the bytes of all ranks, shared out by coordinates"
    caption = f"Bytes of a step by rank, {variant.name}{first}"
    caption += f", --topology {topology}" if topology else ""
    return table(f"{caption}; {way}. The busiest link is that of {role_of(busiest.rank)}: {heavy}.", _HEADS, cells)


def _counted(run: Run) -> RankLinks | None:
    """Return the bytes that the ranks have counted, from summary.json; None if they are missing or invalid in this file."""
    found = run.summary.get("link_bytes")
    if not isinstance(found, dict) or not isinstance(ranks := found.get("ranks"), dict) or len(ranks) > _MOST_RANKS:
        return None
    steps, loads = finite(found.get("steps")), list[LinkLoad]()
    for name, ways in ranks.items():
        if not (name.isascii() and name.isdigit() and len(name) < 10) or not isinstance(ways, dict):
            return None
        values = [finite(ways.get(way)) for way in WAYS]
        known = [int(value) for value in values if value is not None and value >= 0]
        if len(known) < len(WAYS):
            return None
        loads.append(LinkLoad(int(name), [], 0, *known))
    if not loads or steps is None or steps < 1:
        return None
    return RankLinks(sorted(loads, key=lambda load: load.rank), int(steps), is_counted=True)


def _by_routes(run: Run) -> RankLinks | None:
    """Return the total bytes of all ranks, divided among the links in proportion to the coordinates that pass them.

    Returns None if the routes of the run are not known, or if there are too many of them.
    """
    plan, workers, steps, spares = run.plan, run.workers, len(run.steps), run.settings.get("spares")
    spares = spares if type(spares) is int else 0
    if plan is None or workers is None or not steps or run.topology is None:
        return None
    if run.settings.get("resume"):  # earlier steps may have had other routes
        return None
    topology = str(run.topology)
    try:
        servers = Config(topology=topology).servers
    except ConfigurationError:  # the topology may be one of another version
        return None
    if workers < 1 or spares < 0 or (workers + spares + servers) * len(plan.groups) > _MOST_FRAMES:
        return None
    layout, sizes = Layout(workers, spares, servers), [group.size for group in plan.groups]
    routes = routes_of(layout, plan, topology)
    if _frames(routes) * workers > _MOST_FRAMES:
        return None
    loads = link_loads(routes, layout.computing, sizes=sizes, ups=sizes, downs=sizes)
    totals = {"gradients": run.steps.sum("uplink_bytes"), "weights": run.steps.sum("downlink_bytes")}
    for way in WAYS:
        shares = _shared(round(totals[way.partition("_")[0]]), [getattr(load, way) for load in loads])
        for load, share in zip(loads, shares, strict=True):
            setattr(load, way, share)
    return RankLinks(loads, steps, is_counted=False)


def _frames(routes: Sequence[Route]) -> int:
    return sum(len(route.roots) for route in routes)


def _shared(total: int, weights: Sequence[int]) -> list[int]:
    """Return whole numbers in proportion to `weights` that add up to `total`; only zeros if all weights are 0."""
    whole, passed, given, found = sum(weights), 0, 0, list[int]()
    for weight in weights:
        passed += weight
        found.append(total * passed // max(whole, 1) - given)
        given += found[-1]
    return found
