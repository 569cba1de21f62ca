"""docs/reference/llama-server.md: what `paddock serve` does with every option of llama-server."""

from __future__ import annotations

import json

from documents.markdown import ROOT
from paddock.cli.llama_options import OPTIONS
from paddock.cli.llama_server import PRESETS
from paddock.cli.options import key_of
from paddock.cli.request_defaults import DEFAULTS, PARAMETER
from paddock.cli.serve import command

_HEADER = """\
# llama-server's options

What `paddock serve` does with every option of llama-server (the one of llama-cpp-python 0.3.36): it is a setting, the
default of a request field (`model_manager.defaults`), accepted because nothing needs it here, or refused with exit
code 2 before anything is loaded. An environment variable has the effect of its flag; flags win. (This page is generated
from the code: `make docs`.)

| option | variable | here |
|---|---|---|
"""


def page() -> str:
    return _HEADER + "".join(map(_row, _options()))


def _options() -> list[dict[str, object]]:
    options: list[dict[str, object]] = json.loads(
        (ROOT / "tests" / "cli" / "llama_server_options.json").read_text("utf-8")
    )
    return options


def _row(option: dict[str, object]) -> str:
    names: list[str] = option["names"]  # type: ignore[assignment]
    variable = f"`{option['variable']}`" if option["variable"] else ""
    answers = list(dict.fromkeys(_answer(name) for name in names))
    return f"| {', '.join(f'`{name}`' for name in names)} | {variable} | {'; '.join(answers)} |\n"


def _answer(name: str) -> str:
    if name in PRESETS:
        return f"stands for `{PRESETS[name]}`"
    for option in OPTIONS:
        if name in option.names:
            verdict = "refused" if option.is_refused else "not needed"
            return f"{verdict}: {option.reason}"
    for param in command.params:
        if name in [*param.opts, *param.secondary_opts]:
            if (param.name or "").startswith(PARAMETER):
                return f"the default of `{DEFAULTS[int((param.name or '').removeprefix(PARAMETER))].field}`"
            key = key_of(param)
            return f"`{key}`" if key is not None else "the same"
    return "the same"
