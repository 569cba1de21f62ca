"""The command line. A command is imported when it runs, so that `--help` is fast."""

from paddock.cli.app import main

__all__ = ["main"]
