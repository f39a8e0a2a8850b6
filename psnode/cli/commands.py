"""The command line: it builds a configuration, passes it to the jobs, and turns an error into one line and an exit code.

The flags of `train` come from the table in psnode.config. Each command imports slow modules only when it needs them.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import augment_usage_errors

from psnode import __version__
from psnode.cli.bench import bench
from psnode.cli.completion import VALUES
from psnode.cli.debugging import debuggable, traced
from psnode.cli.doctor import doctor
from psnode.cli.export import export
from psnode.cli.plan import plan
from psnode.cli.runs import report, runs
from psnode.cli.shared import configure
from psnode.cli.simulate import simulate
from psnode.cli.slurm_options import exportable, show
from psnode.cli.tune import tune
from psnode.cli.usage_errors import in_words
from psnode.config import settings, streams
from psnode.config.declaration import click_option
from psnode.config.logs import hushed, shown
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError, PsnodeError, in_one_line, lacking
from psnode.plans.roles import MASTER, Layout
from psnode.transport.mpi.environment import place

_PRINTS, _DRY = "psnode.print_config", "psnode.dry_run"  # keys in the meta dictionary of click's context
_GRACE = 5.0  # seconds that other ranks wait, so that rank 0 reports an error first
# first setting -> title, for each part of `psnode train --help`
PARTS = {
    "task": "Model and data",
    "optimizer": "Optimisation",
    "scheme": "Communication",
    "consistency": "Rounds",
    "train_dir": "Records",
    "local": "Execution",
}


class _Train(click.Command):
    """A command whose help lists its options in several parts, each with its own title."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments as click does. Errors name this command, even if it is parsed within `psnode launch`."""
        with augment_usage_errors(ctx):
            return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        title, rows = "Options", list[tuple[str, str]]()
        for parameter in self.get_params(ctx):
            if parameter.name in PARTS:
                _write(formatter, title, rows)
                title, rows = PARTS[parameter.name], []
            if record := parameter.get_help_record(ctx):
                rows.append(record)
        _write(formatter, title, rows)


def _write(formatter: click.HelpFormatter, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


@click.group(
    name="psnode",
    help="Distributed training of PyTorch models over slow links, with coded gradients.",
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True,
    callback=lambda context, option, asked: _version(context, asked),
    help="Show the version, and a digest of the source, which differs between commits, and exit.",
)  # fmt: skip
def app() -> None:
    """The click group of all psnode commands."""


def _version(context: click.Context, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from psnode.config.source import source, told

        click.echo(f"psnode {told(__version__, source())}")
        context.exit()


def train(**given: Any) -> int:
    """Train a model. Under mpirun -n P+1 rank 0 is the master; with --local P everything runs in this process.

    Every setting can also be given in the --config file or in a variable named like PSNODE_LR. A variable overrides the file, and
    a flag overrides both.
    """
    config = configure(**given)
    if click.get_current_context().meta.get(_PRINTS):
        from psnode.config.load import to_toml

        click.echo(to_toml(config), nl=False)
        return 0
    if config.comm_type and _speaks():
        click.echo(f"psnode: --comm-type {config.comm_type} changes nothing: there is one exchange, point-to-point.", err=True)
    if click.get_current_context().meta.get(_DRY):
        if _speaks():
            from psnode.jobs.dry_run import dry_run

            here = place()
            workers = 1 if here is None else max(1, Layout.of(here.size, config.spares, config.servers).workers)
            click.echo(dry_run(config, config.local or workers), nl=False)
        return 0
    with traced(config.debug):
        from psnode.jobs.job import run

        return run(config)


_file = click.Option(
    ["--config", "file"], type=click.Path(path_type=Path), metavar="FILE", help="TOML file of settings, or config.json of a run."
)
_print = click.Option(  # not a setting, and so not visible to programs that read the flags of train
    ["--print-config"], is_flag=True, expose_value=False, help="Print all settings as a file for --config, and exit.",
    callback=lambda context, option, value: context.meta.update({_PRINTS: value}),
)  # fmt: skip
_dry = click.Option(
    ["--dry-run"], is_flag=True, expose_value=False, help="Print the plan, bytes and memory of the job, and exit.",
    callback=lambda context, option, value: context.meta.update({_DRY: value}),
)  # fmt: skip
app.add_command(
    _Train(
        "train",
        callback=train,
        params=[
            _file,
            _print,
            _dry,
            *(click_option(each, each.rules.help, VALUES.get(each.name)) for each in settings().values()),
        ],
        help=train.__doc__,
        short_help="Train: a master, and a worker on every other rank.",
    )
)


@app.command(short_help="Train on P workers through mpirun, fault tolerant.", context_settings={"allow_interspersed_args": False})
@click.option(
    "-n",
    "--workers",
    type=click.IntRange(1),
    required=True,
    metavar="P",
    help="Number of workers; the master, and the spares and servers that train asks for, are added.",
)
@click.option(
    "--hostfile", type=click.Path(path_type=Path), help="File with one host per line, NAME slots=N, the master's host first."
)
@click.option("--mpirun-arg", "mpirun_args", multiple=True, metavar="ARG", help="Argument passed to mpirun; repeatable.")
@click.option(
    "--kill-after", type=click.FloatRange(0), default=10.0, show_default=True, help="Seconds between SIGTERM and SIGKILL."
)
@click.option(
    "--restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of times to restart a job that died, with --resume.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- train ...|PROGRAM.py ...")
@exportable
@debuggable
def launch(
    workers: int, mpirun_args: tuple[str, ...], command: tuple[str, ...], batch: dict[str, Any] | None, **options: Any
) -> int:
    """Run `psnode COMMAND` on a master and P workers through mpirun, with the options of a fault-tolerant job.

    COMMAND may also be PROGRAM.py with its arguments, if the program has a psnode.session.
    """
    if command[0].endswith(".py"):
        if batch is not None:
            raise ConfigurationError(
                "--export needs a command of psnode, to know the directory of the run: write train, not a program"
            )
        return _launch_program(workers, list(command), list(mpirun_args), **options)
    streams.outlast()
    context = click.get_current_context().find_root()
    _, chosen, rest = app.resolve_command(context, list(command))
    config, directory, others = None, None, 0
    if chosen is app.commands["train"]:  # refuse here the settings that every rank would refuse
        config = configure(**chosen.make_context("psnode train", rest).params)
        if config.local is not None:
            raise ConfigurationError("--local runs all workers in one process: leave it out, or leave out launch")
        directory, others = config.directory, config.spares + config.servers
    elif options["restarts"]:
        raise ConfigurationError("--restarts resumes a training run: it has no meaning for another command, leave it out")
    if batch is not None:
        return show(batch, workers, command, config, {**options, "mpirun_args": mpirun_args})
    from psnode.jobs.launch import launch as run_job

    with hushed(config is not None and config.quiet):
        return run_job(workers + others, list(command), mpirun_args=list(mpirun_args), run_directory=directory, **options)


def _launch_program(workers: int, command: list[str], mpirun_args: list[str], **options: Any) -> int:
    if options["restarts"]:
        raise ConfigurationError("--restarts knows no directory to resume in for a program: leave it out")
    if not Path(command[0]).is_file():
        raise ConfigurationError(f"there is no program {command[0]}: name a file, or a command of psnode")
    from psnode.jobs.launch import PROGRAM
    from psnode.jobs.launch import launch as run_job

    streams.outlast()
    return run_job(workers, command, mpirun_args=mpirun_args, program=PROGRAM, **options)


@app.command(short_help="Follow a run and evaluate its checkpoints.")
@click.option("--train-dir", "--model-dir", type=click.Path(path_type=Path), required=True, help="The directory of the run.")
@click.option(
    "--follow/--once", default=True, help="Follow the run until it ends, or evaluate only the checkpoints that exist now."
)
@click.option("--checkpoint", metavar="STEP|PATH", help="Evaluate only the checkpoint of this step.")
@click.option(
    "--patience", type=click.FloatRange(0), default=600.0, show_default=True, help="Seconds to wait for a stopped run to resume."
)
@click.option(
    "--interval",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds between checks for a new checkpoint.",
)
@click.option(
    "--batch-size",
    "--eval-batch-size",
    "--test-batch-size",
    type=click.IntRange(1),
    help="Examples per batch; default: the run's.",
)
@click.option("--enable-gpu/--no-enable-gpu", default=False, help="Compute on CUDA.")
@click.option("--task", metavar="FILE|MODULE", help="Code of the task that the run trains, unless it is built in; is executed.")
@click.option("--trust-run/--no-trust-run", default=False, help="Execute the task code named in the run's record.")
@click.option("--ema", is_flag=True, help="Evaluate the moving averages of the weights of a run with --ema-decay.")
@debuggable
def evaluate(train_dir: Path, follow: bool, **options: Any) -> int:
    """Evaluate each checkpoint of a run once, as it appears, and exit when the run has ended."""
    from psnode.evaluator import follow as follow_run

    streams.outlast()
    return follow_run(train_dir, once=not follow, **options)


app.add_command(bench)
app.add_command(report)
app.add_command(runs)
app.add_command(plan)
app.add_command(simulate)
app.add_command(tune)
app.add_command(export)
app.add_command(doctor)


@app.command(short_help="List codecs and schemes, or explain one.")
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--source", type=click.Choice(["numba", "cuda"]), help="Print the kernels that are generated from the formula of codec NAME."
)
def codecs(name: str | None, as_json: bool, source: str | None) -> int:
    """List every codec with its traits, and every scheme. With NAME, explain one of them in full: parameters, traits and
    learning-rate rule. NAME may be FILE.py:CLASS, a codec of your own. FILE.py without CLASS lists the codecs that the file
    defines. Both execute the file.
    """
    from psnode.cli import codec_listing

    if name is not None and as_json:
        raise ConfigurationError("--json lists everything: leave out the name")
    if source is not None:
        if name is None or as_json:
            raise ConfigurationError("--source is about one codec: name it, as in psnode codecs qsgd --source numba")
        codec_listing.show_source(name, source)
    elif name is not None:
        codec_listing.explain(name)
    elif as_json:
        click.echo(to_json(codec_listing.everything(), indent=2))
    else:
        codec_listing.show()
    return 0


def _speaks() -> bool:
    """Return True if this process may print an error before MPI starts: if it is rank 0, or no rank of a job.

    All ranks find the same error, and only rank 0 should print it.
    """
    here = place()
    return here is None or here.rank == MASTER


def main(arguments: Sequence[str] | None = None, command: click.Command | None = None, name: str = "psnode") -> int:
    """Run a command line of psnode, or of another `command`, and return the exit code. `name`: the program's name in messages."""
    here = place()
    try:
        with shown(here.rank if here is not None else 0), streams.installed():
            return _run(arguments, command or app, name)
    except ConfigurationError as error:  # standard output may be closed already
        return _fail(str(error), error.exit_code)


def _run(arguments: Sequence[str] | None, command: click.Command, name: str) -> int:
    try:
        code = command.main(args=arguments, prog_name=name, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        return _fail(in_words(error, command, sys.argv[1:] if arguments is None else arguments), 2)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except PsnodeError as error:
        return _fail(" ".join(str(error).split()), error.exit_code)
    except Exception as error:  # any other exception is a bug of psnode or of the user's task
        if isinstance(error, ModuleNotFoundError) and (told := lacking(error)):
            return _fail(told, ConfigurationError.exit_code)
        traceback.print_exc()
        return _fail(f"{in_one_line(error)}: unexpected", PsnodeError.exit_code)


def _fail(message: str, code: int) -> int:
    """Print the error `message`, and return the exit code `code`.

    Before MPI starts, all ranks find the same error. Ranks other than 0 wait before they print it, so that rank 0 prints it
    first; the exit of rank 0 then ends the others.
    """
    from psnode.protocol.messages import plain

    here, message = place(), plain(message)  # the message may quote a file from an untrusted source
    if here is not None and here.rank > 0:
        time.sleep(_GRACE)  # if this rank exits before rank 0, mpirun kills rank 0 before it has printed the error
        message = f"rank {here.rank}: {message}"
    click.echo(f"psnode: error: {message}", err=True)
    return code
