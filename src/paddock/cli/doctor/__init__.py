"""`paddock doctor`: finds problems of the machine, the configuration, the models and the server.

A check is a pure function that returns a `Finding`. The functions `examine_…` collect its input.
"""

from paddock.cli.doctor.command import command

__all__ = ["command"]
