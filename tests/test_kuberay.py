"""The file for Kubernetes: it parses, fits the Ray that is tested, and asks for a token everywhere."""

import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="the extra 'dev' is not installed")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cluster():
    return yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def pods(cluster):
    """The pod of the head, and the pod of each group of workers."""
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_it_is_a_ray_cluster_with_a_head_and_workers(cluster, pods):
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    assert len(pods) == 2
    assert all("rayStartParams" in group for group in cluster["spec"]["workerGroupSpecs"])


def test_its_ray_is_the_pinned_one(cluster):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert extras["ray"] == [f"ray=={cluster['spec']['rayVersion']}"]


def test_every_container_has_limits_and_requests_as_much(pods):
    for container in (container for pod in pods for container in pod["containers"]):
        limits = container["resources"]["limits"]
        assert {"cpu", "memory"} <= limits.keys()
        assert container["resources"]["requests"] == limits


def test_every_node_asks_for_the_token_of_one_secret(pods):
    for container in (container for pod in pods for container in pod["containers"]):
        told = {entry["name"]: entry for entry in container["env"]}
        assert told["RAY_AUTH_MODE"]["value"] == "token"
        assert told["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "potluck-ray", "key": "auth_token"}


def test_all_nodes_run_one_image_and_see_one_volume(pods):
    containers = [container for pod in pods for container in pod["containers"]]
    assert len({container["image"] for container in containers}) == 1
    assert all(pod["volumes"] == pods[0]["volumes"] for pod in pods)
    names = {volume["name"] for volume in pods[0]["volumes"]}
    assert all({mount["name"] for mount in one["volumeMounts"]} == names for one in containers)
