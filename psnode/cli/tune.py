"""The command `psnode tune`, which compares short trainings with different settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psnode.cli.debugging import debuggable
from psnode.cli.shared import configure
from psnode.config import Config, settings, streams
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError, PsnodeError, installing

if TYPE_CHECKING:
    from psnode.jobs.tuning.space import Varied
    from psnode.jobs.tuning.trial import Trial

_OWN = ("--max-steps", "--epochs", "--stop-after", "--train-dir", "--model-dir", "--resume")  # options that tune sets itself
_LOWER = ("loss", "train_loss")  # metrics that are better when lower


@click.command(short_help="Try settings, and report the best.", context_settings={"allow_interspersed_args": False})
@click.option(
    "--vary", multiple=True, required=True, metavar="NAME=V1,V2,...|LOW..HIGH",
    help="A setting of train or a parameter of the codec, and its values; repeatable.",
)  # fmt: skip
@click.option("--steps", type=click.IntRange(1), required=True, help="Steps of a trial that runs to the end.")
@click.option(
    "--halving", type=click.IntRange(2), metavar="N", help="Compare trials early; each time the best N-th part of them continues."
)
@click.option(
    "--trials", type=click.IntRange(1), default=20, show_default=True, help="Number of trials drawn if a value is a range."
)
@click.option(
    "--metric", default="loss", show_default=True, metavar="loss|top1|...|train_loss",
    help="Criterion: a metric of the evaluator, or the mean loss of a trial's last tenth, which needs no evaluation.",
)  # fmt: skip
@click.option(
    "--maximize/--minimize", default=None, help="Direction of the criterion; default: lower for a loss, higher for anything else."
)
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="Seeds of each trial; the mean of their results counts."
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed for drawing the trials.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path("runs/tune"), show_default=True, help="Directory for the runs."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- [launch -n P -- train] OPTIONS OF TRAIN...")
@debuggable
def tune(vary: Sequence[str], command: tuple[str, ...], trials: int, as_json: bool, output: Path, **options: Any) -> int:
    """Train with every combination of the values, each as a job of its own, and print a table and the command of the best.

    With --seeds N each trial is trained N times, as separate jobs: with the seed of OPTIONS and with the seeds that follow it.

    If the same command is given again, even after it was killed, it continues with the remaining trials. A failed training is
    recorded as failed.

    psnode tune --vary lr=0.1,0.05,0.01 --vary scheme=qsgd,topk --steps 200 -- --local 2 --network FC
    """
    from filelock import FileLock, Timeout

    from psnode.cli.watching import watching
    from psnode.jobs.tuning import space, sweep_table
    from psnode.jobs.tuning.sweep import UNMEASURED, Sweep, run

    metric = options["metric"].replace("-", "_")
    maximize = options["maximize"] if options["maximize"] is not None else metric not in _LOWER
    varied = space.parse(vary)
    maker = _Maker(command, output.absolute(), options["steps"])
    seeds = tuple(range(maker.seed, maker.seed + options["seeds"]))
    sweep = Sweep(options["steps"], metric, maximize, options["halving"] or 0, options["seed"], watching, seeds)
    maker.check(varied)
    if find_spec("torch") is None:  # otherwise every trial would report this, in its own log
        raise ConfigurationError(f"torch is not installed: {installing('train')}")
    if note := maker.note(varied):
        click.echo(f"psnode: {note}", err=True)
    streams.outlast()
    output.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(output / ".lock", timeout=0):
            outcomes = run(varied, sweep, maker.make, trials, lambda line: click.echo(line, err=True))
    except Timeout:
        raise ConfigurationError(f"another sweep is running in {output}: wait for its end or choose another --output") from None
    unmeasured = sum(one.state.startswith(UNMEASURED) for one in outcomes)
    if unmeasured:
        click.echo(
            f"psnode: {unmeasured} of {len(outcomes)} trials could not be evaluated, and any of them may be the best: mend what "
            "their output.log tells, and give the same command again, which trains none of them anew",
            err=True,
        )
    if as_json:
        click.echo(to_json(sweep_table.as_json(outcomes, metric), indent=2))
    else:
        sweep_table.show(outcomes, metric)
    if sweep_table.best_of(outcomes) is None:
        raise PsnodeError(f"no trial came to a result: each directory in {output} has an output.log")
    return 0


class _Maker:
    """A factory that makes trials from the words after `--` on the command line."""

    def __init__(self, command: Sequence[str], output: Path, steps: int) -> None:
        root = click.get_current_context().find_root()
        assert isinstance(root.command, click.Group)
        self._train = root.command.commands["train"]
        words = [*command]
        end = words.index("train") + 1 if words[:1] in (["train"], ["launch"]) and "train" in words else 0
        if words[:1] == ["launch"] and not end:
            raise ConfigurationError("tune runs trainings: write -- launch -n P -- train ...")
        self._command, self._options = tuple(words[:end] or ["train"]), words[end:]
        self._output, self._steps = output, steps
        for word in self._options:
            if word.split("=")[0] in _OWN:
                raise ConfigurationError(f"tune sets {word.split('=')[0]} itself: leave it out")
        config = self._config([])
        self._scheme, self._codec, self.seed = config.scheme, config.codec, config.seed
        if self._command == ("train",) and config.local is None:
            raise ConfigurationError("each trial is a job: add --local P, or write -- launch -n P -- train ...")

    def check(self, varied: Sequence[Varied]) -> None:
        """Raise ConfigurationError if train would refuse a trial, or if a varied name has no meaning.

        Every combination of the listed values is checked, with the low end of each range.
        """
        unused = {one.name for one in varied if one.name not in settings()}
        for trial in self._of_lists(varied):
            unused -= trial.values.keys()
        if unused:
            raise ConfigurationError(f"--vary {min(unused)}: no setting has that name, and no parameter of the trials' codecs")

    def note(self, varied: Sequence[Varied]) -> str:
        """Return a notice about a trial that codes only the uplink because it has a codec of its own; empty if there is none.

        `psnode train` prints such a notice too, but the output of a trial goes to its own log, where it would not be seen.
        """
        from psnode.codecs.registry import brief, known_codec, load_codec

        for trial in self._of_lists(varied):
            config = self._config(trial.options)
            if config.codec is not None and config.downlink is None:
                codec = brief(known_codec(load_codec(config.codec)))
                return f"downlink: dense, since --codec {codec} replaces the uplink's codec alone; --downlink SPEC codes it too"
        return ""

    def _of_lists(self, varied: Sequence[Varied]) -> Iterator[Trial]:
        """Yield a trial for every combination of the listed values. Each range is represented by its low end."""
        from psnode.jobs.tuning.space import grid

        low = {one.name: f"{one.low:g}" if not one.whole else f"{int(one.low)}" for one in varied if one.is_range}
        for values in grid([one for one in varied if not one.is_range]):
            yield self.make({**values, **low})

    def make(self, values: dict[str, str]) -> Trial:
        """Return the trial with the varied `values`. Parameters that the trial's codec does not have are left out."""
        from psnode.config.schedules import SHAPED
        from psnode.jobs.tuning.space import flags, parameters_of
        from psnode.jobs.tuning.trial import Trial

        known = {*settings(), *parameters_of(values.get("scheme", self._scheme), values.get("codec", self._codec))}
        kept = {name: value for name, value in values.items() if name in known}
        options = flags(kept, self._options, self._scheme, self._codec)
        planned = self._steps if self._config(options).lr_schedule in SHAPED else 0
        return Trial(kept, self._command, tuple(options), self._output, planned)

    def _config(self, options: Sequence[str]) -> Config:
        """Return the settings of a trial with these options. Raises ConfigurationError for a setting that train would refuse."""
        words = [*options] or [*self._options]
        return configure(**self._train.make_context("psnode train", words).params)
