"""The folder beside the output of `paddock batch run`, with which a later run goes on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import click
import msgspec

from paddock.cli.batches.api import BatchApi
from paddock.cli.batches.lines import Prompt, batch_lines, endpoint_of
from paddock.cli.chat.server import NotFound


class _Saved(msgspec.Struct):
    digest: str
    batch_id: str


class Lines:
    """The lines of a batch in a file of the folder, and the batch that was created from them."""

    def __init__(
        self, folder: Path, file: Path, prompt: Prompt | None, model: str | None, *, deterministic: bool
    ) -> None:
        """Raises `BadInput`."""
        self._endpoint, self._deterministic, self._name = endpoint_of(file, prompt), deterministic, file.name
        self._lines, self._saved = folder / "input.jsonl", folder / "run.json"
        folder.mkdir(parents=True, exist_ok=True)
        hashed = hashlib.sha256(f"{self._endpoint} {deterministic}\n".encode())
        with self._lines.open("wb") as written:
            for line in batch_lines(file, prompt, model):
                hashed.update(line)
                written.write(line)
        self._digest = hashed.hexdigest()
        self._batch_id: str | None = None
        if self._saved.exists():
            saved = msgspec.json.decode(self._saved.read_bytes(), type=_Saved)
            if saved.digest != self._digest:
                raise click.ClickException(
                    f"{folder} belongs to a run with another input: remove it, or choose another output with -o"
                )
            self._batch_id = saved.batch_id

    def batch(self, api: BatchApi, **fields: Any) -> dict[str, Any]:
        """The batch of an earlier run, or a new one with these fields."""
        if self._batch_id is not None:
            try:
                return api.batch(self._batch_id)
            except NotFound:
                click.echo(f"paddock: the server does not have {self._batch_id}: beginning again", err=True)
        batch = api.create(
            api.upload(self._lines, self._name),
            self._endpoint,
            deterministic=self._deterministic or None,
            **fields,
        )
        part = self._saved.with_name("run.json.part")
        part.write_bytes(msgspec.json.encode(_Saved(self._digest, batch["id"])))
        part.replace(self._saved)
        return batch
