"""`paddock verify`: check receipts, and compute their answers again."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

import click
import msgspec

from paddock.cli.chat.server import Server, ServerUnreachable, configured_server, started_server
from paddock.errors import StartupError
from paddock.receipts import (
    CheckedLine,
    Checker,
    Comparison,
    IdentityDiffers,
    MalformedLine,
    Receipt,
    compare,
    load_public_key,
    parse,
    reply_of,
)

_DIFFERS, _MALFORMED, _NOT_COMPUTED = 1, 2, 3
_LONGEST_LINE = 256 << 20
_PIECE = 1 << 20
_LISTED = 20
# Of `sampling`: they have another name or form in a request, which has them if they are not the usual ones.
_NOT_SENT = frozenset({"max_tokens", "logit_bias"})
# Options of the engine and how `paddock serve` takes them.
_FLAGS = {
    "n_batch": "-b",
    "n_ubatch": "-ub",
    "n_threads": "-t",
    "n_threads_batch": "-tb",
    "parallel": "-np",
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
    "flash_attn": "-fa",
}


@dataclass(slots=True)
class Finding:
    """What is wrong with a line."""

    line: int
    custom_id: str | None
    problems: list[str] = field(default_factory=list)
    """What shows that it was changed."""
    error: str = ""
    """Why it could not be computed again."""
    comparison: Comparison | None = None
    """Set if its answer was another one."""


@dataclass(slots=True)
class Report:
    """Counts, and the lines with which something is wrong: a file may have millions of lines."""

    lines: int = 0
    receipts: int = 0
    signed: int = 0
    streams: int = 0
    computed: int = 0
    findings: dict[int, Finding] = field(default_factory=dict)
    """By the number of the line."""
    identity: dict[str, IdentityDiffers] = field(default_factory=dict)
    """What differs between the servers, by its text."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options of the engine that all receipts have."""
    last: str | None = None
    problem: str = ""
    """Of the file as a whole."""

    def finding(self, line: int, custom_id: str | None) -> Finding:
        return self.findings.setdefault(line, Finding(line, custom_id))

    def add(self, line: CheckedLine) -> None:
        self.lines += 1
        if line.problems:
            self.finding(line.number, line.custom_id).problems = line.problems
        self.signed += line.is_signed
        if line.receipt is None:
            return
        self.receipts += 1
        self.streams += not line.covers_reply
        options = line.receipt.identity.options
        if self.receipts == 1:
            self.options = dict(options)
        elif self.options != options:
            self.options = {name: value for name, value in self.options.items() if options.get(name) == value}

    def compared(self, line: int, custom_id: str | None, comparison: Comparison) -> None:
        self.computed += 1
        self.identity.update((str(each), each) for each in comparison.identity)
        if not comparison.is_identical:
            self.finding(line, custom_id).comparison = comparison

    @property
    def altered(self) -> list[Finding]:
        return [one for one in self.findings.values() if one.problems]

    @property
    def different(self) -> list[Finding]:
        return [one for one in self.findings.values() if one.comparison is not None]

    @property
    def failed(self) -> list[Finding]:
        return [one for one in self.findings.values() if one.error]

    @property
    def exit_code(self) -> int:
        if self.altered or self.different or self.problem:
            return _DIFFERS
        return _NOT_COMPUTED if self.failed else 0


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
            report = _check(file, lines, load_public_key(public_key) if public_key is not None else None)
        except StartupError as error:
            _end(error.message, _MALFORMED)
        except OSError as error:
            _end(f"cannot read {file}: {error.strerror}", _MALFORMED)
        if last is not None and last != report.last:
            report.problem = f"the last receipt has the hash {report.last}, not {last}: lines are missing at the end"
        chosen = _chosen(report.receipts, sample)
        if chosen is not None:
            _compute(report, lines, chosen, url, api_key, model, model_name)
    if as_json:
        click.echo(json.dumps(_as_json(report), indent=2, ensure_ascii=False))
    else:
        _print(report)
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


def _check(file: Path, lines: IO[bytes], public_key: str | None) -> Report:
    checker, report = Checker(public_key), Report()
    try:
        for data in _lines(lines):
            report.add(checker.check(data))
    except MalformedLine as error:
        _end(f"{file}: {error}", _MALFORMED)
    if not report.lines:
        _end(f"{file} has no lines", _MALFORMED)
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
        with _server(url, api_key, model, report.options) as server:
            for done, (line, custom_id, receipt) in enumerate(receipts):
                if is_shown:
                    click.echo(f"\r{done} lines computed", nl=False, err=True)
                try:
                    report.compared(line, custom_id, _computed(server, receipt, model_name))
                except ServerUnreachable as error:
                    report.finding(line, custom_id).error = error.message
                    raise
                except _NotComputed as error:
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


class _NotComputed(Exception):
    """A server did not compute an answer."""


def _computed(server: Server, receipt: Receipt, model_name: str | None) -> Comparison:
    """Raises `_NotComputed`, or `ServerUnreachable`."""
    endpoint = receipt.request.endpoint
    if not endpoint.startswith("/") or endpoint.startswith("//"):
        raise _NotComputed(f"request.endpoint is no path: {endpoint[:80]!r}")
    # The sampling parameters explicitly: this server may have other defaults.
    sampling = {name: value for name, value in receipt.sampling.items() if name not in _NOT_SENT}
    body = sampling | receipt.request.body | {"receipt": True, "deterministic": True, "stream": False}
    if model_name is not None:
        body["model"] = model_name
    try:
        reply = server.request("POST", endpoint, body)
        return compare(receipt, msgspec.convert(reply["receipt"], Receipt))
    except ServerUnreachable:
        raise
    except click.ClickException as error:
        raise _NotComputed(error.message) from None
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise _NotComputed(f"the server's reply has no receipt ({error}): is it another version of Paddock?") from None


@contextmanager
def _server(url: str | None, key: str | None, model: Path | None, options: Mapping[str, Any]) -> Iterator[Server]:
    found = configured_server(url, key)
    if model is None:
        if not found.is_running():
            hint = (
                "" if url is not None else ": start one, give --model FILE, or check the hashes alone with --sample 0"
            )
            raise click.ClickException(f"no server answers at {found.url}{hint}")
        yield found
        return
    with started_server(["-m", str(model), *_serve_options(options)], found.key) as server:
        yield server


def _serve_options(options: Mapping[str, Any]) -> list[str]:
    """Start the server as the one that wrote the receipts, where they all say the same."""
    found: list[str] = []
    for name, flag in _FLAGS.items():
        if isinstance(value := options.get(name), str | int) and not isinstance(value, bool):
            found += [flag, str(value)]
    parallel, n_ctx, unified = options.get("parallel"), options.get("n_ctx"), options.get("kv_unified")
    if isinstance(n_ctx, int) and isinstance(parallel, int):
        found += ["-c", str(n_ctx if unified else n_ctx * parallel)]
    if isinstance(unified, bool) and isinstance(parallel, int) and parallel > 1:
        found.append("-kvu" if unified else "-no-kvu")
    layers = options.get("n_gpu_layers")
    if isinstance(layers, int) and layers >= 0:
        found += ["-ngl", str(layers)]
    return [*found, *(["--deterministic"] if options.get("deterministic") else [])]


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _print(report: Report) -> None:
    altered, different, failed = report.altered, report.different, report.failed
    for one in altered[:_LISTED]:
        for problem in one.problems:
            click.echo(f"{_name(one)}: {problem}")
    _print_rest(altered)
    if report.problem:
        click.echo(report.problem)
    for one in different[:_LISTED]:
        for difference in one.comparison.answers if one.comparison is not None else ():
            click.echo(f"{_name(one)}: {difference}")
    _print_rest(different)
    for one in failed[:_LISTED]:
        click.echo(f"{_name(one)}: not computed: {one.error}")
    _print_rest(failed)
    if report.identity:
        click.echo("What differs between the server of the receipts (there) and this one (here):")
        for text in report.identity:
            click.echo(f"  {text}")
    click.echo(
        f"{report.lines} lines: {report.lines - len(altered)} as written, {len(altered)} altered; "
        f"{report.signed} signed"
    )
    if report.streams:
        click.echo(
            f"{report.streams} receipts are of streams: they cover the generated text, not the rest of the reply"
        )
    if report.computed or failed:
        click.echo(
            f"{report.computed} computed again: {report.computed - len(different)} identical, "
            f"{len(different)} different" + (f"; {len(failed)} could not be computed" if failed else "")
        )
    else:
        click.echo("none computed again: hashes show changes, but not that the model gave these answers")
    click.echo(f"last receipt: {report.last}")


def _print_rest(lines: list[Finding]) -> None:
    if len(lines) > _LISTED:
        click.echo(f"… and {len(lines) - _LISTED} more lines (--json lists all)")


def _name(one: Finding) -> str:
    return f"line {one.line}" + (f" ({one.custom_id[:80]})" if one.custom_id is not None else "")


def _as_json(report: Report) -> dict[str, Any]:
    different = len(report.different)
    return {
        "lines": report.lines,
        "altered": len(report.altered),
        "signed": report.signed,
        "computed": report.computed,
        "identical": report.computed - different,
        "different": different,
        "failed": len(report.failed),
        "last": report.last,
        "problem": report.problem or None,
        "exit_code": report.exit_code,
        "identity": [_plain(each) for each in report.identity.values()],
        "findings": [
            {
                "line": one.line,
                "custom_id": one.custom_id,
                "problems": one.problems,
                "error": one.error or None,
                "answers": [_plain(each) for each in one.comparison.answers] if one.comparison is not None else [],
            }
            for _, one in sorted(report.findings.items())
        ],
    }


def _plain(difference: Any) -> Any:
    return msgspec.to_builtins(difference)
