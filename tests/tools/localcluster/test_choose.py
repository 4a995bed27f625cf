"""The order in which a cluster is chosen, and the commands of those that Docker serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.localcluster import choose, docker_clusters
from tools.localcluster.choose import Choice
from tools.localcluster.docker_clusters import NamedCluster
from tools.localcluster.errors import ClusterError
from tools.localcluster.images import dockerfiles
from tools.localcluster.programs import kubectl_program


@pytest.mark.parametrize(
    ("kubeconfig", "kind", "docker", "expected"),
    [
        ("/a/config", True, True, Choice.NAMED),
        ("/a/config", False, False, Choice.NAMED),
        (None, True, True, Choice.KIND),
        ("", True, True, Choice.KIND),
        (None, True, False, Choice.OWN_NODE),
        (None, False, True, Choice.OWN_NODE),
        (None, False, False, Choice.OWN_NODE),
    ],
)
def test_a_named_cluster_comes_before_kind_and_kind_before_the_own_node(kubeconfig, kind, docker, expected):
    assert choose.choose(kubeconfig, kind_is_there=kind, docker_answers=docker) is expected


def program(folder, name, body):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_a_docker_client_without_a_daemon_gives_the_own_node(tmp_path, monkeypatch):
    program(tmp_path, "docker", "echo no daemon >&2; exit 1")
    program(tmp_path, "kind", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("INFLIGHT_KUBECONFIG", raising=False)
    assert choose.current() is Choice.OWN_NODE


def test_a_docker_daemon_and_kind_give_kind(tmp_path, monkeypatch):
    program(tmp_path, "docker", "exit 0")
    program(tmp_path, "kind", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("INFLIGHT_KUBECONFIG", raising=False)
    assert choose.current() is Choice.KIND


def test_docker_builds_with_the_repository_as_context():
    command = docker_clusters.build_command(dockerfiles.named("operator"), "r/x:dev", {"HTTP_PROXY": "p"})
    assert command[:2] == ["docker", "build"]
    assert command[command.index("--file") + 1].endswith("operator/Dockerfile")
    assert command[command.index("--tag") + 1] == "r/x:dev"
    assert command[command.index("--build-arg") + 1] == "HTTP_PROXY=p"
    assert Path(command[-1], "pyproject.toml").is_file()


@pytest.mark.parametrize("prefix", ["registry.example/team", "registry.example/team/"])
def test_a_named_cluster_pulls_from_the_users_prefix(prefix):
    reference = docker_clusters.pushed_reference(dockerfiles.named("engine"), prefix)
    assert reference == "registry.example/team/inflight-engine:dev"


def test_kind_gets_the_image_under_its_own_cluster_name():
    assert docker_clusters.kind_load_command("a:dev") == ["kind", "load", "docker-image", "a:dev", "--name", "inflight"]
    assert "--kubeconfig" in docker_clusters.kind_create_command(Path("/k"))


def test_building_for_a_named_cluster_without_a_prefix_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.delenv("INFLIGHT_IMAGE_PREFIX", raising=False)
    with pytest.raises(ClusterError, match="INFLIGHT_IMAGE_PREFIX"):
        NamedCluster(tmp_path / "config", print).build(dockerfiles.named("engine"))


def test_a_named_kubeconfig_that_is_no_file_is_said(tmp_path):
    with pytest.raises(ClusterError, match="INFLIGHT_KUBECONFIG"):
        NamedCluster(tmp_path / "none", print).up()


def test_a_named_cluster_is_not_taken_down(tmp_path):
    with pytest.raises(ClusterError, match="not made here"):
        NamedCluster(tmp_path / "config", print).down()


def test_kubectl_without_a_kubeconfig_says_how_to_get_a_cluster(tmp_path):
    with pytest.raises(ClusterError, match=r"no cluster.*tools\.localcluster up"):
        kubectl_program.run(tmp_path / "config", ("get", "pods"))


def test_kubectl_does_not_ask_a_proxy_for_the_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:1")
    (tmp_path / "config").touch()
    environment = kubectl_program.environment(tmp_path / "config")
    assert environment["KUBECONFIG"] == str(tmp_path / "config")
    assert "HTTPS_PROXY" not in environment


def test_a_variant_of_an_image_has_its_own_tag_and_build_arguments():
    image = dockerfiles.named("operator")
    variant = image.variant("other", {"VERSION": "2"})
    assert (variant.reference, variant.dockerfile) == ("localhost/inflight-operator:other", image.dockerfile)
    assert docker_clusters.pushed_reference(variant, "r/x/") == "r/x/inflight-operator:other"
    command = docker_clusters.build_command(variant, variant.reference, {"HTTP_PROXY": "p"})
    assert {"VERSION=2", "HTTP_PROXY=p"} <= set(command)
    assert "VERSION=2" not in docker_clusters.build_command(image, image.reference, {})
