"""The KubeRay manifests: their pods held against Kubernetes' own schemas, and the rest against Ray and the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from paddock.cli.app import main
from paddock.config import Settings, load_settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kuberay"
VERSIONS = ("1.28", kubernetes_validate.latest_version())


@pytest.fixture(scope="module")
def service() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((FOLDER / "service.yaml").read_text())["spec"]
    return spec


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load_settings(file=FOLDER / "config.json", environ={})


def _pods(service: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = service["rayClusterConfig"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@pytest.mark.parametrize("version", VERSIONS)
def test_its_pods_are_what_kubernetes_expects(service: dict[str, Any], version: str) -> None:
    for spec in _pods(service):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"}, "spec": spec}
        kubernetes_validate.validate(pod, version, strict=True)
    for other in ("models.yaml", "network.yaml"):
        kubernetes_validate.validate(yaml.safe_load((FOLDER / other).read_text()), version, strict=True)


def test_the_applications_are_those_that_the_command_prints(service: dict[str, Any], tmp_path: Path) -> None:
    said = json.loads((FOLDER / "config.json").read_text())
    for model in said["model_manager"]["models"].values():
        model["path"] = "fake:"  # what the volume has is not here
    config = tmp_path / "config.json"
    config.write_text(json.dumps(said))
    done = CliRunner().invoke(main, ["cluster", "config", str(config), "--at", "/etc/paddock/config.json"])
    assert done.exit_code == 0, done.output
    written = yaml.safe_load(service["serveConfigV2"])
    for application in written["applications"]:
        assert application["args"].pop("revision")
    assert written == json.loads(done.output)


def test_ray_understands_them(service: dict[str, Any]) -> None:
    schema = pytest.importorskip("ray.serve.schema")
    schema.ServeDeploySchema.model_validate(yaml.safe_load(service["serveConfigV2"]))
    constraints = (FOLDER.parents[1] / "constraints.txt").read_text()
    assert f"ray=={service['rayClusterConfig']['rayVersion']}\n" in constraints


def test_what_is_mounted_is_what_is_named(service: dict[str, Any], settings: Settings) -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    models = yaml.safe_load((FOLDER / "models.yaml").read_text())
    for spec in _pods(service):
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert volumes["config"]["configMap"]["name"] == kustomization["configMapGenerator"][0]["name"]
        assert volumes["models"]["persistentVolumeClaim"]["claimName"] == models["metadata"]["name"]
        (container,) = spec["containers"]
        mounted = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
        assert settings.server.api_key_file is not None
        assert settings.server.api_key_file.parent == mounted["keys"]
        assert settings.model_manager.models["chat"].path is not None
        assert settings.model_manager.models["chat"].path.parent == mounted["models"]
        assert {"name": "serve", "containerPort": settings.server.port} in container["ports"]


def test_rays_own_ports_ask_for_a_token_and_are_for_nodes_and_the_operator(
    service: dict[str, Any], settings: Settings
) -> None:
    cluster = service["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    policy = yaml.safe_load((FOLDER / "network.yaml").read_text())["spec"]
    nodes = policy["podSelector"]["matchLabels"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert nodes.items() <= group["template"]["metadata"]["labels"].items()
    for rule in policy["ingress"]:
        ports = {entry["port"] for entry in rule.get("ports", [])}
        peers = [peer.get("podSelector", {}).get("matchLabels", {}) for peer in rule["from"]]
        if ports == {settings.server.port}:
            continue
        operator = {"app.kubernetes.io/name": "kuberay-operator"}
        assert peers in ([nodes], [operator]), "who else may reach Ray itself?"
        assert peers == [nodes] or ports == {8265, settings.server.port}
    assert "network.yaml" in yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]


def test_a_replica_fits_a_node(service: dict[str, Any], settings: Settings) -> None:
    (group,) = service["rayClusterConfig"]["workerGroupSpecs"]
    requests = group["template"]["spec"]["containers"][0]["resources"]["requests"]
    place = settings.model_manager.models["chat"].cluster
    assert place.cpus is not None
    assert place.cpus < int(requests["cpu"])
    assert place.memory is not None
    # Ray keeps three tenths of a node's memory for itself and its object store.
    assert place.memory <= 0.7 * int(requests["memory"].removesuffix("Gi")) * 2**30
    assert group["maxReplicas"] >= place.most
