"""Placement, names and settings, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.cluster.applications import cluster_catalogue, digest_of, portable, settings_from
from paddock.cluster.names import application_of, ours
from paddock.cluster.placement import placement
from paddock.config import PlacementSettings, Settings, load_settings
from paddock.errors import PaddockError, SettingsError, StartupError
from paddock.fleet import Model
from paddock.gateway.auth.keys import read_keys
from tests.options import engine_options, new_model
from tests.tiny_models import llama

FAKE = new_model("m", "fake:memory=100", options=engine_options(n_threads=3, parallel=5))


def _placed(*, has_gpus: bool = False, model: Model = FAKE, **settings: Any) -> Any:
    return placement(model, PlacementSettings(**settings), has_gpus=has_gpus)


def test_defaults() -> None:
    place = _placed()
    assert place.actor_options["num_cpus"] == 3
    assert place.actor_options["num_gpus"] == 0
    assert place.actor_options["memory"] > 100 * 2**20
    assert place.replicas == {"num_replicas": 1}
    assert _placed(max_replicas=2).replicas["autoscaling_config"]["target_ongoing_requests"] == 5


def test_gpus() -> None:
    assert _placed(has_gpus=True).gpus == 1
    assert _placed(has_gpus=True, gpus=0.25).gpus == 0.25
    on_cpu = new_model("m", "fake:", options=engine_options(n_gpu_layers=0))
    assert _placed(has_gpus=True, model=on_cpu).gpus == 0


def test_memory_is_estimated(tmp_path: Path) -> None:
    llama(tmp_path / "tiny.gguf")
    model = new_model("tiny", str(tmp_path / "tiny.gguf"))
    estimate = model.estimate(gpu=False)
    assert estimate is not None
    assert _placed(model=model).memory > estimate.host.total + estimate.prefixes
    assert _placed(model=model, memory="3GiB").memory == 3 * 2**30
    with pytest.raises(StartupError, match=r"cluster\.memory"):
        _placed(model=new_model("gone", str(tmp_path / "gone.gguf")))


@given(st.integers(1, 50), st.integers(0, 50), st.floats(0, 1000), st.floats(0, 1000))
def test_ray_accepts_every_placement(least: int, more: int, up: float, down: float) -> None:
    config = pytest.importorskip("ray.serve.config")
    place = _placed(min_replicas=least, max_replicas=least + more, upscale_delay=up, downscale_delay=down)
    if more:
        scaling = config.AutoscalingConfig(**place.replicas["autoscaling_config"])
        assert (scaling.min_replicas, scaling.max_replicas) == (least, least + more)
    else:
        assert place.replicas == {"num_replicas": least}


def test_other_applications_are_not_touched() -> None:
    there = {
        "paddock": {"gateway"},
        "paddock-chat": {"engine"},
        "paddock-new": set[str](),
        "paddock2": {"gateway"},
        "paddock2-chat": {"engine"},
        "paddock-of-others": {"Model", "engine"},
        "other": {"engine"},
    }
    assert ours("paddock", there) == ["paddock", "paddock-chat", "paddock-new"]
    assert ours("paddock2", there) == ["paddock2", "paddock2-chat"]
    with pytest.raises(ValueError, match="name"):
        Settings.model_validate({"cluster": {"name": "paddock-two"}})


def test_missing_resources() -> None:
    place = _placed(cpus=4, gpus=1, memory="1GiB", resources={"ssd": 1})
    small = {"CPU": 8.0, "memory": 2.0**33}
    assert place.missing_resources([small]) == "1 GPU, 1 ssd"
    assert place.missing_resources([small, small | {"GPU": 2.0}]) == "1 ssd"
    assert place.missing_resources([small, small | {"GPU": 2.0, "ssd": 1.0}]) == ""
    assert place.missing_resources([]) == "4 CPU, 1 GPU, 1 GiB of memory, 1 ssd"
    assert _placed().missing_resources([small]) == ""


@given(st.text(min_size=1), st.text(min_size=1))
def test_application_names_are_unique(one: str, other: str) -> None:
    names = application_of("paddock", one), application_of("paddock", other)
    assert (names[0] == names[1]) == (one == other)
    for name in names:
        assert "#" not in name
        assert "/" not in name


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        ({"min_replicas": 3, "max_replicas": 2}, r"max_replicas \(2\) is less than min_replicas \(3\)"),
        ({"min_replicas": 0}, "greater than or equal to 1"),
        ({"memory": "much"}, "expected a size"),
        ({"resources": {"left": 0}}, "greater than 0"),
        ({"replicas": 3}, "cluster.replicas"),
    ],
)
def test_invalid_settings(cluster: dict[str, Any], problem: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_manager": {"models": {"m": {"path": "fake:", "cluster": cluster}}}}))
    with pytest.raises(SettingsError, match=problem) as refused:
        load_settings(file=file, environ={})
    assert "cluster" in refused.value.message
    assert "config.json" in refused.value.message


def _settings(**models: Any) -> Settings:
    return Settings.model_validate({"model_manager": {"models": models}})


def test_portable_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    llama(tmp_path / "tiny.gguf")
    tiny = {"path": "tiny.gguf", "lora_scaled": [], "cache_disk": "cache:1G"}
    settings = _settings(tiny=tiny, fake={"path": "fake:delay=1"})
    data = portable(settings)
    json.dumps(data)  # Ray's configuration file must be JSON
    assert data["model_manager"]["models"]["tiny"]["path"] == str(tmp_path / "tiny.gguf")
    assert data["model_manager"]["models"]["fake"]["path"] == "fake:delay=1"
    assert data["model_manager"]["models"]["tiny"]["cache_disk"] == f"{tmp_path / 'cache'}:1G"
    again = Settings.model_validate(data)
    assert portable(again) == data
    assert digest_of(again) == digest_of(settings_from({"settings": data}))
    scaled = _settings(m={"path": "fake:", "lora_scaled": ["/a/b.gguf:0.5"]})
    assert Settings.model_validate(portable(scaled)) == scaled


def test_keys_are_hashed(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("from-a-file\n")
    replicas = {"replicas": {"there": {"url": "http://10.0.0.2:8080", "api_key": "for-another-server"}}}
    settings = Settings.model_validate({
        "server": {"api_keys": ["plain-one"], "api_key_file": str(tmp_path / "keys"), "keys": {"a": {"key": "a-key"}}},
        "model_manager": {"models": {"m": {"path": "fake:"}, "n": replicas}},
    })  # fmt: skip
    data = json.dumps(portable(settings))
    assert not [key for key in ("plain-one", "from-a-file", "a-key") if f'"{key}"' in data]
    again = Settings.model_validate(portable(settings))
    assert {key.digest for key in read_keys(again.server)} == {key.digest for key in read_keys(settings.server)}


def test_digests_change_per_model() -> None:
    before = _settings(one={"path": "fake:"}, two={"path": "fake:"})
    after = _settings(one={"path": "fake:"}, two={"path": "fake:", "n_ctx": 512})
    digests = [
        {model.name: digest_of(settings, model) for model in cluster_catalogue(settings)}
        for settings in (before, after)
    ]
    assert digests[0]["one"] == digests[1]["one"]
    assert digests[0]["two"] != digests[1]["two"]
    assert digest_of(before) != digest_of(after), "the gateways list the models"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"model_manager": {"models": {"m": {"path": "fake:", "replicas": 2}}}}, "cluster.min_replicas"),
        ({"model_manager": {"models": {"m": {"path": "/nowhere/m.gguf"}}}}, "cannot serve m"),
        ({"server": {"ssl_cert_file": "/a", "ssl_key_file": "/b"}, "model_manager": {"model": "fake:"}}, "plain HTTP"),
        ({"server": {"host": "127.0.0.1,::1"}, "model_manager": {"model": "fake:"}}, "listen on one address"),
    ],
)
def test_unsupported_settings(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(PaddockError, match=problem):
        cluster_catalogue(Settings.model_validate(settings))


def test_missing_arguments() -> None:
    with pytest.raises(StartupError, match="'config'"):
        settings_from({})
