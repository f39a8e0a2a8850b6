"""The command `psnode simulate`, which simulates a whole job in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import click

from psnode.cli.debugging import debuggable
from psnode.cli.shared import FiniteRange
from psnode.config import settings
from psnode.config.amounts import amount, counted, duration, milliseconds, rate_of
from psnode.config.declaration import click_option, nearest
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    from psnode.jobs.simulating.simulated_job import SimulatedJob

_NO_RATE = "none"
# settings of train that apply to a simulated job
_RULES = ("topology", "consistency", "num_aggregate", "staleness", "aggregate_order", "deadline", "pause_deadline", "min_workers")
_MOST_EVENTS = 20  # maximum number of printed events


def _with_rules(command: Callable[..., int]) -> Callable[..., int]:
    """Return `command` with those options of train that also apply to a simulated job (`_RULES`)."""
    for name in reversed(_RULES):
        option = click_option(settings()[name], settings()[name].rules.help)
        command.__dict__.setdefault("__click_params__", []).append(option)
    return command


@click.command(short_help="Simulate a whole job in virtual time.")
@click.option("--profile", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Profile of `psnode plan`.")
@click.option("-n", "--workers", type=click.IntRange(1), required=True, metavar="P", help="Number of workers, each on its host.")
@click.option("--rate", required=True, metavar="RATE", help="Rate of every host's link, such as 10gbit; none: no cost.")
@click.option("--scheme", required=True, metavar="NAME", help="Scheme of the profile, with its flags.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Versions of the weights to make.")
@click.option(
    "--round-trip", type=FiniteRange(0), default=0.2, show_default=True, metavar="MS", help="Round trip of a message in ms."
)
@click.option(
    "--uneven", type=FiniteRange(0, 0.9), default=0.0, show_default=True, metavar="SHARE",
    help="The connection of rank r weighs 1 + SHARE (2 r / P - 1) when connections share a link.",
)  # fmt: skip
@click.option("--cores", type=click.IntRange(1), help="Cores of every host.  [default: those of the measured host]")
@click.option(
    "--jitter", type=FiniteRange(0), metavar="SIGMA",
    help="Standard deviation of the logarithm of a pass's duration, which is log-normal.  [default: the profile's durations]",
)  # fmt: skip
@click.option(
    "--pass-times", type=click.Path(path_type=Path), metavar="FILE",
    help="File of durations in any unit, one per line; the durations of passes get their proportions, instead of --jitter.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the durations.")
@click.option("--stop", "stops", multiple=True, metavar="RANK@SECONDS:DURATION", help="A worker stops for a time; repeatable.")
@click.option("--kill", "kills", multiple=True, metavar="RANK@SECONDS", help="A worker dies; repeatable.")
@click.option(
    "--detection", type=FiniteRange(0), default=0.1, show_default=True, help="Seconds until the master learns of a death."
)
@_with_rules
@click.option("--train-dir", type=click.Path(path_type=Path), metavar="DIR", help="Write the records of a run into DIR.")
@click.option("--timeline", is_flag=True, help="Also record the work of every rank in timeline.json, for Perfetto and reports.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@debuggable
def simulate(profile: Path, workers: int, rate: str, scheme: str, steps: int, **given: Any) -> int:
    """Simulate a job of P workers in virtual time, from a profile that `psnode plan --save-profile` has written.

    The routes, the consistency rule and the membership are those of a real job. The durations of passes, coding and messages come
    from the profile. The output shows step times, the staleness of gradients, and the bytes on links. Workers may be unequally
    fast, pause, or die.

    psnode simulate --profile runs/profile.json -n 64 --rate 10gbit --scheme topk --consistency asp
    """
    from psnode.config.load import load
    from psnode.jobs.planning.profile import Profile
    from psnode.jobs.planning.scenario import Scenario
    from psnode.jobs.simulating.disturbances import Death, Spread, Standstill, durations_of
    from psnode.jobs.simulating.simulated_job import Disturbances, groups_of, simulate_job
    from psnode.jobs.simulating.simulated_records import write_records

    found = Profile.load(profile)
    if scheme not in found.schemes:
        raise ConfigurationError(
            f"{profile} has no scheme {scheme!r}: it has {', '.join(map(repr, found.schemes))}{nearest(scheme, found.schemes)}"
        )
    if given["jitter"] and given["pass_times"]:
        raise ConfigurationError("--jitter and --pass-times both say how durations differ: leave one of the two out")
    if given["timeline"] and given["train_dir"] is None:
        raise ConfigurationError("--timeline writes into --train-dir: name the directory, or leave it out")
    rules = {name: given[name] for name in _RULES if given[name] is not None}
    scenario = Scenario(
        workers, None if rate == _NO_RATE else rate_of(rate), given["round_trip"] / 1e3, given["cores"] or found.host.cores,
        uneven=given["uneven"],
    )  # fmt: skip
    own = found.host.durations if given["jitter"] is None and given["pass_times"] is None else ()
    measured = durations_of(given["pass_times"]) if given["pass_times"] else own
    disturbances = Disturbances(
        Spread(given["jitter"] or 0.0, measured, given["seed"], median(own) if own else None),
        [Standstill.of(text) for text in given["stops"]],
        [Death.of(text) for text in given["kills"]],
        given["detection"],
    )
    config = load(rules, {})
    groups = groups_of(found, scheme, config, workers)
    job = simulate_job(found, groups, scenario, config, steps, disturbances, timeline=given["timeline"])
    asked = {
        "model": found.model, "workers": workers, "rate": rate, "scheme": scheme, "steps": steps, **rules,
        "pass_times": f"{given['pass_times'] or (profile if own else '')}", "jitter": given["jitter"] or 0.0,
        **{name: given[name] for name in ("round_trip", "uneven", "seed", "stops", "kills", "detection")},
    }  # fmt: skip
    if given["train_dir"] is not None:
        write_records(given["train_dir"], job, found.nbytes // 4, asked)
    if given["as_json"]:
        click.echo(to_json({**asked, **_facts(job)}, indent=2))
    else:
        _show(asked, job)
    if job.failure is not None:
        raise job.failure
    return 0


def _facts(job: SimulatedJob) -> dict[str, Any]:
    from psnode.jobs.simulating.simulated_records import links_of

    versions = [
        {
            "version": version.number, "finished": version.finished, "seconds": seconds, "dropped": version.dropped,
            "contributors": sorted(version.contributors), "staleness": _staleness(version.number, version.added),
        }
        for version, seconds in zip(job.versions, job.step_times, strict=True)
    ]  # fmt: skip
    return {
        "seconds": job.seconds, "stopped": job.stop_reason, "versions": versions, "links": links_of(job), "events": job.events,
    }  # fmt: skip


def _staleness(version: int, added: Sequence[Sequence[Any]]) -> dict[int, int]:
    """Return, for each rank, the greatest staleness of its gradients that were added to the version `version`."""
    found: dict[int, int] = {}
    for gradient in (gradient for group in added for gradient in group):
        found[gradient.rank] = max(found.get(gradient.rank, 0), version - 1 - gradient.based)
    return dict(sorted(found.items()))


def _show(asked: dict[str, Any], job: SimulatedJob) -> None:
    under = f", --topology {asked['topology']}" if "topology" in asked else ""
    click.echo(f"{asked['model']}, {asked['scheme']}{under}: {counted(job.workers, 'worker')}, links of {asked['rate']}")
    times, ended = job.step_times, "" if job.stop_reason is None else f", then the job ended: {job.stop_reason}"
    click.echo(f"{counted(len(times), 'step')} in {duration(job.seconds)}{ended}")
    if times:
        extremes = f"shortest {milliseconds(min(times))}, longest {milliseconds(max(times))}"
        click.echo(f"a step: median {milliseconds(median(times))}, {extremes}")
        contributing = fmean(len(version.contributors) for version in job.versions)
        click.echo(f"workers in a version: {contributing:.1f}; frames dropped: {job.dropped:,}")
        click.echo(f"staleness of gradients: {_shares(job.staleness)}")
    click.echo(f"the master's link: {amount(job.received[0])} in, {amount(job.sent[0])} out")
    for role, ranks in (("worker", range(1, job.workers + 1)), ("server", range(job.workers + 1, len(job.sent)))):
        most = max(ranks, key=lambda rank: job.sent[rank] + job.received[rank], default=None)
        if most is not None:
            click.echo(
                f"the busiest {role}'s link, of rank {most}: {amount(job.received[most])} in, {amount(job.sent[most])} out"
            )
    for event in job.events[:_MOST_EVENTS]:
        who = "" if event["rank"] is None else f"rank {event['rank']} "
        click.echo(f"  at {event['time']:.3f} s, step {event['step']}: {who}{event['event']} {event['reason']}".rstrip())
    if len(job.events) > _MOST_EVENTS:
        click.echo(f"  and {counted(len(job.events) - _MOST_EVENTS, 'event')} more: --json")


def _shares(staleness: Counter[int]) -> str:
    total = staleness.total()
    return ", ".join(f"{versions}: {100 * count / total:.1f} %" for versions, count in sorted(staleness.items()))
