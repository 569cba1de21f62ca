"""The manifests, built by kustomize and held against Kubernetes' own schemas, and against what the server takes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from paddock.cli.serve import command as serve
from paddock.config import load_settings
from tests.tiers import full

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.28", kubernetes_validate.latest_version())
_LABELS = {"app.kubernetes.io/name": "paddock", "app.kubernetes.io/component": "server"}

# Overlays are no manifests, and what the Prometheus operator adds has no schema here.
_FILES = [file for file in sorted(FOLDER.rglob("*.yaml")) if file.stem not in ("kustomization", "servicemonitor")]

Manifest = dict[str, Any]


def _build(overlay: str, scratch: Path) -> list[Manifest]:
    """By `kubectl kustomize`. Debian's is older than the words in which overlays are written now, and gets the old."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl here")
    copy = Path(shutil.copytree(FOLDER, scratch / "kubernetes"))
    version = subprocess.run([kubectl, "version", "--client"], capture_output=True, text=True, check=True).stdout
    if re.search(r"\bv1\.(1\d|20)\.", version):
        file = copy / overlay / "kustomization.yaml"
        said = yaml.safe_load(file.read_text())
        said["bases"] = said.pop("resources")
        said["patchesStrategicMerge"] = [patch["path"] for patch in said.pop("patches")]
        file.write_text(yaml.safe_dump(said))
    done = subprocess.run([kubectl, "kustomize", str(copy / overlay)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(params=["cpu", "gpu"])
def overlay(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def built(overlay: str, tmp_path: Path) -> dict[str, Manifest]:
    """By kind; there is one of each."""
    manifests = _build(overlay, tmp_path)
    by_kind = {manifest["kind"]: manifest for manifest in manifests}
    assert len(by_kind) == len(manifests)
    return by_kind


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", _FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_file_is_what_kubernetes_expects(file: Path, version: str) -> None:
    manifest = yaml.safe_load(file.read_text())
    if file.stem == "resources":  # a part of the deployment, and nothing by itself
        manifest["spec"].update(selector={"matchLabels": _LABELS})
        for container in manifest["spec"]["template"]["spec"]["containers"]:
            container["image"] = "paddock"
    kubernetes_validate.validate(manifest, version, strict=True)


@full
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_built_is_too(built: dict[str, Manifest], version: str) -> None:
    for manifest in built.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    assert built.keys() == {
        "ConfigMap", "Deployment", "NetworkPolicy", "PersistentVolumeClaim", "PodDisruptionBudget", "Service",
    }  # fmt: skip


def test_a_mistake_would_be_seen(built: dict[str, Manifest]) -> None:
    built["Service"]["spec"]["prots"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(built["Service"], VERSIONS[0], strict=True)


def _container(built: dict[str, Manifest]) -> Manifest:
    (container,) = built["Deployment"]["spec"]["template"]["spec"]["containers"]
    found: Manifest = container
    return found


def test_resources(built: dict[str, Manifest], overlay: str) -> None:
    resources = _container(built)["resources"]
    if overlay == "cpu":
        assert resources == {
            "requests": {"cpu": "4", "memory": "8Gi"},
            "limits": {"cpu": "8", "memory": "16Gi"},
        }
    else:
        assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == 1
        assert (resources["requests"]["memory"], resources["limits"]["memory"]) == ("16Gi", "32Gi")
    assert _container(built)["image"] == f"registry.example.org/paddock:{'cuda' if overlay == 'gpu' else 'cpu'}"


def test_it_runs_with_as_little_as_it_can(built: dict[str, Manifest]) -> None:
    pod, container = built["Deployment"]["spec"]["template"]["spec"], _container(built)
    assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/tmp"}


def test_everybody_means_the_same_pods(built: dict[str, Manifest]) -> None:
    deployment = built["Deployment"]["spec"]
    for labels in (
        deployment["template"]["metadata"]["labels"],
        deployment["selector"]["matchLabels"],
        built["Service"]["spec"]["selector"],
        built["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        built["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        yaml.safe_load((FOLDER / "extras" / "servicemonitor.yaml").read_text())["spec"]["selector"]["matchLabels"],
    ):
        assert labels == _LABELS
    pull = yaml.safe_load((FOLDER / "extras" / "pull.yaml").read_text())["spec"]["template"]["metadata"]["labels"]
    assert pull != _LABELS, "the network policy would keep it from the hub"


def test_the_server_takes_what_it_is_given(built: dict[str, Manifest], tmp_path: Path) -> None:
    (name,) = built["ConfigMap"]["data"]
    (tmp_path / name).write_text(built["ConfigMap"]["data"][name])
    container = _container(built)
    first, *args = container["args"]
    assert first == "serve"
    context = serve.make_context("serve", shlex.split(shlex.join(args)))
    assert context.params["config"] == Path("/etc/paddock") / name
    environ = {variable["name"]: variable["value"] for variable in container["env"]}
    settings = load_settings(file=tmp_path / name, environ=environ, dotenv=tmp_path / "none")
    assert settings.server.port == container["ports"][0]["containerPort"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert str(settings.model_manager.models_directory) in mounts
    assert settings.server.api_key_file is not None and str(settings.server.api_key_file.parent) in mounts
    grace = built["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert grace >= before + settings.server.stop_timeout, "what is under way can be finished"
    cpus = int(container["resources"]["requests"]["cpu"])
    assert settings.model_manager.n_threads == cpus, "as many as the pod is sure of, and not as the node has cores"


def test_a_long_load_is_waited_for(built: dict[str, Manifest], tmp_path: Path) -> None:
    container = _container(built)
    started = container["startupProbe"]
    longest = load_settings(environ={}, dotenv=tmp_path / "none").model_manager.load_timeout
    assert started["periodSeconds"] * started["failureThreshold"] > longest
    assert container["livenessProbe"]["exec"]["command"][-1] == "--alive", "503 while loading is no reason to die"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
