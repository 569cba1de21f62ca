"""What goes into the image, and how it says that it is healthy; without building it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from paddock.cli.serve import command as serve
from paddock.cli.unit import Unit
from paddock.config import ServerSettings
from tests.certificates import make_certificate
from tests.server import Server

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")


def _instructions(name: str) -> list[tuple[str, str]]:
    """Of a Dockerfile, with lines that go on joined and comments left out."""
    lines = [line for line in (DEPLOY / name).read_text().splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_dockerfile_says_what_an_operator_expects(name: str) -> None:
    instructions = _instructions(name)
    assert {word for word, _ in instructions} <= {
        *("ARG", "FROM", "RUN", "ENV", "WORKDIR", "COPY", "USER", "EXPOSE", "STOPSIGNAL"),
        *("HEALTHCHECK", "ENTRYPOINT", "CMD"),
    }
    last = max(index for index, (word, _) in enumerate(instructions) if word == "FROM")
    said = dict(instructions[last:])
    assert said["USER"] == "10001:10001"
    assert said["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(said["ENTRYPOINT"]) == ["paddock"]
    first, *args = json.loads(said["CMD"])
    assert first == "serve"
    assert serve.make_context("serve", args).params["model_manager__models_directory"] == "/models"
    assert "/opt/paddock/healthcheck.py" in said["HEALTHCHECK"]
    assert not re.search(r"(?i)(key|token|password|secret)=", (DEPLOY / name).read_text())
    assert "build-essential" not in " ".join(rest for _, rest in instructions[last:]), "no compiler where it runs"


def test_the_image_for_cpus_has_no_compiler_in_any_stage() -> None:
    said = " ".join(rest for _, rest in _instructions("Dockerfile"))
    assert not re.search(r"build-essential|g\+\+|gcc|clang|cmake|\bmake\b|python3-dev", said)
    assert "--only-binary :all:" in said, "a package without a wheel is an error, not a compilation"


def test_both_images_run_the_same() -> None:
    """What follows the build is the same but for the base image."""
    ends = []
    for name in DOCKERFILES:
        instructions = _instructions(name)
        last = max(index for index, (word, _) in enumerate(instructions) if word == "FROM")
        ends.append(instructions[last + 1 :])
    assert ends[0] == ends[1]


def test_all_that_is_copied_is_sent_along_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    sent = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for name in DOCKERFILES
        for word, rest in _instructions(name)
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == sent
    assert all((ROOT / source).exists() for source in copied)


def _merged(*names: str) -> dict[str, Any]:
    services: dict[str, Any] = {}
    for name in names:
        for service, said in yaml.safe_load((DEPLOY / name).read_text())["services"].items():
            services.setdefault(service, {}).update(said)
    return services


@pytest.mark.parametrize("names", [("compose.yaml",), ("compose.yaml", "compose.cuda.yaml")])
def test_compose_closes_what_can_be_closed(names: tuple[str, ...]) -> None:
    services = _merged(*names)
    assert services.keys() == {"paddock", "prometheus", "grafana"}
    for service in services.values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    first, *args = services["paddock"]["command"]
    assert first == "serve" and serve.make_context("serve", args).params["server__log_format"] == "json"


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ([], {}, ("127.0.0.1", 8080, False)),
        (["--host", "0.0.0.0", "--port=9000"], {"PADDOCK_SERVER__PORT": "1"}, ("127.0.0.1", 9000, False)),
        ([], {"PADDOCK_SERVER__PORT": "9001", "PADDOCK_SERVER__HOST": "::"}, ("::1", 9001, False)),
        (["--host", "::,/run/a.sock"], {"LLAMA_ARG_PORT": "9002"}, ("::1", 9002, False)),
        (["--config", "FILE"], {}, ("10.1.2.3", 8443, True)),
        ([], {"PADDOCK_CONFIG": "FILE", "PADDOCK_SERVER__PORT": "1"}, ("10.1.2.3", 1, True)),
        (["--config", "MISSING"], {}, ("127.0.0.1", 8080, False)),
    ],
)
def test_the_health_check_asks_where_the_server_listens(
    tmp_path: Path, flags: list[str], environment: dict[str, str], expected: tuple[str, int, bool]
) -> None:
    said = {"host": "10.1.2.3", "port": 8443, "ssl_cert_file": "/tls/cert.pem", "ssl_key_file": "/tls/key.pem"}
    (tmp_path / "config.json").write_text(json.dumps({"server": said}))
    name = str(tmp_path / "config.json")
    flags = [name if word == "FILE" else word for word in flags]
    environment = {key: name if value == "FILE" else value for key, value in environment.items()}
    assert _health_check().listens_on(flags, environment) == expected


def test_the_health_check_finds_the_server_among_the_processes(tmp_path: Path) -> None:
    for pid, words in (
        (1, ["/sbin/tini", "--", "paddock"]),
        (7, ["/opt/paddock/bin/python3", "/opt/paddock/bin/paddock", "serve", "--port", "9000"]),
        (9, ["python", "-P", "-m", "paddock.worker", "5", "6"]),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes("\0".join([*words, ""]).encode())
    assert _health_check().command_of_server(tmp_path) == ["--port", "9000"]
    (tmp_path / "1" / "cmdline").write_bytes(b"/usr/lib/systemd/systemd\0")
    assert _health_check().command_of_server(tmp_path) == [], "outside of a container no server is known"
    assert _health_check().command_of_server(tmp_path / "none") == []


def _health_check() -> Any:
    spec = importlib.util.spec_from_file_location("healthcheck", DEPLOY / "healthcheck.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_whoever_stops_the_server_waits_longer_than_answers_have_to_finish() -> None:
    server = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["paddock"]
    least = ServerSettings().stop_timeout
    assert ServerSettings().shutdown_grace >= 60
    assert int(server["stop_grace_period"].removesuffix("s")) >= least
    assert Unit(("paddock",)).stop_timeout >= least


def test_what_compose_mounts_of_ours_can_be_read() -> None:
    scrape = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    assert scrape["scrape_configs"][0]["static_configs"][0]["targets"] == ["paddock:8080"]
    for name in ("grafana-datasource.yml", "grafana-dashboards.yml"):
        assert yaml.safe_load((DEPLOY / "compose" / name).read_text())["apiVersion"] == 1


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _health(url: str, *args: str, **environ: str) -> int:
    port = url.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, str(DEPLOY / "healthcheck.py"), *args],
        env={**os.environ, "PADDOCK_SERVER__PORT": port, **environ}, capture_output=True, timeout=30,
    )  # fmt: skip
    return done.returncode


def test_healthy_and_not() -> None:
    with Server("-m", "fake:") as server:
        assert _health(server.url) == _health(server.url, "--alive") == 0
    assert _health(server.url) == _health(server.url, "--alive") == 1, "the server has stopped"


def test_a_server_that_loads_is_alive_but_not_ready() -> None:
    with Server("-m", "fake:load=20", lazy=False) as server:
        assert server.client.get("/health").status_code == 503
        assert _health(server.url) == 1
        assert _health(server.url, "--alive") == 0


def test_over_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with Server("-m", "fake:", "--ssl-cert-file", str(certificate), "--ssl-key-file", str(key)) as server:
        assert server.url.startswith("https://")
        assert _health(server.url, PADDOCK_SERVER__SSL_CERT_FILE=str(certificate)) == 0
        assert _health(server.url) == 1
