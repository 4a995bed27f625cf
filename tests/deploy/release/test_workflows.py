"""The workflows of GitHub Actions: correct by actionlint, with few rights, and made of this repository's commands."""

import re
import subprocess

import pytest
import yaml

from deploy.release.images import IMAGES
from tools.localcluster import layout
from tools.localcluster.layout import REPOSITORY
from tools.localcluster.programs import gobuild, goparts
from tools.localcluster.progress import to_stdout

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
TARGETS = re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)


def of(name):
    return yaml.load((REPOSITORY / ".github" / "workflows" / name).read_text(), yaml.BaseLoader)


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.contract
def test_actionlint_finds_nothing():
    binary = gobuild.ensure_part(goparts.ACTIONLINT, layout.current(), to_stdout()) / "actionlint"
    done = subprocess.run([binary, "-no-color", *WORKFLOWS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_jobs_have_only_the_rights_that_they_name(path):
    workflow = of(path.name)
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)] == []
    assert workflow["permissions"] == {}
    assert all("permissions" in job for job in workflow["jobs"].values())
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] == "false"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_steps_run_targets_of_the_makefile_and_take_no_text_of_the_event_into_a_shell(path):
    for step in steps(of(path.name)):
        run = step.get("run", "")
        assert "${{" not in run
        assert set(re.findall(r"\bmake ([a-z][a-z0-9-]*)", run)) <= set(TARGETS)


def test_the_images_are_built_by_the_buildkit_that_they_are_tested_with():
    (builder,) = [step for step in steps(of("release.yml")) if "setup-buildx-action" in step.get("uses", "")]
    go_mod = (goparts.BUILDKIT.folder / "go.mod").read_text()
    version = goparts.required_version(go_mod, "github.com/moby/buildkit")
    assert builder["with"]["driver-opts"] == f"image=moby/buildkit:{version}"


def test_every_image_is_built_for_every_architecture_that_is_joined():
    matrix = of("release.yml")["jobs"]["images"]["strategy"]["matrix"]
    assert matrix["image"] == list(IMAGES)
    assert matrix["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]


def test_the_release_of_a_tag_with_a_dash_such_as_v0_2_0_rc_1_is_a_prerelease_and_no_other_is():
    (create,) = [step for step in steps(of("release.yml")) if step.get("run", "").startswith("gh release create ")]
    assert '--prerelease="$PRERELEASE"' in create["run"].split()
    assert create["env"]["PRERELEASE"] == "${{ contains(github.ref_name, '-') }}"
