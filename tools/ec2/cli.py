"""The command line: settings from a file and from flags, one line and an exit code for every error."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from psnode_ec2 import node_commands
from psnode_ec2.cloud import progress
from psnode_ec2.cluster import ENDED, LIVE, Node
from psnode_ec2.ends import first_end, notice
from psnode_ec2.errors import Ec2Error, NoClusterError, OthersError
from psnode_ec2.flags import Session, command


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from psnode_ec2.preparing import version

        click.echo(f"psnode-ec2 {version()}")
        ctx.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit.")
def cli() -> None:
    """A cluster for psnode on EC2. Its resources are those that carry its tags; every command is safe to repeat."""


@command(cli, "launch")
def _launch(session: Session) -> None:
    """Start the cluster, or complete the one that is there, and wait until it runs."""
    from psnode_ec2.launching import launch

    for node in launch(session.cluster, session.settings, session.confirm):
        click.echo(line(node))


@command(cli, "status", click.option("--json", "as_json", is_flag=True, help="As JSON."))
def _status(session: Session, as_json: bool) -> None:
    """Show the nodes, and those that EC2 ended within the last hour."""
    cluster = session.cluster
    nodes = cluster.nodes(LIVE + ENDED)
    if as_json:
        click.echo(json.dumps([asdict(node) for node in nodes], default=str, indent=1))
        return
    for node in nodes:
        click.echo(line(node))
    live = sum(node.state in LIVE for node in nodes)
    click.echo(f"{live} of {session.settings.n_workers + 1} nodes of cluster {cluster.name}, owner {cluster.owner}")
    if first_end(nodes):
        click.echo("a node that ends takes its volume with it: get what was trained before, or write it to a shared directory")
    if told := notice(nodes, datetime.datetime.now(datetime.UTC)):
        progress(told)


@command(cli, "cost")
def _cost(session: Session) -> None:
    """Costs of the cluster an hour, and since its nodes started: at today's prices, without traffic."""
    from psnode_ec2.costs import costs, extras
    from psnode_ec2.volumes import volumes_of

    cluster, now = session.cluster, datetime.datetime.now(datetime.UTC)
    nodes = cluster.nodes()
    found = costs(session.cloud, session.settings, nodes, now)
    for each in found:
        limit = "  at most" if each.at_most else ""
        click.echo(
            f"{each.node.name:11} {each.node.type:12} {each.hours:8.2f} h {each.hourly:9.4f} USD/h {each.so_far:9.2f} USD{limit}"
        )
    hourly, so_far = sum(each.hourly for each in found), sum(each.so_far for each in found)
    click.echo(f"{len(found)} nodes: {hourly:.4f} USD an hour, {so_far:.2f} USD so far")
    more = extras(session.cloud, session.settings, nodes, volumes_of(cluster, nodes), now)
    for other in more:
        click.echo(f"{other.text}: {other.hourly:.4f} USD an hour, {other.so_far:.2f} USD so far")
    hourly, so_far = hourly + sum(other.hourly for other in more), so_far + sum(other.so_far for other in more)
    cap = session.settings.max_hourly_price
    over = f", over max_hourly_price = {cap:g}: end what is not needed" if hourly > cap else ""
    click.echo(f"together: {hourly:.4f} USD an hour, {so_far:.2f} USD so far{over}")


@command(
    cli, "shutdown", click.option("--discard", is_flag=True, help="Do not stop the job and fetch the newest checkpoint first.")
)
def _shutdown(session: Session, discard: bool) -> None:
    """End all nodes of the cluster and remove its resources: those that carry its tags, and nothing else."""
    from psnode_ec2.elsewhere import lasting_volumes, other_nodes
    from psnode_ec2.keeping import keep
    from psnode_ec2.removing import added_since, shutdown

    cluster = session.cluster
    nodes, others = cluster.nodes(), other_nodes(session.cluster)
    for node in nodes:
        progress(line(node))
    for told in (*lasting_volumes(cluster, nodes), *others):
        progress(told)
    session.confirm(
        f"end these {len(nodes)} nodes of cluster {cluster.name}, owner {cluster.owner}, with their volumes, and its groups"
        + (", and fetch no checkpoint" if discard else ", when the newest checkpoint was fetched from them")
    )
    if not discard and (kept := keep(cluster, session.settings, nodes)):
        progress(kept)
    for gone in shutdown(cluster, nodes):
        click.echo(gone if session.cloud.dry_run else f"removed {gone}")
    if more := added_since(cluster, nodes):
        raise OthersError(f"{more} nodes of this cluster were started since, and go on and cost: run shutdown again")
    if others and not nodes:
        raise NoClusterError(f"cluster {cluster.name} of {cluster.owner} has no nodes in {session.cloud.region}; {others[0]}")


@command(
    cli,
    "get_hosts",
    click.option("--directory", type=click.Path(path_type=Path), default=Path(), help="Where to write. [.]"),
)
def _get_hosts(session: Session, directory: Path) -> None:
    """Write hosts_address, hosts and hostfile: private addresses, the master's first."""
    from psnode_ec2.hosts import host_files, write_hosts
    from psnode_ec2.ranks import slots

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
    click.argument("kind", type=click.Choice(["config", "skypilot"])),
    click.argument("words", nargs=-1),
    needs_name=False,
)
def _export(session: Session, kind: str, words: tuple[str, ...]) -> None:
    """Print a commented cluster.toml (config), or a job for another launcher: `export skypilot -- train ...`."""
    from psnode_ec2.example import example
    from psnode_ec2.exports import skypilot

    click.echo(example() if kind == "config" else skypilot(session.settings, words), nl=False)


node_commands.add_to(cli)


def line(node: Node) -> str:
    """One node for people."""
    bought = "spot" if node.spot else "on-demand"
    reason = f"  {node.reason}" if node.state in ENDED and node.reason else ""
    if node.state in LIVE and node.ends:
        reason = f"  ends itself {node.ends:%Y-%m-%d %H:%M} UTC"
    return (
        f"{node.name:11} {node.id:19} {node.type:12} {node.zone:15} {bought:9} {node.state:13}"
        f" {node.private_address:15} {node.public_address:15}{reason}".rstrip()
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave with its exit code."""
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
