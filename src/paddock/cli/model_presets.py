"""llama-server's `--models-preset`: an INI file with a section of options for each model.

A section becomes an entry of `model_manager.models`, and `[*]` the settings of all models. A key is an option of
`paddock serve` without its dashes, or its variable. The command line wins over a section, and a section over `[*]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paddock.cli.llama_server import VARIABLES, LlamaServerCommand, ignored_options, is_off, is_on
from paddock.cli.options import given_settings
from paddock.cli.sources import Sources
from paddock.errors import SettingsError, StartupError

if TYPE_CHECKING:
    from paddock.config import Settings

GLOBAL, DEFAULT = "*", "default"
"""The section for all models, and the name of the keys before the first section."""
_HEADER = re.compile(r"\[\s*([^]]+?)\s*\]")
_ENTRY = re.compile(r"-{0,2}([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*)", re.DOTALL)
_COMMENT = re.compile(r"\s*[;#].*", re.DOTALL)
_VERSION = "version"
_OF_THE_FILE = frozenset({"load-on-startup", "stop-timeout", "dedup-cache-models"})
"""Keys that are not options of the command line."""
_NO_KEYS = frozenset({"config", "dry_run", "cache_list", "models_preset", "list_devices", "completion_bash"})
"""Options that concern the command, not a model."""


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """The options of one section."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    """By key: `model_manager.n_ctx`."""
    sources: Sources = field(default_factory=Sources)
    notes: tuple[str, ...] = ()
    is_loaded_at_start: bool | None = None


def parse(text: str, where: str) -> list[Section]:
    """The sections of a file. As in llama-server a value ends at `;` or `#`, and the last of equal keys wins."""
    sections: dict[str, list[Line]] = {DEFAULT: []}
    current = DEFAULT
    for number, line in enumerate(text.splitlines(), 1):
        content = _COMMENT.sub("", line).strip()
        if not content:
            continue
        if header := _HEADER.fullmatch(content):
            current = header[1]
            if current in sections and (sections[current] or current != DEFAULT):
                raise SettingsError(f"{where}, line {number}: there is another section [{current}]")
            sections[current] = []
        elif entry := _ENTRY.fullmatch(content):
            sections[current].append(Line(number, entry[1], entry[2]))
        else:
            raise SettingsError(f"{where}, line {number}: expected [NAME] or KEY = VALUE, got {content!r}")
    found = [Section(name, tuple(line for line in lines if line.key != _VERSION)) for name, lines in sections.items()]
    return [section for section in found if section.lines or section.name != DEFAULT]


def read_presets(file: Path, command: LlamaServerCommand) -> list[ModelPreset]:
    """Raises `SettingsError` with the file, the line and the section of what is wrong."""
    try:
        text = file.expanduser().read_text("utf-8-sig")
    except OSError as error:
        raise SettingsError(f"cannot read the presets {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"the presets {file} are not UTF-8 text: byte {error.start}") from None
    return [_preset(section, str(file), command) for section in parse(text, str(file))]


def apply_presets(
    presets: Sequence[ModelPreset], settings: Settings, given: Mapping[str, Any], sources: Sources
) -> dict[str, Any]:
    """The flags with what the presets add to them. Models of repositories and URLs are downloaded.

    `settings` are those without the presets; `given`, which wins, and `sources` come from the command line.
    """
    shared = next((preset for preset in presets if preset.name == GLOBAL), ModelPreset(GLOBAL))
    flags = {**_of_all_models(shared.settings), **given}
    if "model_manager.defaults" in shared.settings:
        own = given.get("model_manager.defaults", {})
        flags["model_manager.defaults"] = shared.settings["model_manager.defaults"] | own
    models = {
        name: own.model_dump(mode="json", exclude_unset=True) for name, own in settings.model_manager.models.items()
    }
    for preset in presets:
        if preset.name != GLOBAL:
            name, aliases = _names(preset.name)
            try:
                entry = _entry(preset, shared, settings, given, sources)
            except StartupError as error:
                raise SettingsError(f"the preset [{preset.name}]: {error.message}") from None
            if known := [*aliases, *entry.get("aliases", [])]:
                entry["aliases"] = list(dict.fromkeys(known))
            models[name] = models.get(name, {}) | entry
    return {**flags, "model_manager.models": models}


def _preset(section: Section, where: str, command: LlamaServerCommand) -> ModelPreset:
    preset = ModelPreset(section.name)
    words: dict[str, list[str]] = {}
    for line in section.lines:
        at = f"{where}, line {line.number}, section [{section.name}]"
        if line.key in _OF_THE_FILE:
            preset = _with_own_key(preset, line, at)
            continue
        option, arguments = _arguments(line, at, command)
        words[option] = arguments
        try:
            command.without_variables(arguments)
        except click.ClickException as error:
            raise SettingsError(f"{at}: {error.format_message()}") from None
    try:
        ctx = command.without_variables([word for given in words.values() for word in given])
        return _with_options(preset, ctx)
    except click.ClickException as error:
        raise SettingsError(f"{where}, section [{section.name}]: {error.format_message()}") from None


def _with_own_key(preset: ModelPreset, line: Line, at: str) -> ModelPreset:
    if line.key == "load-on-startup":
        if not is_on(line.value) and not is_off(line.value):
            raise SettingsError(f"{at}: load-on-startup: expected on or off, got {line.value!r}")
        return replace(preset, is_loaded_at_start=is_on(line.value))
    reasons = {
        "stop-timeout": "a model is unloaded after its running requests",
        "dedup-cache-models": "downloads are not listed as models",
    }
    return replace(preset, notes=(*preset.notes, f"{line.key} is not needed: {reasons[line.key]}"))


def _with_options(preset: ModelPreset, ctx: click.Context) -> ModelPreset:
    settings = given_settings(ctx.params)
    notes = [f"{name} is not needed: {reason}" for name, reason in ignored_options(ctx)]
    notes += [f"{key} has no effect in a preset: it is a setting of the server" for key in settings if not _is_own(key)]
    return replace(
        preset,
        settings={key: value for key, value in settings.items() if _is_own(key)},
        sources=Sources.taken_from(dict(ctx.params)),
        notes=(*preset.notes, *(f"[{preset.name}] {note}" for note in notes)),
    )


def _arguments(line: Line, at: str, command: LlamaServerCommand) -> tuple[str, list[str]]:
    """The name of the option that a key stands for, and the arguments for its value."""
    from paddock.config import nearest

    flags = {name.lstrip("-"): name for name in command.flags}
    flag = VARIABLES.get(line.key) or flags.get(line.key) or flags.get(line.key.replace("_", "-"))
    option = command.flags.get(flag or "")
    if flag is None or option is None or option.name in _NO_KEYS:
        raise SettingsError(f"{at}: unknown key {line.key!r}{nearest(line.key, [*flags, *_OF_THE_FILE])}")
    name = option.name or flag
    if not getattr(option, "is_flag", False):
        longest = max(option.opts, key=len)
        return name, [f"{longest}={line.value}"] if option.nargs == 1 else [longest, *line.value.split()]
    if is_on(line.value):
        return name, [flag]
    if not is_off(line.value):
        raise SettingsError(f"{at}: {line.key}: expected on or off, got {line.value!r}")
    opposite = option.opts if flag in option.secondary_opts else option.secondary_opts
    other = f"--{flag[5:]}" if flag.startswith("--no-") else f"--no-{flag.lstrip('-')}"
    return name, [*opposite, *([other] if other in command.flags else [])][:1]


def _is_own(key: str) -> bool:
    from paddock.config import NamedModel

    section, _, name = key.partition(".")
    return section == "model_manager" and (name in NamedModel.model_fields or name in ("model", "alias"))


def _of_all_models(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in ("model_manager.model", "model_manager.alias")}


def _names(section: str) -> tuple[str, list[str]]:
    """The name and the aliases. llama-server lists `owner/name:ud-q4_k_m` as `owner/name:Q4_K_M`."""
    repository, colon, tag = section.rpartition(":")
    if not colon:
        return section, []
    found = re.search(r"[-.]([A-Za-z0-9_]+)$", tag)
    name = f"{repository}:{(found[1] if found else tag).upper()}"
    return name, [section] if section != name else []


def _entry(
    preset: ModelPreset, shared: ModelPreset, settings: Settings, given: Mapping[str, Any], sources: Sources
) -> dict[str, Any]:
    own = {key.partition(".")[2]: value for key, value in preset.settings.items()}
    path, aliases = own.pop("model", None), own.pop("alias", [])
    entry = {name: value for name, value in own.items() if f"model_manager.{name}" not in given or name == "defaults"}
    if "defaults" in entry:
        shown = given.get("model_manager.defaults", {})
        entry["defaults"] = {name: value for name, value in entry["defaults"].items() if name not in shown}
    from_here = replace(
        preset.sources,
        offline=preset.sources.offline or sources.offline,
        hf_token=preset.sources.hf_token or sources.hf_token,
    )
    manager = settings.model_manager
    target = Path(path).expanduser().absolute() if path is not None and not path.startswith("fake:") else None
    found = from_here.model(manager, to=target) or target or _pulled_earlier(preset.name, settings)
    if found is not None or path is not None:
        entry["path"] = str(found or path)
    if draft := from_here.draft(manager):
        entry["model_draft"] = str(draft.absolute())
    elif "model_draft" in entry:
        entry["model_draft"] = str(Path(entry["model_draft"]).expanduser().absolute())
    if "mmproj" in entry:
        entry["mmproj"] = str(Path(entry["mmproj"]).expanduser().absolute())
    if projector := from_here.projector(manager):
        entry["mmproj"] = str(projector.absolute())
    if aliases:
        entry["aliases"] = aliases
    if (is_loaded := preset.is_loaded_at_start) or (is_loaded is None and shared.is_loaded_at_start):
        entry["preload"] = True
    return entry


def _pulled_earlier(name: str, settings: Settings) -> Path | None:
    """The download of the repository that a section is named after, or None."""
    from paddock.cli.sources import download_folder
    from paddock.errors import PullFailed
    from paddock.fleet.catalogue.hub import Source, pulled

    try:
        return pulled(Source.parse(name), download_folder(settings.model_manager))
    except PullFailed:
        return None
