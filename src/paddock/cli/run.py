"""`paddock run`: chat with a model at the terminal, or ask it one question."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paddock.cli.chat.conversation import CommandError, Conversation
from paddock.cli.chat.server import Server, configured_server, started_server

if TYPE_CHECKING:
    from paddock.cli.chat.printing import Printer

_MULTILINE = '"""'


@click.command("run")
@click.argument("words", nargs=-1, metavar='[MODEL] ["QUESTION"]')
@click.option("--url", metavar="URL", help="The server to use. [PADDOCK_URL, or the settings' host and port]")
@click.option("--api-key", metavar="KEY", help="Its API key. [PADDOCK_API_KEY]")
@click.option("--system", metavar="TEXT", default="", help="The system message.")
@click.option("--set", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter, such as temperature=0.2.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole response as JSON. Needs a question.")
def command(
    words: tuple[str, ...],
    url: str | None,
    api_key: str | None,
    system: str,
    parameters: tuple[str, ...],
    as_json: bool,
) -> None:
    """Chat with a model, or ask it one question.

    MODEL is the name of a model of the server, or a GGUF file. Without a running server, one is started for as long as
    the chat lasts. Text from a pipe is put before the question: cat notes.txt | paddock run "summarise".
    """
    conversation = Conversation(system=system)
    try:
        for setting in parameters:
            name, _, value = setting.partition("=")
            conversation.run(f"/set {name} {value}")
    except CommandError as error:
        raise click.UsageError(str(error)) from None
    with _server(url, api_key, words) as server:
        conversation.model, question = _model_and_question(words, server)
        piped = "" if sys.stdin.isatty() else sys.stdin.read()
        text = "\n\n".join(part for part in (piped.strip(), question) if part)
        if text:
            conversation.ask(text)
            _print_json(server, conversation) if as_json else _answer(server, conversation)
        elif as_json:
            raise click.UsageError("--json needs a question")
        elif sys.stdin.isatty():
            _chat(server, conversation)


@contextmanager
def _server(url: str | None, key: str | None, words: tuple[str, ...]) -> Iterator[Server]:
    """The running server, unless the first word is a file that only a server of our own can serve."""
    found = configured_server(url, key)
    file = _file(words)
    if file is None and found.is_running():
        yield found
        return
    if url is not None:
        raise click.ClickException(
            f"no server answers at {found.url}" if file is None else f"{file} cannot be sent there"
        )
    with started_server(["-m", str(file)] if file is not None else [], found.key) as server:
        yield server


def _file(words: tuple[str, ...]) -> Path | None:
    return Path(words[0]) if words and words[0].endswith(".gguf") and Path(words[0]).is_file() else None


def _model_and_question(words: tuple[str, ...], server: Server) -> tuple[str | None, str]:
    """The first word is a model if the server has one of that name, or if a question follows."""
    if not words or _file(words) is not None:
        return None, " ".join(words[1:])
    names = {name for model in server.models() for name in (model["id"], *model.get("aliases", ()))}
    first = words[0].removesuffix(".gguf")
    if first in names or words[0] in names:
        return words[0], " ".join(words[1:])
    if len(words) > 1 and " " not in words[0]:
        raise click.ClickException(f"there is no model {words[0]!r}; there are: {', '.join(sorted(names))}")
    return None, " ".join(words)


def _chat(server: Server, conversation: Conversation) -> None:
    names = [model["id"] for model in server.models()]
    model = conversation.model or (names[0] if len(names) == 1 else "the default model")
    click.echo(f"Chatting with {model}. /help lists the commands, Ctrl-D leaves.")
    with suppress(ImportError):
        import readline  # noqa: F401  # history and editing for input()
    while (line := _read_message()) is not None:
        if not line.strip():
            continue
        if line.startswith("/"):
            try:
                output = conversation.run(line)
            except CommandError as error:
                output = f"{error}"
            if output is None:
                return
            click.echo(output)
            continue
        conversation.ask(line)
        try:
            _answer(server, conversation)
        except click.ClickException as error:
            conversation.take_back()
            click.echo(f"paddock: {error.message}", err=True)


def _read_message() -> str | None:
    """One message; None at the end of the input. Ctrl-C at the prompt forgets the line."""
    try:
        line = input(">>> ")
        if not line.startswith(_MULTILINE):
            return line
        lines = [line.removeprefix(_MULTILINE)]
        while not lines[-1].rstrip().endswith(_MULTILINE) or (len(lines) == 1 and not lines[0].strip(' "')):
            lines.append(input("... "))
        return "\n".join(lines).rstrip().removesuffix(_MULTILINE).strip("\n")
    except EOFError:
        click.echo()
        return None
    except KeyboardInterrupt:
        click.echo()
        return ""


def _answer(server: Server, conversation: Conversation) -> None:
    """Print the answer while it is generated. Ctrl-C stops it; what has arrived is kept."""
    parts: list[str] = []
    with suppress(KeyboardInterrupt), _printer() as printer:
        for event in server.stream(conversation.body() | {"stream": True}):
            if isinstance(event, str):
                printer.progress(event)
                continue
            for choice in event.get("choices", ()):
                delta: dict[str, Any] = choice.get("delta", {})
                if reasoning := delta.get("reasoning_content"):
                    printer.reasoning(reasoning)
                if content := delta.get("content"):
                    parts.append(content)
                    printer.content(content)
    conversation.answer("".join(parts))


def _print_json(server: Server, conversation: Conversation) -> None:
    click.echo(json.dumps(server.complete(conversation.body()), indent=2, ensure_ascii=False))


def _printer() -> Printer:
    """Markdown on a terminal if rich is installed (paddock-llm[run]), else the text as it is."""
    from paddock.cli.chat.printing import PlainPrinter

    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        return PlainPrinter(sys.stdout)
    from rich.console import Console

    from paddock.cli.chat.markdown import MarkdownPrinter

    return MarkdownPrinter(Console())
