"""`paddock verify`: check receipts, and compute their answers again."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NoReturn

import click
import msgspec

from paddock.cli.chat.server import ServerUnreachable
from paddock.cli.verifying.computing import NotComputed, computed, computing_server
from paddock.cli.verifying.report import MALFORMED, Report, as_json_object, print_report
from paddock.errors import StartupError
from paddock.receipts import Checker, MalformedLine, Receipt, load_public_key, parse, reply_of

_LONGEST_LINE = 256 << 20
_PIECE = 1 << 20


def _sample(_context: click.Context, _param: click.Parameter, value: str) -> tuple[float, bool]:
    """The number, and whether it is a share."""
    is_share = value.endswith("%")
    try:
        number = float(value.removesuffix("%"))
        if not 0 <= number <= (100 if is_share else sys.maxsize) or (not is_share and number != int(number)):
            raise ValueError
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number of lines nor a share such as 5%") from None
    return number, is_share


@click.command("verify")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--sample",
    default="100%",
    show_default=True,
    metavar="N|P%",
    callback=_sample,
    help="Compute so many lines again, chosen at random. The hashes of all lines are checked. 0: none.",
)
@click.option("--server", "url", metavar="URL", help="The server that computes them. [the running one]")
@click.option("--api-key", metavar="KEY", help="The API key. [$PADDOCK_API_KEY, or the configuration's first]")
@click.option(
    "--model",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A GGUF file: a server is started with it and with the options of the receipts.",
)
@click.option("--model-name", metavar="NAME", help="What the model is called on the server. [as in the receipts]")
@click.option(
    "--public-key",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Every receipt must be signed by this key (PEM, or 64 hexadecimal digits).",
)
@click.option("--last", metavar="HASH", help="The hash of the last receipt, so that no line is missing at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    file: Path,
    sample: tuple[float, bool],
    url: str | None,
    api_key: str | None,
    model: Path | None,
    model_name: str | None,
    public_key: Path | None,
    last: str | None,
    as_json: bool,
) -> None:
    """Check the receipts in FILE, and compute their answers again.

    FILE has a reply with a receipt in each line, or is the output of a batch. First the hashes, the signatures and the
    chain of the lines are checked, without a model. Then a server computes lines again: the running one, the one at
    --server, or one that is started with --model.

    The exit status is 0 if everything is as the receipts say; 1 if a line was altered or its answer is another one; 2
    if the file is malformed; 3 if an answer could not be computed again.
    """
    if url is not None and model is not None:
        raise click.UsageError("--server and --model are mutually exclusive")
    with ExitStack() as opened:
        try:
            lines = opened.enter_context(_opened(file))
            report = _check(file, lines, load_public_key(public_key) if public_key is not None else None, last)
        except StartupError as error:
            _end(error.message, MALFORMED)
        except OSError as error:
            _end(f"cannot read {file}: {error.strerror}", MALFORMED)
        if last is not None and last != report.last:
            report.problem = f"the last receipt has the hash {report.last}, not {last}: lines are missing at the end"
        chosen = _chosen(report.receipts, sample)
        if chosen is not None:
            _compute(report, lines, chosen, url, api_key, model, model_name)
    if as_json:
        click.echo(json.dumps(as_json_object(report), indent=2, ensure_ascii=False))
    else:
        print_report(report)
    sys.exit(report.exit_code)


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """The file, which is read twice. What comes from a pipe is stored first."""
    with click.open_file(str(file), "rb") as source:
        if source.seekable():
            yield source
            return
        with tempfile.TemporaryFile() as stored:
            shutil.copyfileobj(source, stored, _PIECE)
            stored.seek(0)
            yield stored


def _check(file: Path, lines: IO[bytes], public_key: str | None, last: str | None) -> Report:
    checker, report = Checker(public_key), Report()
    try:
        for checked in checker.check_all(_lines(lines), last):
            report.add(checked)
    except MalformedLine as error:
        _end(f"{file}: {error}", MALFORMED)
    if not report.lines:
        _end(f"{file} has no lines", MALFORMED)
    report.last = checker.last
    return report


def _end(message: str, status: int) -> NoReturn:
    click.echo(f"paddock: {message}", err=True)
    sys.exit(status)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines, without empty ones at the end. An empty line among them is malformed."""
    empty = 0
    while data := file.readline(_LONGEST_LINE + 1):
        if len(data) > _LONGEST_LINE:
            raise MalformedLine(f"a line has more than {_LONGEST_LINE} bytes")
        if not data.strip():
            empty += 1
            continue
        yield from [b""] * empty
        empty = 0
        yield data.rstrip(b"\r\n")


def _chosen(receipts: int, sample: tuple[float, bool]) -> Container[int] | None:
    """Which receipts to compute again, counted from 0. None: none of them."""
    number, is_share = sample
    count = min(-int(-receipts * number // 100) if is_share else int(number), receipts)
    if count == receipts:
        return range(receipts) if receipts else None
    # Not a chosen seed: who made the file must not know which lines will be computed.
    return frozenset(random.SystemRandom().sample(range(receipts), count)) or None


def _compute(
    report: Report,
    file: IO[bytes],
    chosen: Container[int],
    url: str | None,
    api_key: str | None,
    model: Path | None,
    model_name: str | None,
) -> None:
    """Read the file again, and compute the chosen lines. Without a server, all of them have failed."""
    file.seek(0)
    receipts = _receipts(_lines(file), chosen)
    is_shown = sys.stderr.isatty()
    problem = ""
    try:
        with computing_server(url, api_key, model, report.options) as server:
            for done, (line, custom_id, receipt) in enumerate(receipts):
                if is_shown:
                    click.echo(f"\r{done} lines computed", nl=False, err=True)
                try:
                    report.compared(line, custom_id, computed(server, receipt, model_name))
                except ServerUnreachable as error:
                    report.finding(line, custom_id).error = error.message
                    raise
                except NotComputed as error:
                    report.finding(line, custom_id).error = str(error)
    except click.ClickException as error:  # no server, or it ended
        problem = error.message
    if problem:
        for line, custom_id, _ in receipts:
            report.finding(line, custom_id).error = problem
    if is_shown:
        click.echo("\r" + " " * 40 + "\r", nl=False, err=True)


def _receipts(lines: Iterator[bytes], chosen: Container[int]) -> Iterator[tuple[int, str | None, Receipt]]:
    """The chosen lines: their number, their custom_id and their receipt. They were checked before."""
    receipts = 0
    for number, data in enumerate(lines, start=1):
        line = parse(data)
        receipt = reply_of(line).get("receipt")
        if receipt is None:
            continue
        if receipts in chosen:
            custom_id = line.get("custom_id")
            yield number, custom_id if isinstance(custom_id, str) else None, msgspec.convert(receipt, Receipt)
        receipts += 1
