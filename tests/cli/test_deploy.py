"""What lies in deploy/: objects of Kubernetes, the farm's settings in them, and the dashboard. Nothing is deployed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from compilefarm.serving.config import ServeConfig
from compilefarm.serving.flags import read_file

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy"
# Strict: a field that the schema does not know is an error.
SCHEMAS = kubernetes_validate.latest_version()


def objects() -> list[dict[str, Any]]:
    files = sorted((FOLDER / "kubernetes").glob("*.yaml"))
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in objects() if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pods() -> dict[str, dict[str, Any]]:
    """Templates of pods, by the component that they are."""
    ray = named("RayCluster", "compilefarm-ray")["spec"]
    groups = [ray["headGroupSpec"], *ray["workerGroupSpecs"]]
    templates = [named("Deployment", "compilefarm")["spec"]["template"], *(group["template"] for group in groups)]
    return {template["metadata"]["labels"]["app.kubernetes.io/component"]: template for template in templates}


def container(component: str) -> dict[str, Any]:
    (found,) = pods()[component]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize(
    "given",
    [each for each in objects() if each["kind"] != "RayCluster"],
    ids=lambda each: f"{each['kind']} {each['metadata']['name']}",
)
def test_objects_have_the_form_that_kubernetes_takes(given: dict[str, Any]) -> None:
    kubernetes_validate.validate(given, SCHEMAS, strict=True)


@pytest.mark.parametrize("component", ["gateway", "ray-head", "worker"])
def test_pods_have_the_form_that_kubernetes_takes(component: str) -> None:
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": component}, "template": pods()[component]}
    kubernetes_validate.validate(pod, SCHEMAS, strict=True)


def test_a_field_that_there_is_not_would_be_found() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [], "hostUser": False}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, SCHEMAS, strict=True)


def test_the_farm_takes_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text(named("ConfigMap", "compilefarm")["data"]["farm.toml"])
    given = ServeConfig(**read_file(file, ServeConfig))
    assert given.pool == "ray"
    assert given.sandbox == "require"
    (workers,) = given.environments
    (group,) = named("RayCluster", "compilefarm-ray")["spec"]["workerGroupSpecs"]
    assert workers.most_workers == group["maxReplicas"]
    assert f"--address={given.ray_address}" in " ".join(container("gateway")["args"])
    ports = {port["name"]: port["containerPort"] for port in container("gateway")["ports"]}
    assert ports["grpc"] == int(given.listen.rpartition(":")[2])
    assert ports["metrics"] == int(given.metrics_listen.rpartition(":")[2])
    assert container("gateway")["readinessProbe"]["grpc"]["port"] == ports["grpc"]
    assert pods()["gateway"]["spec"]["terminationGracePeriodSeconds"] > given.grace
    mounts = [mount["mountPath"] for mount in container("gateway")["volumeMounts"]]
    assert str(given.state) in mounts
    secrets = named("Secret", "compilefarm")["stringData"]
    for path in (given.auth, given.signing_key):
        assert path is not None
        folder, _, name = path.rpartition("/")
        assert folder in mounts
        assert name in secrets


def test_workers_have_neither_the_key_nor_the_store() -> None:
    for component in ("ray-head", "worker"):
        given = container(component)
        assert given["envFrom"] == [{"secretRef": {"name": "compilefarm-ray"}}]
        volumes = pods()[component]["spec"].get("volumes", [])
        assert not any({"secret", "persistentVolumeClaim"} & set(volume) for volume in volumes)


def test_all_of_ray_asks_for_the_token_and_is_behind_one_policy() -> None:
    assert named("Secret", "compilefarm-ray")["stringData"]["RAY_AUTH_MODE"] == "token"
    policy = named("NetworkPolicy", "compilefarm-ray")["spec"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": policy["podSelector"]}]
    for pod in pods().values():
        assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_every_selector_finds_a_pod() -> None:
    labels = [pod["metadata"]["labels"].items() for pod in pods().values()]
    selectors = [named("Service", "compilefarm")["spec"]["selector"]]
    selectors += [
        each["spec"]["selector"]["matchLabels"] for each in objects() if each["kind"] == "PodDisruptionBudget"
    ]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in objects() if each["kind"] == "NetworkPolicy"]
    for selector in selectors:
        assert any(selector.items() <= each for each in labels), selector


def test_the_image_is_one_and_the_same() -> None:
    assert len({container(component)["image"] for component in pods()}) == 1


def test_secrets_are_left_to_whoever_deploys() -> None:
    secrets = {name: text for each in objects() for name, text in each.get("stringData", {}).items()}
    assert {text for name, text in secrets.items() if name != "RAY_AUTH_MODE"} == {"REPLACE"}


def dashboard() -> dict[str, Any]:
    return dict(json.loads((FOLDER / "grafana.json").read_text()))


def unknown_fields(given: dict[str, Any]) -> list[str]:
    """Fields of a dashboard that Grafana's own types do not have, or that have another form there."""
    register_default_plugins()
    known = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(given)))
    return sorted(values_at(given) - values_at(known))


def values_at(value: Any, place: str = "") -> set[str]:
    """All places of a JSON document, with the values there."""
    if not isinstance(value, (dict, list)):
        return {f"{place}={value}"}
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return {place}.union(*(values_at(each, f"{place}/{name}") for name, each in inner))


def test_the_dashboard_has_the_form_that_grafana_takes() -> None:
    assert unknown_fields(dashboard()) == []


def test_a_field_of_the_dashboard_that_there_is_not_would_be_found() -> None:
    changed = dashboard()
    changed["panels"][0]["gridPosition"] = changed["panels"][0].pop("gridPos")
    assert "/panels/0/gridPosition" in unknown_fields(changed)


def test_prometheus_can_read_what_the_dashboard_asks() -> None:
    for expression in asked_by_dashboard():
        # Grafana puts a duration in its place.
        promql_parser.parse(expression.replace("$__rate_interval", "5m"))
    with pytest.raises(ValueError, match="unclosed"):
        promql_parser.parse("sum(rate(compilefarm_hits_total[5m])")


def asked_by_dashboard() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    asked = " ".join(asked_by_dashboard())
    names = {name.removesuffix("_bucket") for name in re.findall(r"compilefarm_\w+", asked)}
    known = set(re.findall(r"`(compilefarm_\w+)`", (ROOT / "docs" / "reference.md").read_text()))
    assert names
    assert names - known == set()


def test_prometheus_keeps_the_pod_that_serves_metrics() -> None:
    (job,) = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    keep = next(rule for rule in job["relabel_configs"] if rule.get("action") == "keep")
    labels = pods()["gateway"]["metadata"]["labels"]
    values = [labels["app.kubernetes.io/name"], labels["app.kubernetes.io/component"], "metrics"]
    assert re.fullmatch(keep["regex"], ";".join(values))
