"""Messages about errors in the command line, such as unknown options, unknown commands and missing values."""

from __future__ import annotations

from collections.abc import Sequence

import click

from psnode.cli.bench import MOVED, MOVED_OPTIONS
from psnode.cli.foreign_flags import answer
from psnode.config.declaration import nearest


def in_words(error: click.UsageError, app: click.Command, arguments: Sequence[str]) -> str:
    """Return one line that describes the error in a command line and helps to correct it.

    `app`: the program's top command. `arguments`: the words of the command line.
    """
    path = error.ctx.command_path if error.ctx else _path(app, arguments)
    if isinstance(error, click.exceptions.NoSuchOption) and error.ctx:
        flags = [flag for parameter in error.ctx.command.params for flag in (*parameter.opts, *parameter.secondary_opts)]
        if path.startswith("psnode bench ") and error.option_name in MOVED_OPTIONS:
            return f"{error.option_name} is a study; in a clone of psnode: {MOVED_OPTIONS[error.option_name]}"
        hint = (answer(error.option_name) if path.endswith("train") else "") or nearest(error.option_name, flags)
        return f"unknown option {error.option_name}{hint} ({path} --help lists all of them)"
    if isinstance(error, click.exceptions.NoSuchCommand) and error.ctx and isinstance(error.ctx.command, click.Group):
        if error.ctx.command.name == "bench" and error.command_name in MOVED:
            module = error.command_name.replace("-", "_")
            return f"{error.command_name} is no command any more but a study; in a clone of psnode: python -m studies.{module}"
        names = error.ctx.command.list_commands(error.ctx)
        return f"unknown command {error.command_name!r}: choose from {', '.join(names)}{nearest(error.command_name, names)}"
    return f"{' '.join(error.format_message().split()).rstrip('.')}: see {path} --help"


def _path(command: click.Command, arguments: Sequence[str]) -> str:
    """Return the name of the program and the words in `arguments` that name its command and subcommands."""
    path = ["psnode"]
    for word in arguments:
        found = command.commands.get(word) if isinstance(command, click.Group) else None
        if found is None:
            break
        command = found
        path.append(word)
    return " ".join(path)
