"""The plain manifest has what the chart renders, and kustomize builds it."""

import subprocess

import pytest
import yaml

from deploy import manifest
from inflight_base.kube.kinds import RESOURCES
from inflight_operator import cli
from inflight_operator.watch.watches import WATCHED_KINDS, optional_kinds
from tools import generated
from tools.localcluster import ClusterError
from tools.localcluster.layout import REPOSITORY
from tools.localcluster.programs.kubectl_program import binary
from tools.testbed.helm import rendered

KUSTOMIZE = REPOSITORY / "deploy" / "kustomize"


def built(folder):
    done = subprocess.run([binary(), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.load_all(done.stdout, yaml.CSafeLoader)}


def test_the_manifest_is_up_to_date():
    assert manifest.FILE.read_text() == manifest.manifest(), "run `python -m deploy.manifest --write`"


def test_it_has_all_objects_of_the_chart_but_the_test_and_nothing_that_means_helm():
    objects = {(one["kind"], one["metadata"]["name"]) for one in rendered("--no-hooks")}
    text = manifest.FILE.read_text()
    assert {(one["kind"], one["metadata"]["name"]) for one in yaml.load_all(text, yaml.CSafeLoader)} == objects
    assert "helm" not in text.partition("apiVersion")[2].lower()


def test_kustomize_builds_the_base_with_a_namespace_that_enforces_restricted_pods():
    objects = built(KUSTOMIZE / "base")
    namespace = objects.pop(("Namespace", "inflight-system"))
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert len(objects) == len(rendered("--no-hooks"))


def test_the_gateways_objects_are_up_to_date():
    assert manifest.GATEWAY_FILE.read_text() == manifest.gateway(), "run `python -m deploy.manifest --write`"


def test_kustomize_with_the_gateway_builds_what_the_chart_renders_with_it():
    objects = built(KUSTOMIZE / "gateway")
    del objects["Namespace", "inflight-system"]
    expected = {
        (one["kind"], one["metadata"]["name"]): manifest._without_helm(one)
        for one in rendered("--no-hooks", *manifest.WITH_GATEWAY)
    }
    assert objects.keys() == expected.keys()
    deployment = ("Deployment", "inflight-operator")
    for arguments in (
        one[deployment]["spec"]["template"]["spec"]["containers"][0]["args"] for one in (objects, expected)
    ):
        arguments.sort()  # the patch adds its argument at the end
    for identity, one in expected.items():
        assert objects[identity] == one, identity


def test_the_operator_of_the_overlay_with_the_gateway_may_list_and_watch_what_it_watches():
    objects = built(KUSTOMIZE / "gateway")
    deployment = objects["Deployment", "inflight-operator"]
    arguments = cli.build_parser().parse_args(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
    assert arguments.gateway_service
    watches = {
        (RESOURCES[kind][0].rpartition("/")[0], RESOURCES[kind][1])
        for kind in (*WATCHED_KINDS, *optional_kinds(endpoint_picker=arguments.gateway_endpoint_picker))
    }
    may_watch = {
        (group, resource)
        for rule in objects["ClusterRole", "inflight-operator"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if {"list", "watch"} <= set(rule["verbs"])
    }
    assert watches <= may_watch


def test_the_overlay_sets_both_images_and_the_replicas():
    deployment = built(KUSTOMIZE / "registry")[("Deployment", "inflight-operator")]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    version = yaml.safe_load((REPOSITORY / "helm" / "inflight" / "Chart.yaml").read_text())["appVersion"]
    assert container["image"] == f"registry.example.com/inflight-operator:{version}"
    engine = [argument for argument in container["args"] if argument.startswith("--engine-image=")]
    assert engine == [f"--engine-image=registry.example.com/inflight-engine:{version}"]
    assert deployment["spec"]["replicas"] == 2


def test_values_that_the_chart_refuses_are_an_error():
    with pytest.raises(ClusterError, match="replica"):
        rendered("--set", "replica=2")


def test_check_names_the_files_that_differ_and_write_mends_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generated, "REPOSITORY", tmp_path)
    files = {tmp_path / "a" / "one.md": "one\n", tmp_path / "two.md": "two\n"}
    (tmp_path / "two.md").write_text("two\n")
    assert generated.run("deploy.x", None, files, ["--check"]) == 1
    assert capsys.readouterr().err == "a/one.md is out of date: run `python -m deploy.x --write`\n"
    assert generated.run("deploy.x", None, files, ["--write"]) == 0
    assert generated.run("deploy.x", None, files, ["--check"]) == 0
    assert (tmp_path / "a" / "one.md").read_text() == "one\n"
