"""The command line."""

from psnode.cli.commands import app, main

__all__ = ["app", "main"]
