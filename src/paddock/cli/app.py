from __future__ import annotations

import signal

import click

from paddock import __version__
from paddock.cli.common import LazyGroup

_COMMANDS = {
    "serve": "Serve models over HTTP (OpenAI- and llama.cpp-compatible).",
    "run": "Chat with a model at the terminal, or ask it one question.",
    "ps": "List the models that a running server has loaded.",
    "cache": "List what is cached, by model and tenant, or clear it.",
    "batch": "Run files of requests when the server has time: run, submit, list, show, cancel, fetch.",
    "stop": "Unload a model of a running server.",
    "pull": "Download a model from the Hugging Face hub.",
    "import": "Serve the models of an Ollama store in place.",
    "verify": "Check the receipts of answers, and compute the answers again.",
    "keys": "Create API keys, and keys that sign receipts.",
    "config": "Show the configuration and where each value comes from, or check it.",
    "models": "List the models that would be served, and the memory they need.",
    "doctor": "Find problems of the machine and the configuration, and how to solve them.",
    "build": "Compile llama.cpp for this machine, or show what that would gain.",
    "service": "Run Paddock as a systemd service: install, uninstall, status.",
    "bench": "Measure this and other servers under load, and compare them.",
    "cluster": "Serve models on a Ray cluster: deploy, status, delete, config.",
    "lab": "Run experiments with this and other servers.",
}
_PLUGINS = {"bench": "paddock-lab", "lab": "paddock-lab"}
"""Commands of other distributions."""


@click.group(
    cls=LazyGroup,
    modules="paddock.cli.{}",
    commands=_COMMANDS,
    plugins=_PLUGINS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="paddock")
def main() -> None:
    """Serve every GGUF model on a machine from one server."""
    # Who started this process may ignore it; then nobody learns how a worker or the trial of a library ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
