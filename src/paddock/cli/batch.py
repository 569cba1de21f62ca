"""`paddock batch`: run files of requests, with a server or without one."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from paddock.cli.batches.api import BatchApi
from paddock.cli.batches.following import follow
from paddock.cli.batches.lines import Prompt, batch_lines, endpoint_of, settings
from paddock.cli.batches.records import SUFFIXES, BadInput, check_format, write_records
from paddock.cli.batches.tables import Results, answered, columns, first_failure
from paddock.cli.batches.work import Lines
from paddock.cli.chat.server import Server, configured_server, started_server
from paddock.cli.common import json_option

_COLUMNS = ("ID", "STATUS", "DONE", "FAILED", "TOTAL", "MODEL", "CREATED")
_INTERRUPTED = 130
_MOST_SHOWN = 10

_url = click.option("--url", metavar="URL", help="The server. [PADDOCK_URL, or the settings' host and port]")
_api_key = click.option("--api-key", metavar="KEY", help="Its API key. [PADDOCK_API_KEY]")
_INPUT: tuple[Callable[[Any], Any], ...] = (
    click.argument("file", type=click.Path(path_type=Path)),
    click.option("-m", "--model", metavar="MODEL", help="The model of all lines: a name, or for `run` a GGUF file."),
    click.option("--prompt", metavar="TEXT", help="FILE has records (CSV, TSV, JSONL, Parquet); ask this of each."),
    click.option("--system", metavar="TEXT", default="", help="The system message for --prompt."),
    click.option(
        "--schema",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Answers are JSON by this schema, and its properties become columns. For --prompt.",
    ),
    click.option(
        "--set", "parameters", multiple=True, metavar="NAME=VALUE", help="Such as max_tokens=50. For --prompt."
    ),
    click.option(
        "--deterministic",
        is_flag=True,
        help="The same lines give the same bytes again. Where the chat template prints the date, on the same day.",
    ),
    click.option("--window", metavar="TIME", default="24h", show_default=True, help="It expires after this time."),
    click.option("--allow-change", is_flag=True, help="Go on if the file of the model changes meanwhile."),
)


def _input_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_INPUT):
        function = option(function)
    return function


@click.group("batch")
def command() -> None:
    """Run files of requests when the server has time.

    FILE has lines in OpenAI's batch format, or records to be put into a prompt. Every result has the custom_id of its
    line; records are numbered row-1, row-2 and so on.
    """


@command.command("run")
@_input_options
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="[FILE.output.jsonl, or for records FILE.output and the suffix of FILE]",
)
@_url
@_api_key
def run(
    file: Path,
    model: str | None,
    prompt: str | None,
    system: str,
    schema: Path | None,
    parameters: tuple[str, ...],
    deterministic: bool,
    window: str,
    allow_change: bool,
    output: Path | None,
    url: str | None,
    api_key: str | None,
) -> None:
    """Run a file and write its results.

    Without a running server one is started for as long as this takes. After Ctrl-C or a crash the same command goes on
    where it was. Failed lines are written to OUTPUT with .errors before its suffix.

    OUTPUT is JSONL in the order of the answers, as the server wrote it. With --prompt it has the records in their order
    and the answers as more columns: CSV, TSV, JSONL or Parquet.
    """
    asked = _prompt(file, prompt, system, schema, parameters)
    is_table = asked is not None
    output = output or file.with_name(f"{file.stem}.output{file.suffix if is_table else '.jsonl'}")
    if is_table:
        _check_output(output)
    weights = Path(model) if model is not None and model.endswith(".gguf") else None
    if weights is not None and not weights.is_file():
        raise click.UsageError(f"-m {weights}: there is no such file")
    work = output.with_name(f"{output.name}.batch")
    if output.exists() and not work.exists():
        raise click.ClickException(f"{output} exists: remove it, or choose another one with -o")
    name = None if weights is not None and asked is not None else model if weights is None else weights.stem
    try:
        lines = Lines(work, file, asked, name, deterministic=deterministic)
        with _server(url, api_key, weights, work) as server:
            api = BatchApi(server)
            batch = follow(api, lines.batch(api, completion_window=window, allow_model_change=allow_change or None))
            _check_accepted(batch)
            failure = _write(api, batch, work, output, table=file if is_table else None, properties=_properties(schema))
    except KeyboardInterrupt:
        click.echo("\npaddock: interrupted. The same command goes on where it was.", err=True)
        raise SystemExit(_INTERRUPTED) from None
    except BadInput as error:
        shutil.rmtree(work, ignore_errors=True)
        raise click.ClickException(f"{file.name}: {error}") from None
    shutil.rmtree(work)
    counts = batch["request_counts"]
    answered_lines = f"{counts['completed']:,} of {counts['total']:,} answered"
    click.echo(f"{output}: {answered_lines}" if output.exists() else answered_lines, err=True)
    if counts["failed"]:
        place = "the column error" if is_table else str(_errors_path(output))
        click.echo(f"{counts['failed']:,} failed, see {place}; the first: {failure}", err=True)
    if batch.get("last_receipt"):
        click.echo(f"last receipt: {batch['last_receipt']}", err=True)
    _print_mistakes(batch)
    if batch["status"] != "completed" or counts["failed"]:
        raise SystemExit(1)


@command.command("submit")
@_input_options
@_url
@_api_key
@json_option
def submit(
    file: Path,
    model: str | None,
    prompt: str | None,
    system: str,
    schema: Path | None,
    parameters: tuple[str, ...],
    deterministic: bool,
    window: str,
    allow_change: bool,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Send a file to a server, and print the id of the batch."""
    asked = _prompt(file, prompt, system, schema, parameters)
    api = BatchApi(configured_server(url, api_key))
    try:
        endpoint = endpoint_of(file, asked)
        with tempfile.TemporaryDirectory() as folder:
            lines = Path(folder) / "input.jsonl"
            with lines.open("wb") as written:
                written.writelines(batch_lines(file, asked, model))
            batch = api.create(
                api.upload(lines, file.name),
                endpoint,
                completion_window=window,
                deterministic=deterministic or None,
                allow_model_change=allow_change or None,
            )
    except BadInput as error:
        raise click.ClickException(f"{file.name}: {error}") from None
    click.echo(json.dumps(batch, indent=2) if as_json else batch["id"])


@command.command("list")
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True, help="The newest so many.")
@_url
@_api_key
@json_option
def list_batches(limit: int, url: str | None, api_key: str | None, as_json: bool) -> None:
    """List the batches of the key, the newest first."""
    found = BatchApi(configured_server(url, api_key)).batches(limit)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    rows = [_COLUMNS]
    for batch in found:
        counts = batch["request_counts"]
        created = datetime.fromtimestamp(batch["created_at"]).astimezone().strftime("%Y-%m-%d %H:%M")
        numbers = (str(counts["completed"]), str(counts["failed"]), str(counts["total"]))
        rows.append((batch["id"], batch["status"], *numbers, batch.get("model") or "", created))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


@command.command("show")
@click.argument("batch_id", metavar="ID")
@_url
@_api_key
@json_option
def show(batch_id: str, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Show how far a batch is, and the mistakes of its file."""
    batch = BatchApi(configured_server(url, api_key)).batch(batch_id)
    if as_json:
        click.echo(json.dumps(batch, indent=2))
        return
    counts, usage = batch["request_counts"], batch["usage"]
    click.echo(f"{batch['id']}  {batch['status']}  {batch['endpoint']}  {batch.get('model') or ''}".rstrip())
    click.echo(f"{counts['completed']:,} of {counts['total']:,} answered, {counts['failed']:,} failed")
    click.echo(f"{usage['input_tokens']:,} tokens of prompts, {usage['output_tokens']:,} of answers")
    if batch.get("last_receipt"):
        click.echo(f"last receipt: {batch['last_receipt']}")
    if batch.get("waiting_for"):
        click.echo(f"waiting: {batch['waiting_for']}")
    for failure in batch.get("first_failures", ()):
        click.echo(f"failed: {failure['custom_id']}: {failure['message']}")
    for line in _mistakes(batch):
        click.echo(line)


@command.command("cancel")
@click.argument("batch_id", metavar="ID")
@_url
@_api_key
def cancel(batch_id: str, url: str | None, api_key: str | None) -> None:
    """Stop a batch. The results so far are kept."""
    click.echo(BatchApi(configured_server(url, api_key)).cancel(batch_id)["status"])


@command.command("fetch")
@click.argument("batch_id", metavar="ID")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="A JSONL file to write."
)
@click.option("--wait", is_flag=True, help="Wait until the batch has ended.")
@_url
@_api_key
def fetch(batch_id: str, output: Path, wait: bool, url: str | None, api_key: str | None) -> None:
    """Download the results of a batch that has ended. Failed lines go to OUTPUT with .errors before its suffix."""
    api = BatchApi(configured_server(url, api_key))
    batch = follow(api, api.batch(batch_id)) if wait else api.batch(batch_id)
    try:
        _check_accepted(batch)
    except BadInput as error:
        raise click.ClickException(str(error)) from None
    if not _has_results(batch):
        raise click.ClickException(f"{batch_id} has no results: its status is {batch['status']}")
    for path in (
        api.fetch(batch["output_file_id"], output),
        api.fetch(batch["error_file_id"], _errors_path(output)),
    ):
        if path is not None:
            click.echo(str(path))
    if batch["status"] == "failed":
        _print_mistakes(batch)
        raise SystemExit(1)


@contextmanager
def _server(url: str | None, key: str | None, weights: Path | None, work: Path) -> Iterator[Server]:
    """The running server, unless a file is to be served. Else one of our own, which keeps its batches in `work`."""
    found = configured_server(url, key)
    if weights is None and found.is_running():
        yield found
        return
    if url is not None:
        raise click.ClickException(
            f"no server answers at {found.url}" if weights is None else f"{weights} cannot be sent there"
        )
    arguments = ["--data-dir", str(work / "data"), "--batch-may-load", "always"]
    with started_server([*arguments, *(["-m", str(weights)] if weights is not None else [])], found.key) as server:
        yield server


def _prompt(
    file: Path, template: str | None, system: str, schema: Path | None, parameters: tuple[str, ...]
) -> Prompt | None:
    for path in (file, schema):
        if path is not None and not path.is_file():
            raise click.UsageError(f"{path}: there is no such file")
    if template is None:
        if system or schema is not None or parameters:
            raise click.UsageError("--system, --schema and --set need --prompt: other lines have whole requests")
        return None
    try:
        body = settings(parameters)
        if schema is not None:
            format = {"name": "answer", "schema": _schema(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": format}
        return Prompt(template, system=system, body=body)
    except BadInput as error:
        raise click.UsageError(str(error)) from None


def _schema(path: Path) -> dict[str, Any]:
    try:
        schema = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise BadInput(f"--schema {path}: {error}") from None
    if not isinstance(schema, dict):
        raise BadInput(f"--schema {path}: an object is required")
    return schema


def _properties(schema: Path | None) -> dict[str, Any]:
    properties = _schema(schema).get("properties") if schema is not None else None
    return properties if isinstance(properties, dict) else {}


def _check_output(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise click.UsageError(f"-o {path}: the results of records are written as {', '.join(SUFFIXES)}")
    try:
        check_format(path)
    except BadInput as error:
        raise click.ClickException(f"-o {path}: {error}") from None


def _write(
    api: BatchApi, batch: dict[str, Any], work: Path, output: Path, *, table: Path | None, properties: dict[str, Any]
) -> str:
    """With the `table` of the records, the answers are more columns of it. Returns the first failure."""
    if table is None:
        api.fetch(batch["output_file_id"], output)
        return first_failure(api.fetch(batch["error_file_id"], _errors_path(output)))
    fetched = (
        api.fetch(batch["output_file_id"], work / "output.jsonl"),
        api.fetch(batch["error_file_id"], work / "errors.jsonl"),
    )
    results = Results([path for path in fetched if path is not None])
    part = work / f"part-{output.name}"
    rows = partial(answered, table, results, fields=list(properties))
    write_records(part, rows, source=table, added=columns(properties))
    results.close()
    part.replace(output)
    return first_failure(fetched[1])


def _errors_path(output: Path) -> Path:
    return output.with_name(f"{output.stem}.errors{output.suffix}")


def _mistakes(batch: dict[str, Any]) -> list[str]:
    found = (batch.get("errors") or {}).get("data", [])
    lines = []
    for one in found[:_MOST_SHOWN]:
        place = f"line {one['line']}: " if one.get("line") else ""
        param = f"{one['param']}: " if one.get("param") and not one["message"].startswith(one["param"]) else ""
        lines.append(f"{place}{param}{one['message']}")
    if len(found) > _MOST_SHOWN:
        lines.append(f"and {len(found) - _MOST_SHOWN} more")
    return lines


def _has_results(batch: dict[str, Any]) -> bool:
    return batch["output_file_id"] is not None or batch["error_file_id"] is not None


def _check_accepted(batch: dict[str, Any]) -> None:
    """Raises `BadInput` if the server refused the file. A batch that failed later has results."""
    if batch["status"] == "failed" and not _has_results(batch):
        raise BadInput("the file was refused:\n  " + "\n  ".join(_mistakes(batch)))


def _print_mistakes(batch: dict[str, Any]) -> None:
    """Why a batch with results failed."""
    for one in (batch.get("errors") or {}).get("data", []):
        click.echo(f"the batch failed: {one['message']}", err=True)
