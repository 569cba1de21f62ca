"""`paddock doctor`: finds problems of the machine, the configuration, the models and the server.

A check is a pure function that returns a `Finding`. The functions `look_at_…` collect what the checks need.
"""

from paddock.cli.doctor.command import command

__all__ = ["command"]
