"""The command `psnode plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psnode.cli.debugging import debuggable
from psnode.cli.shared import FiniteRange, configure
from psnode.config.amounts import rate_of
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    from psnode.config import Config
    from psnode.jobs.planning.profile import Profile
    from psnode.jobs.planning.search.plan_search import PlanSearch


@click.command(short_help="Predict step times, and say whether to compress.", context_settings={"allow_interspersed_args": False})
@click.option("-n", "--workers", type=click.IntRange(1), required=True, metavar="P", help="Number of workers, each on its host.")
@click.option(
    "--rate", "rates", multiple=True, default=("100mbit", "1gbit", "10gbit"), show_default=True, metavar="RATE",
    help="Rate of every host's link, such as 100mbit; none: transfers cost no time; repeatable.",
)  # fmt: skip
@click.option(
    "--round-trip", type=FiniteRange(0), default=0.2, show_default=True, metavar="MS", help="Round trip of a message in ms."
)
@click.option(
    "--burst", type=FiniteRange(0), default=0.0, metavar="KB", help="Kilobytes that a link carries at once after a pause."
)
@click.option("--cores", type=click.IntRange(1), help="Cores of every host.  [default: those of this host]")
@click.option(
    "--one-machine", is_flag=True, help="All ranks share the cores of one machine, as --local's workers and emulated hosts do."
)
@click.option(
    "--scheme", "schemes", multiple=True, metavar="'NAME [FLAG VALUE]...'",
    help="A scheme to compare, and flags of `psnode train`; repeatable; dense, bf16 and the scheme of OPTIONS are always "
    "compared.  [default: qsgd, topk]",
)  # fmt: skip
@click.option("--profile", type=click.Path(path_type=Path), metavar="FILE", help="Measure nothing; read a saved profile.")
@click.option("--save-profile", type=click.Path(path_type=Path), metavar="FILE", help="Save what was measured for --profile.")
@click.option(
    "--save-plan", type=click.Path(path_type=Path), metavar="FILE",
    help="Save the best scheme's plan and prediction for train --plan; with one --rate.",
)  # fmt: skip
@click.option(
    "--groups", type=click.Choice(["best", "mergecomp", "secopa"]),
    help="Compare ways to group the tensors of the scheme in OPTIONS, and save the plan of this one.",
)  # fmt: skip
@click.option("--explain", is_flag=True, help="Also print how each step's time is spent along the chain that makes it so long.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="-- OPTIONS OF TRAIN...")
@debuggable
def plan(
    workers: int,
    rates: Sequence[str],
    profile: Path | None,
    save_plan: Path | None,
    *,
    groups: str | None,
    explain: bool,
    as_json: bool,
    options: tuple[str, ...],
    **given: Any,
) -> int:
    """Measure a training's passes and the coding of its gradients here, and predict steps of P workers, under several schemes
    and under PyTorch's DDP.

    The verdict names the fastest scheme whose recorded loss is near dense's, or says "do not compress" if something without loss
    is within 2 % of it. Nothing is trained and no job is started.

    psnode plan -n 4 --rate 100mbit -- --network ResNet18 --dataset synthetic
    """
    from psnode.jobs.planning.chosen_plan import chosen, plan_file
    from psnode.jobs.planning.forecast import forecasts, judge, limit_of, sentences
    from psnode.jobs.planning.forecast_tables import NO_RATE, chains, ending, heading, table
    from psnode.jobs.planning.profile import Profile
    from psnode.jobs.planning.scenario import Scenario
    from psnode.jobs.planning.search.ways import NAMES, way_table

    if save_plan is not None and len(rates) != 1:
        raise ConfigurationError("--save-plan needs one --rate, that of the cluster's links")
    speeds = {text: None if text == NO_RATE else rate_of(text) for text in rates}
    search: PlanSearch | None = None
    if profile is not None:
        if options or given["schemes"] or given["save_profile"] or groups is not None:
            raise ConfigurationError(
                "--profile measures nothing: leave out --scheme, --groups, --save-profile and the options of train"
            )
        found = Profile.load(profile)
    elif groups is None:
        found = _measure(given["schemes"], options, workers + 1 if given["one_machine"] else 1)
    else:
        if given["schemes"]:
            raise ConfigurationError("--groups is about the scheme of the options: leave --scheme out")
        search, found = _measure_groups(groups, options, workers + 1 if given["one_machine"] else 1)
    if given["save_profile"] is not None:
        found.save(given["save_profile"])
    cores = given["cores"] or found.host.cores
    scenario = Scenario(workers, None, given["round_trip"] / 1e3, cores, given["one_machine"], 1e3 * given["burst"])
    if not as_json:
        click.echo(heading(found))
    results, limit = [], limit_of(found, scenario)
    for text, rate in speeds.items():
        here = replace(scenario, rate=rate)
        rows = forecasts(found, here)
        verdict = judge(rows)
        told = sentences(verdict)
        results.append({"rate": text, "verdict": told, "compress": verdict.compress, "rows": [asdict(row) for row in rows]})
        if not as_json:
            click.echo("\n".join([*table(found, workers, text, rows, told), *(chains(rows) if explain else [])]))
        source, file, name = f"psnode plan, {text}", None, ""
        if search is not None:
            _tell(f"steps of groups at {text}")
            ways = search.ways(found, here)
            listed = ways.compared()
            results[-1]["groups"] = [{"name": way.name, "seconds": way.step.seconds, "sent": way.sent} for way in listed]
            if not as_json:
                click.echo("\n".join(way_table(search.name, listed, found)))
            if save_plan is not None:
                way = next(way for way in listed if way.name == NAMES.get(str(groups), listed[0].name))
                name, file = f"{search.name}, groups by {way.name}", search.file(ways, way, workers, source)
                if verdict.best.name != search.name:
                    click.echo(f"note: the verdict at {text} names {verdict.best.name}, not {search.name}", err=True)
        elif save_plan is not None:
            row = chosen(rows, verdict)
            name, file = row.name, plan_file(found, row, verdict, workers, source)
        if save_plan is not None and file is not None:
            file.save(save_plan)
            click.echo(f"{save_plan}: {name}, for psnode train --plan {save_plan}", err=True)
    if as_json:
        click.echo(to_json({"workers": workers, "limit": limit, "passes": found.passes, "results": results}, indent=2))
    elif limit is not None:
        click.echo("\n".join(ending(limit)))
    return 0


def _measure(schemes: Sequence[str], options: Sequence[str], ranks: int) -> Profile:
    from psnode.bench.hardware import hardware
    from psnode.jobs.planning.compared import compared
    from psnode.jobs.planning.profiling import measure

    base = _base(options)
    return replace(measure(base, compared(base, schemes), _tell, ranks=ranks), hardware=hardware())


def _measure_groups(groups: str, options: Sequence[str], ranks: int) -> tuple[PlanSearch, Profile]:
    from psnode.bench.hardware import hardware
    from psnode.jobs.planning.compared import scheme_name
    from psnode.jobs.planning.search.measured_candidates import codec_pairs
    from psnode.jobs.planning.search.plan_search import PlanSearch

    base = _base(options)
    if groups == "secopa" and len(codec_pairs("own", base)) < 2:
        raise ConfigurationError("--groups secopa has no meaning here: all groups of this scheme have the same codec")
    search, profile = PlanSearch.measured(scheme_name(base), base, _tell, ranks=ranks)
    return search, replace(profile, hardware=hardware())


def _base(options: Sequence[str]) -> Config:
    """Return the configuration of train with OPTIONS."""
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    return configure(**root.command.commands["train"].make_context("psnode train", [*options]).params)


def _tell(line: str) -> None:
    click.echo(f"measuring {line}", err=True)
