"""The command line of psnode: its commands, their options, and messages about errors in a command line."""

from psnode.cli.commands import app, main

__all__ = ["app", "main"]
