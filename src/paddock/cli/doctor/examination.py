"""Every check, one after another."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from paddock.cli.doctor.exposure import check_cors, check_exposure, check_keys, check_metrics, check_root
from paddock.cli.doctor.finding import Finding
from paddock.cli.doctor.installation import look_at_installation
from paddock.cli.doctor.models import Room, look_at_models
from paddock.cli.doctor.permissions import check_open_files, check_secret, check_slots, check_space, check_tls
from paddock.cli.doctor.port import look_at_port
from paddock.cli.doctor.processor import check_gpu, check_processor, gpu_here, nvidia_open, processor_flags
from paddock.cli.doctor.sandbox import check_sandbox
from paddock.cli.doctor.service import look_at_service
from paddock.cli.doctor.speed import check_speed
from paddock.config import Settings, load_settings
from paddock.errors import SettingsError
from paddock.fleet import has_gpu
from paddock.fleet.memory.machine import room_in_control_group
from paddock.fleet.process.build import Build, ask_build
from paddock.fleet.process.confinement import ask_sandbox

if TYPE_CHECKING:
    from paddock.config import ModelManagerSettings, ServerSettings


def examine(file: Path | None, service: str) -> Iterator[Finding]:
    yield from look_at_installation()
    build = ask_build()
    yield check_processor(build, processor_flags())
    try:
        settings = load_settings(file=file)
    except SettingsError as error:
        yield Finding("problem", "config", error.message, "correct it; README.md shows an example of a whole file")
        yield from look_at_service(service)
        return
    yield Finding("ok", "config", f"{file or 'what is set'} is valid")
    yield from _machine(settings, build)
    yield from look_at_models(settings.model_manager, _room(settings.model_manager, build))
    yield from check_speed(settings.model_manager, os.cpu_count() or 1)
    yield from _server(settings.server, file)
    yield from look_at_service(service)


def _machine(settings: Settings, build: Build) -> Iterator[Finding]:
    manager = settings.model_manager
    wanted = any(
        layers != 0 for layers in (manager.n_gpu_layers, *(each.n_gpu_layers for each in manager.models.values()))
    )
    yield from check_gpu(build, gpu_here(), built_for_gpu=has_gpu(), wanted=wanted, devices_open=nvidia_open())
    yield check_sandbox(manager.sandbox, ask_sandbox())
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    for folder in (manager.models_directory, settings.server.slot_save_path):
        if folder is not None and folder.is_dir():
            yield check_space(folder, shutil.disk_usage(folder).free)


def _room(settings: ModelManagerSettings, build: Build) -> Room:
    memory, group = psutil.virtual_memory(), room_in_control_group()
    return Room(
        memory.total,
        memory.available if group is None else min(memory.available, group),
        sum(gpu.free for gpu in build.gpus) if build.gpus else None,
        settings.memory_limit,
    )


def _server(settings: ServerSettings, file: Path | None) -> Iterator[Finding]:
    keys = bool(settings.api_keys or settings.api_key_file or settings.keys)
    yield look_at_port(settings.host, settings.port)
    yield check_exposure(settings.host, keys=keys, tls=settings.ssl_cert_file is not None)
    yield from filter(
        None,
        (
            check_root(os.geteuid()),
            check_metrics(settings.host, metrics=settings.metrics, metrics_key=settings.metrics_key),
            check_keys(_written_keys(settings)),
        ),
    )
    yield check_cors(settings.cors_origins, keys=keys)
    yield from check_tls(settings.ssl_cert_file, settings.ssl_key_file)
    yield from check_slots(settings.slot_save_path)
    if settings.api_key_file is not None:
        yield from check_secret(settings.api_key_file, "the key file")
    written = settings.api_keys or any(key.key is not None for key in settings.keys.values())
    if written and file is not None:
        yield from check_secret(file, "the configuration, which holds keys,")


def _written_keys(settings: ServerSettings) -> list[str]:
    """Those that are written out, and not told by their hash."""
    keys = [*settings.api_keys, *(key.key for key in settings.keys.values() if key.key is not None)]
    if settings.api_key_file is not None:
        try:
            keys += settings.api_key_file.read_text("utf-8").split()
        except (OSError, UnicodeDecodeError):
            pass  # which another check tells
    return [key for key in keys if not key.startswith("sha256:")]
