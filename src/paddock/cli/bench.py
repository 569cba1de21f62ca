"""`paddock bench`: the lab's load generator, which is imported when it runs."""

from __future__ import annotations

import importlib

import click

command: click.Command = importlib.import_module("paddock.lab.bench.command").command
