"""The command `psnode plan`, which predicts the steps of a job under several schemes, and under PyTorch's DDP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from psnode.cli.debugging import debuggable
from psnode.cli.shared import FiniteRange, configure
from psnode.config import settings
from psnode.config.amounts import rate_of, rate_text
from psnode.config.plain_json import to_json
from psnode.config.train_settings import BY_RULE
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    from psnode.jobs.planning.forecast import CompressionVerdict, Forecast
    from psnode.jobs.planning.profile import Profile
    from psnode.jobs.planning.refitting.finished_run import FinishedRun
    from psnode.jobs.planning.refitting.profile_refit import ProfileRefit
    from psnode.jobs.planning.scenario import Scenario
    from psnode.jobs.planning.search.plan_search import PlanSearch
    from psnode.plans.plan_file import PlanFile

_ALL = "auto"  # stands for all topologies that need no additional ranks
_PRINTED = "-"  # given in place of a file, to print the text
_RATES = ("100mbit", "1gbit", "10gbit")


@click.command(short_help="Predict step times, and say whether to compress.", context_settings={"allow_interspersed_args": False})
@click.option(
    "-n", "--workers", type=click.IntRange(1), metavar="P",
    help="Number of workers, each on its host; may be left out with --from.  [required]",
)  # fmt: skip
@click.option(
    "--rate", "rates", multiple=True, default=_RATES, show_default=True, metavar="RATE",
    help="Rate of every host's link, such as 100mbit; none: transfers cost no time; repeatable.",
)  # fmt: skip
@click.option(
    "--round-trip", type=FiniteRange(0), default=0.2, show_default=True, metavar="MS", help="Round trip of a message in ms."
)
@click.option(
    "--burst", type=FiniteRange(0), default=0.0, metavar="KB", help="Kilobytes that a link carries without delay after a pause."
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
@click.option(
    "--topology", metavar="NAME|auto",
    help="Where weights are updated, as --topology of `psnode train`; auto compares them.  [default: that of OPTIONS]",
)  # fmt: skip
@click.option("--profile", type=click.Path(path_type=Path), metavar="FILE", help="Measure nothing; read a saved profile.")
@click.option(
    "--from", "run", type=click.Path(path_type=Path), metavar="RUN",
    help="Directory of a finished run: show its figures next to the predicted figures, and predict from them.",
)  # fmt: skip
@click.option("--save-profile", type=click.Path(path_type=Path), metavar="FILE", help="Save the measurements for --profile.")
@click.option(
    "--save-plan", type=click.Path(path_type=Path), metavar="FILE",
    help="Save the best scheme's plan and prediction for train --plan; with one --rate.",
)  # fmt: skip
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE.svg",
    help="Draw the predicted step of the plan that --save-plan would save; with one --rate.",
)  # fmt: skip
@click.option(
    "--draw", metavar="FILE.svg|-",
    help="Draw the routes of gradients and weights of the scheme and topology that the verdict names, or print them; with one "
    "--rate.",
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
    workers: int | None,
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

    The verdict names the fastest scheme whose recorded loss is near that of dense. It says "do not compress" if a candidate
    without loss takes at most 2 % longer than the fastest lossy one. Nothing is trained, and no job is started.

    psnode plan -n 4 --rate 100mbit -- --network ResNet18 --dataset synthetic
    """
    from psnode.jobs.planning.forecast import limit_of
    from psnode.jobs.planning.forecast_tables import NO_RATE, ending, heading
    from psnode.jobs.planning.profile import Profile
    from psnode.jobs.planning.refitting import refit_table
    from psnode.jobs.planning.routing.routed_groups import USUAL

    topologies: Sequence[str] = _topologies(given["topology"])
    speeds = {text: None if text == NO_RATE else rate_of(text) for text in rates}
    search: PlanSearch | None = None
    fitted: ProfileRefit | None = None
    _refuse_together(groups, profile, as_json=as_json, options=options, **given)
    if given["run"] is not None:
        fitted = _refitted(given["run"], profile, speeds, given)
        workers, found, scenario = workers or fitted.run.workers, fitted.profile, fitted.scenario
        topologies = (fitted.run.config.topology,)
        if not _chosen("rates") and scenario.rate is not None:
            speeds = {rate_text(scenario.rate): scenario.rate}
    elif workers is None:
        raise ConfigurationError("-n is missing: give the number of workers")
    for option, file in (("--save-plan", save_plan), ("--plot", given["plot"]), ("--draw", given["draw"])):
        if file is not None and len(speeds) != 1:
            raise ConfigurationError(f"{option} needs one --rate, that of the cluster's links")
    if fitted is None:
        if profile is None:
            ranks = workers + 1 if given["one_machine"] else 1
            search, found, topologies = _measured(groups, given["schemes"], options, topologies, ranks)
        else:
            found = Profile.load(profile)
        scenario = _scenario(given, found.host.cores)
    scenario = replace(scenario, workers=workers)
    if given["save_profile"] is not None:
        found.save(given["save_profile"])
    topologies = tuple(topologies) or (USUAL,)
    source = "psnode plan" if fitted is None else f"psnode plan --from {fitted.run.path.name}"
    asked = _Asked(found, search, groups, save_plan, given["plot"], source, explain, not as_json, topologies, given["draw"])
    asked.show(heading(found), *([] if fitted is None else refit_table.lines(fitted)))
    limit = limit_of(found, scenario, topologies)
    results = [_at_rate(asked, text, replace(scenario, rate=rate)) for text, rate in speeds.items()]
    if as_json:
        answer = {"workers": workers, "limit": limit, "passes": found.passes, "results": results}
        click.echo(to_json(answer | ({} if fitted is None else {"run": refit_table.facts(fitted)}), indent=2))
    elif limit is not None:
        asked.show(*ending(limit))
    return 0


def _refuse_together(groups: str | None, profile: Path | None, *, as_json: bool, options: Sequence[str], **given: Any) -> None:
    """Raise ConfigurationError for options that cannot be combined."""
    if groups is not None and given["schemes"]:
        raise ConfigurationError("--groups is about the scheme of the options: leave --scheme out")
    if given["run"] is not None:
        if options or groups is not None:
            raise ConfigurationError("--from has the options of its run: leave out --groups and the options of train")
        if given["topology"] is not None:
            raise ConfigurationError("--from has the topology of its run: leave out --topology")
    if given["draw"] is not None and groups is not None:
        raise ConfigurationError("--draw has no meaning beside --groups: leave one of the two out")
    if given["draw"] == _PRINTED and as_json:
        raise ConfigurationError("--draw - prints text, and --json prints JSON: name a file, or leave one of the two out")
    measured = options or given["schemes"] or given["save_profile"] or groups is not None
    if given["run"] is None and profile is not None and measured:
        raise ConfigurationError(
            "--profile measures nothing: leave out --scheme, --groups, --save-profile and the options of train"
        )


def _topologies(text: str | None) -> tuple[str, ...]:
    """Return the topologies that the value `text` of --topology names; an empty tuple if `text` is None.

    Raises ConfigurationError for an unknown topology.
    """
    from psnode.exchange.routes.topologies import COMPARED

    if text is None:
        return ()
    if text == _ALL:
        return COMPARED
    return (settings()["topology"].parse(text, "--topology"),)


def _scenario(given: Mapping[str, Any], cores: int) -> Scenario:
    """Return a scenario with one worker, on links that cost no time, from the options `given`.

    `cores`: the cores of a host if --cores is not given.
    """
    from psnode.jobs.planning.scenario import Scenario

    return Scenario(1, None, given["round_trip"] / 1e3, given["cores"] or cores, given["one_machine"], 1e3 * given["burst"])


def _chosen(name: str) -> bool:
    """Return True if the user has given the option `name`."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def _refitted(path: Path, profile: Path | None, speeds: Mapping[str, float | None], given: Mapping[str, Any]) -> ProfileRefit:
    """Return a profile that is refitted to the figures of the run in `path`.

    `profile`: a file with the profile; None to measure one with the configuration of the run.
    """
    from psnode.jobs.planning.profile import Profile
    from psnode.jobs.planning.refitting.finished_run import FinishedRun
    from psnode.jobs.planning.refitting.profile_refit import refit

    if profile is not None and given["schemes"]:
        raise ConfigurationError("--profile measures nothing: leave out --scheme")
    run = FinishedRun.read(path)
    found = _measured_as(run, given["schemes"]) if profile is None else Profile.load(profile)
    scenario = replace(_scenario(given, run.cores or found.host.cores), workers=run.workers)
    if run.links is not None and not _chosen("round_trip"):
        scenario = replace(scenario, round_trip=run.links.round_trip)
    asked = [*speeds.values()] if _chosen("rates") else []
    if len(asked) == 1:
        return refit(found, run, replace(scenario, rate=asked[0]), given=True)
    return refit(found, run, scenario, given=False)


class _Asked(NamedTuple):
    """The measurements and options that determine the answer for each rate."""

    profile: Profile
    search: PlanSearch | None
    groups: str | None
    save_plan: Path | None
    plot: Path | None
    source: str
    explain: bool
    shows: bool
    topologies: Sequence[str]
    draw: str | None

    @property
    def saves(self) -> bool:
        """True if a plan, or a picture of its step, is to be saved."""
        return self.save_plan is not None or self.plot is not None

    def show(self, *lines: str) -> None:
        """Print lines of text, unless the answer is to be JSON."""
        if self.shows:
            click.echo("\n".join(lines))


def _at_rate(asked: _Asked, rate: str, scenario: Scenario) -> dict[str, Any]:
    """Print the predictions for a rate, save the plan if requested, and return all results in types that JSON has."""
    from psnode.jobs.planning.chosen_plan import chosen, plan_file
    from psnode.jobs.planning.forecast import forecasts, judge, left_out, sentences, topology_sentences
    from psnode.jobs.planning.forecast_tables import chains, table

    rows = forecasts(asked.profile, scenario, asked.topologies)
    missing = left_out(asked.profile, asked.topologies, rows) if asked.search is None else {}  # a search uses all candidates
    for topology, names in missing.items():
        click.echo(f"note: --topology {topology}: refused, or too many frames to predict: {', '.join(names)}", err=True)
    verdict = judge(rows)
    told = [*sentences(verdict), *topology_sentences(rows, verdict)]
    found = {"rate": rate, "verdict": told, "compress": verdict.compress, "rows": [asdict(row) for row in rows]}
    asked.show(*table(asked.profile, scenario.workers, rate, rows, told), *(chains(rows) if asked.explain else []))
    if asked.search is not None:
        return found | {"groups": _of_groups(asked, asked.search, rate, scenario, verdict)}
    if asked.saves:
        row = chosen(rows, verdict)
        _save(plan_file(asked.profile, row, verdict, scenario, f"{asked.source}, {rate}"), asked, row.label)
    if asked.draw is not None:
        _draw(asked, asked.draw, chosen(rows, verdict), scenario.workers)
    return found


def _draw(asked: _Asked, file: str, row: Forecast, workers: int) -> None:
    """Print the routes of the groups of the forecast `row`, or draw them into an SVG file."""
    from psnode.jobs.planning.routing.route_lines import route_lines
    from psnode.jobs.planning.routing.routed_groups import routed
    from psnode.report.route_picture import save_routes

    groups = routed(asked.profile, row.name, row.topology, workers)
    if file == _PRINTED:
        asked.show(*route_lines(groups, row.name, row.topology))
    else:
        save_routes(Path(file), groups, row.name, row.topology)
        click.echo(f"{file}: routes of {row.label}", err=True)


def _of_groups(
    asked: _Asked, search: PlanSearch, rate: str, scenario: Scenario, verdict: CompressionVerdict
) -> list[dict[str, Any]]:
    from psnode.jobs.planning.search.rehearsal import quickest, rehearsal_table, rehearse
    from psnode.jobs.planning.search.ways import NAMES, way_table

    _tell(f"steps of groups at {rate}")
    ways = search.ways(asked.profile, scenario, *asked.topologies)
    listed = ways.compared()
    asked.show(*way_table(search.name, listed, asked.profile, *asked.topologies))
    again = []
    if asked.groups not in NAMES:
        again = rehearse(search, ways, listed, lambda line: _tell(f"again: {line}"))
        asked.show(*rehearsal_table(again, listed))
    if asked.saves:
        name = NAMES.get(str(asked.groups), listed[0].name)
        way = quickest(again) if again else next(way for way in listed if way.name == name)
        file = search.file(ways, way, scenario.workers, f"{asked.source}, {rate}")
        _save(file, asked, f"{search.name}, groups by {way.name}")
        if verdict.best.name != search.name:
            click.echo(f"note: the verdict at {rate} names {verdict.best.name}, not {search.name}", err=True)
    return [
        {
            "name": way.name, "groups": len(way.costs.groups), "seconds": way.step.seconds, "sent": way.sent,
            "spent": way.step.spent, "binds": way.step.binds, "codecs": way.shares(asked.profile),
            "rehearsed": next((other.step.seconds for other in again if other.name == way.name), None),
        }
        for way in listed
    ]  # fmt: skip


def _save(found: PlanFile, asked: _Asked, name: str) -> None:
    """Save a plan, and a picture of its predicted step, if the options ask for them."""
    from psnode.report.step_picture import save_svg

    if asked.save_plan is not None:
        found.save(asked.save_plan)
        click.echo(f"{asked.save_plan}: {name}, for psnode train --plan {asked.save_plan}", err=True)
    if asked.plot is not None and found.prediction is not None:
        save_svg(asked.plot, found.prediction)
        click.echo(f"{asked.plot}: a step of {name}", err=True)


def _measured(
    groups: str | None, schemes: Sequence[str], options: Sequence[str], topologies: Sequence[str], ranks: int
) -> tuple[PlanSearch | None, Profile, Sequence[str]]:
    """Measure the training that OPTIONS describe, and return the search, the profile and the topologies to predict.

    If `groups` is given, the groups of the training's scheme are measured for a search. Otherwise its scheme and other
    schemes are measured, and there is no search. If `topologies` is empty, the topology of OPTIONS takes its place.
    """
    from psnode.bench.hardware import hardware
    from psnode.exchange.routes.topologies import COMPARED
    from psnode.jobs.planning.compared import compared, scheme_name
    from psnode.jobs.planning.profiling import measure
    from psnode.jobs.planning.routing.routed_groups import USUAL, possible
    from psnode.jobs.planning.search.measured_candidates import codec_pairs
    from psnode.jobs.planning.search.plan_search import PlanSearch

    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    base = configure(**root.command.commands["train"].make_context("psnode train", [*options]).params)
    if base.plan != BY_RULE:
        raise ConfigurationError("--plan has no meaning in the options of train here, where plans are made: leave it out")
    topologies = topologies or (COMPARED if base.topology == _ALL else (base.topology,))
    if groups is not None and len(topologies) > 1:
        raise ConfigurationError("--groups needs one topology: name it in place of --topology auto")
    topologies, refused = possible(base, topologies)
    for line in refused:
        click.echo(f"note: left out: {line}", err=True)
    base = replace(base, topology=USUAL)  # the measured worker and its master are in one process
    if groups == "secopa" and len(codec_pairs("own", base)) < 2:
        raise ConfigurationError("--groups secopa has no meaning here: all groups of this scheme have the same codec")
    search: PlanSearch | None = None
    if groups is None:
        found = measure(base, compared(base, schemes), _tell, ranks=ranks)
    else:
        search, found = PlanSearch.measured(scheme_name(base), base, _tell, ranks=ranks)
    return search, replace(found, hardware=hardware()), topologies


def _measured_as(run: FinishedRun, schemes: Sequence[str]) -> Profile:
    """Return a profile, measured on this host, of the model of a run under the scheme of the run and other schemes."""
    from psnode.bench.hardware import hardware
    from psnode.jobs.planning.compared import compared
    from psnode.jobs.planning.profiling import measure

    if run.code is not None:
        raise ConfigurationError(f"--from {run.path} would execute {run.code}: measure a profile with it, and give --profile")
    base = run.config_in_one_process
    return replace(measure(base, compared(base, schemes), _tell), hardware=hardware())


def _tell(line: str) -> None:
    click.echo(f"measuring {line}", err=True)
