"""Commands that act on the nodes."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import click

from psnode_ec2 import copying
from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.flags import CommandContext, command
from psnode_ec2.node_ssh import Access

_REFUSED, _INTERRUPTED = 2, 130


def add_to(cli: click.Group) -> None:
    """Register the commands of this module on `cli`."""
    node = click.option("--node", default="master", help="Of master, worker-0, ..., an instance id, workers or all. [master]")
    words = click.argument("words", nargs=-1)
    command(cli, "setup")(_setup)
    command(
        cli,
        "run",
        click.option("--detach", is_flag=True, help="Do not wait for the end."),
        click.option(
            "--sync", type=click.Path(path_type=Path), metavar="DIR", help="Copy this folder of code to all nodes, and run there."
        ),
        click.option("--keep-alive", is_flag=True, help="Restart the job when EC2 takes nodes; alone: the last such job."),
        click.option("--shutdown", is_flag=True, help="End the cluster when the job has ended, with its checkpoint fetched."),
        click.option("--restarts", type=click.IntRange(0), help="The most restarts of --keep-alive. [5]"),
        words,
    )(_run)
    command(cli, "stop")(_stop)
    command(
        cli,
        "logs",
        click.option("--follow", is_flag=True, help="Until the job ends, with its exit code."),
        click.option("--lines", default=50, type=click.IntRange(0), help="From the end. [50]"),
    )(_logs)
    command(cli, "ssh", node, words)(_ssh)
    command(cli, "put", node, click.argument("local", type=click.Path(path_type=Path)), click.argument("remote"))(_put)
    command(cli, "get", node, click.argument("remote"), click.argument("local"))(_get)


def _setup(session: CommandContext) -> None:
    """Install psnode on all nodes, make them known to each other, mount the shared directory."""
    from psnode_ec2.preparing import constraints_of, package_of, prepare

    constraints_of(session.settings)  # refuses a missing file before a wheel is built
    with package_of(session.settings.package, dry_run=session.cloud.dry_run) as package:
        prepare(session.way(complete=True), package)


def _run(
    session: CommandContext,
    detach: bool,
    sync: Path | None,
    keep_alive: bool,
    shutdown: bool,
    restarts: int | None,
    words: tuple[str, ...],
) -> None:
    """Run psnode (`run -- train ...`) or a program with a session on all nodes, and any other command only on the master.

    Exits with the code of the command.
    """
    from psnode_ec2 import checkpoint_sync, jobs
    from psnode_ec2.kept_job import begin, run_kept
    from psnode_ec2.rank_placement import slots
    from psnode_ec2.shutdown import ask
    from psnode_ec2.worktree import CODE, pack, put_code

    if restarts is not None and not keep_alive:
        raise SettingsError("--restarts is for --keep-alive: name that too, or drop it")
    if detach and (keep_alive or shutdown):
        raise SettingsError("--keep-alive and --shutdown have to stay and look: leave --detach out")
    if shutdown:
        ask(session, session.cluster.nodes(), discard=False, when="when the job has ended ")
    if keep_alive and session.cloud.dry_run:
        begin(session, words, restarts)
    elif keep_alive:
        _end(session, run_kept(session, words, sync, restarts), shutdown)
    way = session.way(complete=jobs.over_all(words))
    counts = slots(session.cloud, session.settings, way.nodes) if jobs.over_all(words) else [1] * len(way.nodes)
    if sync:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "code.tar"
            pack(sync, archive, session.settings.keyfile)
            put_code(way, archive)
    job = jobs.start(way, words, counts, CODE if sync else ".")
    if not detach:
        code = jobs.follow(way, job)
        if session.settings.checkpoints:
            checkpoint_sync.wait(way)
        _end(session, code, shutdown)
    click.echo(job)


def _end(session: CommandContext, code: int, shutdown: bool) -> NoReturn:
    """Exit with the job's code. If `shutdown`, end the cluster first, unless the job still runs (130) or was refused (2)."""
    if shutdown and code not in (_REFUSED, _INTERRUPTED):
        from psnode_ec2.shutdown import close

        close(session, session.cluster.nodes(), discard=False)
    sys.exit(code)


def _stop(session: CommandContext) -> None:
    """Ask the running job to write a checkpoint and end."""
    from psnode_ec2 import jobs

    jobs.stop(session.way())


def _logs(session: CommandContext, follow: bool, lines: int) -> None:
    """Show the log of the last job."""
    from psnode_ec2 import jobs

    sys.exit(jobs.follow(session.way(), lines=str(lines), watching=True) if follow else jobs.show(session.way(), lines))


def _ssh(session: CommandContext, node: str, words: tuple[str, ...]) -> None:
    """Log in to a node, or run a command on it: `ssh -- uptime`. Several nodes run the command one after another."""
    way = session.way()
    chosen = way.choose(node)
    if len(chosen) > 1 and not words:
        raise SettingsError(f"{node} is {len(chosen)} nodes: name one to log in to, or a command")
    codes = [_one(way, index, words) for index in map(way.nodes.index, chosen)]
    sys.exit(max(codes))


def _one(way: Access, index: int, words: tuple[str, ...]) -> int:
    node = way.nodes[index]
    # as in ssh, a single word is a line for the node's shell; several words are quoted first
    line = words[0] if len(words) == 1 else shlex.join(words)
    full = way.line(node, line, terminal=sys.stdin.isatty() and sys.stdout.isatty())
    if way.dry_run:
        click.echo(f"would run {shlex.join(full)}")
        return 0
    return subprocess.run(full).returncode


def _put(session: CommandContext, node: str, local: Path, remote: str) -> None:
    """Copy a file or a folder to nodes.

    REMOTE is relative to the home directory. A folder becomes REMOTE, or goes into REMOTE/.
    """
    if not local.exists():
        raise SettingsError(f"{local} does not exist: name a file or a folder")
    way = session.way()
    copying.put(way, way.choose(node), local, remote)


def _get(session: CommandContext, node: str, remote: str, local: str) -> None:
    """Copy a file or a folder from a node.

    A folder becomes LOCAL, or goes into LOCAL/. Copies from several nodes go to LOCAL/NODE/.
    """
    way = session.way()
    chosen = way.choose(node)
    for each in chosen:
        copying.get(way, each, remote, local if len(chosen) == 1 else f"{local}/{each.name}/")
