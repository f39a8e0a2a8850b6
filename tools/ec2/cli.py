"""Command line of the tool: settings come from a file and from flags, and every error becomes one line and an exit code."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from psnode.config import streams
from psnode.config.plain_json import to_json
from psnode_ec2 import node_commands
from psnode_ec2.cloud import progress
from psnode_ec2.cluster import ENDED, LIVE, counted
from psnode_ec2.ec2_errors import Ec2Error
from psnode_ec2.end_times import first_end, notice
from psnode_ec2.flags import CommandContext, command


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from psnode_ec2.preparing import version

        click.echo(f"psnode-ec2 {version()}")
        ctx.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit.")
def cli() -> None:
    """A cluster for psnode on EC2. Its tags mark its resources. Every command is safe to repeat."""


@command(cli, "launch")
def _launch(session: CommandContext) -> None:
    """Start the cluster, or complete an existing one, and wait until all nodes run."""
    from psnode_ec2.launching import launch, require

    require(session.cloud, session.settings)
    nodes = launch(session.cluster, session.settings, session.confirm)
    session.note(nodes)
    for node in nodes:
        click.echo(node)


@command(cli, "status", click.option("--json", "as_json", is_flag=True, help="As JSON."))
def _status(session: CommandContext, as_json: bool) -> None:
    """Show the nodes, including those that EC2 ended within the last hour."""
    cluster = session.cluster
    nodes = cluster.nodes(LIVE + ENDED)
    session.note(nodes)
    if as_json:
        click.echo(to_json([asdict(node) for node in nodes], default=str, indent=1))
        return
    for node in nodes:
        click.echo(node)
    live = sum(node.state in LIVE for node in nodes)
    click.echo(f"{live} of {session.settings.n_workers + 1} nodes of cluster {cluster.name}, owner {cluster.owner}")
    if first_end(nodes):
        click.echo("a node that ends takes its volume with it: get what was trained before, or write it to a shared directory")
    if told := notice(nodes, datetime.datetime.now(datetime.UTC)):
        progress(told)


@command(cli, "cost")
def _cost(session: CommandContext) -> None:
    """Show the cost of the cluster per hour and so far, including ended nodes, at today's prices and without traffic."""
    from psnode_ec2.costs import costs, ended, extras
    from psnode_ec2.resources import volumes_of

    cluster, now = session.cluster, datetime.datetime.now(datetime.UTC)
    nodes, gone = session.noted()
    found = costs(session.cloud, session.settings, nodes, now)
    for each in found:
        limit = "  at most" if each.at_most else ""
        click.echo(
            f"{each.node.name:11} {each.node.type:12} {each.hours:8.2f} h {each.hourly:9.4f} USD/h {each.so_far:9.2f} USD{limit}"
        )
    hourly, so_far = sum(each.hourly for each in found), sum(each.so_far for each in found)
    click.echo(f"{counted(len(found), 'node')}: {hourly:.4f} USD an hour, {so_far:.2f} USD so far")
    more = extras(session.cloud, session.settings, nodes, volumes_of(cluster, nodes), now)
    for other in more:
        click.echo(f"{other.text}: {other.hourly:.4f} USD an hour, {other.so_far:.2f} USD so far")
    before = ended(session.cloud, session.settings, gone, now)
    for other in before:
        click.echo(f"{other.text}: {other.so_far:.2f} USD")
    hourly, so_far = hourly + sum(other.hourly for other in more), so_far + sum(other.so_far for other in more)
    so_far += sum(other.so_far for other in before)
    cap = session.settings.max_hourly_price
    over = f", over max_hourly_price = {cap:g}: end what is not needed" if hourly > cap else ""
    click.echo(f"together: {hourly:.4f} USD an hour, {so_far:.2f} USD so far{over}")


@command(
    cli, "shutdown", click.option("--discard", is_flag=True, help="Do not stop the job and fetch the newest checkpoint first.")
)
def _shutdown(session: CommandContext, discard: bool) -> None:
    """End all nodes of the cluster and remove all resources that carry its tags, but nothing else."""
    from psnode_ec2.shutdown import close_all

    close_all(session, discard=discard)


@command(
    cli,
    "get_hosts",
    click.option("--directory", type=click.Path(path_type=Path), default=Path(), help="Where to write. [.]"),
)
def _get_hosts(session: CommandContext, directory: Path) -> None:
    """Write the files hosts_address, hosts and hostfile with private addresses, the master's first."""
    from psnode_ec2.rank_placement import host_files, slots, write_hosts

    nodes = session.cluster.complete(session.settings.n_workers)
    counts = slots(session.cloud, session.settings, nodes)
    if session.cloud.dry_run:
        for name, text in host_files(nodes, counts).items():
            click.echo(f"would write {directory / name}:\n{text}", nl=False)
        return
    for path in write_hosts(nodes, counts, directory):
        click.echo(path)


@command(
    cli,
    "export",
    click.argument("kind", type=click.Choice(["config", "skypilot", "iam-policy", "iam-trust", "iam-user"])),
    click.argument("words", nargs=-1),
    needs_name=False,
)
def _export(session: CommandContext, kind: str, words: tuple[str, ...]) -> None:
    """Print a commented cluster.toml (config), a job for another launcher (`export skypilot -- train ...`), or an IAM policy.

    iam-policy is for the nodes' role, iam-trust names the service that may take this role, and iam-user is for users of this
    tool.
    """
    if kind.startswith("iam-"):
        from psnode_ec2.policies import policy

        click.echo(policy(kind, session.settings), nl=False)
        return
    from psnode_ec2.example import example
    from psnode_ec2.exports import skypilot

    click.echo(example() if kind == "config" else skypilot(session.settings, words), nl=False)


@command(cli, "extend")
def _extend(session: CommandContext) -> None:
    """Set the end of all running nodes to max_hours after their start: `extend --max-hours 48`."""
    from psnode_ec2.end_times import extend

    changed = extend(session.cluster, session.way(), datetime.datetime.now(datetime.UTC), session.confirm)
    if not changed:
        click.echo(f"all nodes end themselves {session.settings.max_hours} h after their start already")
    for node in () if session.cloud.dry_run else session.cluster.nodes():
        click.echo(node)


@command(cli, "list", click.option("--json", "as_json", is_flag=True, help="As JSON."), needs_name=False)
def _list(session: CommandContext, as_json: bool) -> None:
    """Show all clusters of the account, of all owners, in all regions."""
    from psnode_ec2.listing import clusters

    found, failed = clusters(session.cloud)
    for told in failed:
        progress(told)
    if as_json:
        click.echo(to_json([each.plain() for each in found], default=str, indent=1))
        return
    for each in found:
        click.echo(each)
    click.echo(f"{counted(len(found), 'cluster')}, {counted(sum(each.nodes for each in found), 'node')}")


node_commands.add_to(cli)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code. If standard output is closed, the command continues without it."""
    streams.outlast()
    try:
        cli.main(arguments, prog_name="psnode-ec2", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "psnode-ec2"
        progress(f"psnode-ec2: error: {' '.join(error.format_message().split()).rstrip('.')}: see {where} --help")
        sys.exit(2)
    except click.Abort:
        progress("psnode-ec2: interrupted: status shows what there is; run the command again to go on, or shutdown")
        sys.exit(130)
    except Ec2Error as error:
        progress(f"psnode-ec2: error: {error}")
        sys.exit(error.exit_code)
