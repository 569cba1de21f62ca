"""`paddock verify`: check receipts, and compute their answers again."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from paddock.cli.chat.server import Server, ServerUnreachable, configured_server, started_server
from paddock.errors import StartupError
from paddock.receipts import (
    CheckedLine,
    Checker,
    Comparison,
    MalformedLine,
    Receipt,
    compare,
    load_public_key,
)

_DIFFERS, _MALFORMED, _NOT_COMPUTED = 1, 2, 3
_LONGEST_LINE = 256 << 20
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
class Verified:
    """A line, and what its answer is when it is computed again."""

    line: CheckedLine
    comparison: Comparison | None = None
    """None: it was not computed again."""
    error: str = ""
    """Why it could not be."""


@dataclass(slots=True)
class Report:
    lines: list[Verified] = field(default_factory=list)
    last: str | None = None
    problem: str = ""
    """Of the file as a whole."""

    @property
    def computed(self) -> list[Verified]:
        return [one for one in self.lines if one.comparison is not None]

    @property
    def altered(self) -> list[Verified]:
        return [one for one in self.lines if one.line.problems]

    @property
    def different(self) -> list[Verified]:
        return [one for one in self.computed if one.comparison and not one.comparison.is_identical]

    @property
    def failed(self) -> list[Verified]:
        return [one for one in self.lines if one.error]

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
    try:
        report = _check(file, load_public_key(public_key) if public_key is not None else None)
    except StartupError as error:
        _end(error.message, _MALFORMED)
    if last is not None and last != report.last:
        report.problem = f"the last receipt has the hash {report.last}, not {last}: lines are missing at the end"
    chosen = _chosen([one for one in report.lines if one.line.receipt is not None], sample)
    if chosen:
        try:
            _compute(chosen, url, api_key, model, model_name)
        except click.ClickException as error:  # no server, or it ended
            for one in chosen:
                one.error = one.error or ("" if one.comparison is not None else error.message)
    if as_json:
        click.echo(json.dumps(_as_json(report), indent=2, ensure_ascii=False))
    else:
        _print(report)
    sys.exit(report.exit_code)


def _check(file: Path, public_key: str | None) -> Report:
    checker, report = Checker(public_key), Report()
    try:
        for data in _lines(file):
            report.lines.append(Verified(checker.check(data)))
    except MalformedLine as error:
        _end(f"{file}: {error}", _MALFORMED)
    except OSError as error:
        _end(f"cannot read {file}: {error.strerror}", _MALFORMED)
    if not report.lines:
        _end(f"{file} has no lines", _MALFORMED)
    report.last = checker.last
    return report


def _end(message: str, status: int) -> NoReturn:
    click.echo(f"paddock: {message}", err=True)
    sys.exit(status)


def _lines(file: Path) -> Iterator[bytes]:
    """The lines, without empty ones at the end. An empty line among them is malformed."""
    with click.open_file(str(file), "rb") as lines:
        empty = 0
        while data := lines.readline(_LONGEST_LINE + 1):
            if len(data) > _LONGEST_LINE:
                raise MalformedLine(f"a line has more than {_LONGEST_LINE} bytes")
            if not data.strip():
                empty += 1
                continue
            yield from [b""] * empty
            empty = 0
            yield data.rstrip(b"\r\n")


def _chosen(lines: list[Verified], sample: tuple[float, bool]) -> list[Verified]:
    number, is_share = sample
    count = -int(-len(lines) * number // 100) if is_share else int(number)
    # Not a chosen seed: who made the file must not know which lines will be computed.
    chosen = random.SystemRandom().sample(lines, min(count, len(lines)))
    return sorted(chosen, key=lambda one: one.line.number)


def _compute(
    lines: list[Verified], url: str | None, api_key: str | None, model: Path | None, model_name: str | None
) -> None:
    receipts = [one.line.receipt for one in lines if one.line.receipt is not None]
    is_shown = sys.stderr.isatty()
    with _server(url, api_key, model, receipts) as server:
        for done, one in enumerate(lines):
            if is_shown:
                click.echo(f"\r{done} of {len(lines)} computed", nl=False, err=True)
            _compute_line(server, one, model_name)
    if is_shown:
        click.echo("\r" + " " * 40 + "\r", nl=False, err=True)


def _compute_line(server: Server, one: Verified, model_name: str | None) -> None:
    receipt = one.line.receipt
    assert receipt is not None
    endpoint = receipt.request.endpoint
    if not endpoint.startswith("/") or endpoint.startswith("//"):
        one.error = f"request.endpoint is no path: {endpoint[:80]!r}"
        return
    # The sampling parameters explicitly: this server may have other defaults.
    sampling = {name: value for name, value in receipt.sampling.items() if name not in _NOT_SENT}
    body = sampling | receipt.request.body | {"receipt": True, "deterministic": True, "stream": False}
    if model_name is not None:
        body["model"] = model_name
    try:
        reply = server.request("POST", endpoint, body)
        one.comparison = compare(receipt, msgspec.convert(reply["receipt"], Receipt))
    except ServerUnreachable:
        raise
    except click.ClickException as error:
        one.error = error.message
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        one.error = f"the server's reply has no receipt ({error}): is it another version of Paddock?"


@contextmanager
def _server(url: str | None, key: str | None, model: Path | None, receipts: Sequence[Receipt]) -> Iterator[Server]:
    found = configured_server(url, key)
    if model is None:
        if not found.is_running():
            hint = (
                "" if url is not None else ": start one, give --model FILE, or check the hashes alone with --sample 0"
            )
            raise click.ClickException(f"no server answers at {found.url}{hint}")
        yield found
        return
    with started_server(["-m", str(model), *_serve_options(receipts)], found.key) as server:
        yield server


def _serve_options(receipts: Sequence[Receipt]) -> list[str]:
    """Start the server as the one that wrote the receipts, where they all say the same."""

    def same(name: str) -> Any:
        values = [receipt.identity.options.get(name) for receipt in receipts]
        return values[0] if all(value == values[0] for value in values) else None

    found: list[str] = []
    for name, flag in _FLAGS.items():
        if isinstance(value := same(name), str | int) and not isinstance(value, bool):
            found += [flag, str(value)]
    parallel, n_ctx, unified = same("parallel"), same("n_ctx"), same("kv_unified")
    if isinstance(n_ctx, int) and isinstance(parallel, int):
        found += ["-c", str(n_ctx if unified else n_ctx * parallel)]
    if isinstance(unified, bool) and isinstance(parallel, int) and parallel > 1:
        found.append("-kvu" if unified else "-no-kvu")
    if isinstance(same("n_gpu_layers"), int) and same("n_gpu_layers") >= 0:
        found += ["-ngl", str(same("n_gpu_layers"))]
    return [*found, *(["--deterministic"] if same("deterministic") else [])]


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _print(report: Report) -> None:
    count = len(report.lines)
    for one in report.altered[:_LISTED]:
        for problem in one.line.problems:
            click.echo(f"{_name(one)}: {problem}")
    _print_rest(report.altered)
    if report.problem:
        click.echo(report.problem)
    for one in report.different[:_LISTED]:
        assert one.comparison is not None
        for difference in one.comparison.answers:
            click.echo(f"{_name(one)}: {difference}")
    _print_rest(report.different)
    for one in report.failed[:_LISTED]:
        click.echo(f"{_name(one)}: not computed: {one.error}")
    _print_rest(report.failed)
    identity = {str(each): each for one in report.computed if one.comparison for each in one.comparison.identity}
    if identity:
        click.echo("What differs between the server of the receipts (there) and this one (here):")
        for text in identity:
            click.echo(f"  {text}")
    signed = sum(one.line.is_signed for one in report.lines)
    streams = sum(one.line.receipt is not None and not one.line.covers_reply for one in report.lines)
    click.echo(
        f"{count} lines: {count - len(report.altered)} as written, {len(report.altered)} altered; {signed} signed"
    )
    if streams:
        click.echo(f"{streams} receipts are of streams: they cover the generated text, not the rest of the reply")
    if report.computed or report.failed:
        same = len(report.computed) - len(report.different)
        click.echo(
            f"{len(report.computed)} computed again: {same} identical, {len(report.different)} different"
            + (f"; {len(report.failed)} could not be computed" if report.failed else "")
        )
    else:
        click.echo("none computed again: hashes show changes, but not that the model gave these answers")
    click.echo(f"last receipt: {report.last}")


def _print_rest(lines: list[Verified]) -> None:
    if len(lines) > _LISTED:
        click.echo(f"… and {len(lines) - _LISTED} more lines (--json lists all)")


def _name(one: Verified) -> str:
    id = one.line.custom_id
    return f"line {one.line.number}" + (f" ({id[:80]})" if id is not None else "")


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "lines": len(report.lines),
        "altered": len(report.altered),
        "signed": sum(one.line.is_signed for one in report.lines),
        "computed": len(report.computed),
        "identical": len(report.computed) - len(report.different),
        "different": len(report.different),
        "failed": len(report.failed),
        "last": report.last,
        "problem": report.problem or None,
        "exit_code": report.exit_code,
        "findings": [
            {
                "line": one.line.number,
                "custom_id": one.line.custom_id,
                "problems": one.line.problems,
                "error": one.error or None,
                "identical": one.comparison.is_identical if one.comparison is not None else None,
                "answers": [_plain(each) for each in one.comparison.answers] if one.comparison is not None else [],
                "identity": [_plain(each) for each in one.comparison.identity] if one.comparison is not None else [],
            }
            for one in report.lines
        ],
    }


def _plain(difference: Any) -> Any:
    return msgspec.to_builtins(difference)
