"""Settings as flags of every command, and objects that all commands share."""

from __future__ import annotations

import datetime
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from psnode.config.declaration import click_option
from psnode_ec2.cloud import Cloud, progress
from psnode_ec2.cluster import ENDED, LIVE, Cluster, Node, cluster_of
from psnode_ec2.ec2_errors import DeclinedError
from psnode_ec2.end_times import notice
from psnode_ec2.ledger import LedgerEntry, note
from psnode_ec2.node_ssh import Access, access
from psnode_ec2.settings import FIELDS, Settings, load, rule

_DEFAULT_FILE = Path("cluster.toml")


@dataclass(frozen=True)
class CommandContext:
    """Objects shared by all commands."""

    settings: Settings
    cloud: Cloud
    yes: bool

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster that the settings name."""
        return cluster_of(self.cloud, self.settings)

    def note(self, nodes: Sequence[Node]) -> list[LedgerEntry]:
        """Record `nodes`, which EC2 shows now, in the ledger. Return the ledger's entries of ended nodes."""
        cluster = self.cluster
        if self.cloud.dry_run:
            return []
        return note(self.settings, self.cloud.region, cluster.owner, nodes, datetime.datetime.now(datetime.UTC))

    def noted(self) -> tuple[list[Node], list[LedgerEntry]]:
        """Return the live nodes, and the ledger's entries of ended nodes."""
        nodes = self.cluster.nodes(LIVE + ENDED)
        return [node for node in nodes if node.state in LIVE], self.note(nodes)

    def way(self, *, complete: bool = False) -> Access:
        """Return the access to the running nodes; if `complete`, all nodes must run.

        Wait for host keys that are not known yet.
        """
        way = access(self.cluster, self.settings, complete=complete)
        if told := notice(way.nodes, datetime.datetime.now(datetime.UTC)):
            progress(told)
        return way

    def confirm(self, what: str) -> None:
        """Ask the user to confirm the action `what`, and return if the user agrees. Raises DeclinedError otherwise."""
        if self.cloud.dry_run or self.yes:
            progress(what)
        elif not sys.stdin.isatty():
            raise DeclinedError(f"{what}: nothing was done, for nobody could be asked; --yes answers in advance")
        elif not click.confirm(f"{what}. Go on?", err=True):
            raise DeclinedError("nothing was done")


def _say(line: str) -> None:
    """Print a line of a dry run. On a terminal, fold the line between words at the terminal's width."""
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
        line = textwrap.fill(line, columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    click.echo(line)


class _Command(click.Command):
    """A command whose help lists its own options first, then the settings that all commands share."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parts: dict[str, list[tuple[str, str]]] = {"Options": [], "Settings, each a key of cluster.toml too": []}
        own, settings = parts.values()
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                (settings if parameter.name in FIELDS else own).append(record)
        for title, rows in parts.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def command(
    group: click.Group, name: str, *parameters: Callable[..., Any], needs_name: bool = True
) -> Callable[[Callable[..., None]], None]:
    """Register a function of (session, ...) as a command with all settings as flags.

    `needs_name`: True to require a cluster name; otherwise the default name is psnode.
    """

    def register(function: Callable[..., None]) -> None:
        def run(config: Path | None, dry_run: bool, yes: bool, **given: Any) -> None:
            flags = {key: value for key in FIELDS if (value := given.pop(key)) is not None}
            if config is None and _DEFAULT_FILE.is_file():
                config = _DEFAULT_FILE
            settings = load(config, flags, unnamed="" if needs_name else "psnode")
            function(CommandContext(settings, Cloud(settings, dry_run=dry_run, say=_say), yes), **given)

        # click applies decorators from the last to the first
        for add in [*_common_flags(), *reversed(parameters)]:
            run = add(run)
        made = click.command(name, cls=_Command, help=function.__doc__)(run)
        made.params += [click_option(setting, _sentence(rule(setting))) for setting in FIELDS.values()]
        group.add_command(made)

    return register


def _common_flags() -> list[Callable[..., Any]]:
    return [
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Print the calls and commands; make only those that change nothing."),
        click.option("--config", type=click.Path(path_type=Path), help="TOML file of settings. [cluster.toml, if there is one]"),
    ]


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
