"""The command line. Each command's code is imported when it runs, so that `--help` answers at once."""

from paddock.cli.app import main

__all__ = ["main"]
