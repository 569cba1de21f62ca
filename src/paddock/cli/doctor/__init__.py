"""`paddock doctor`: what is wrong here, and what helps. Checks are pure; what they judge is looked up beside them."""

from paddock.cli.doctor.report import command

__all__ = ["command"]
