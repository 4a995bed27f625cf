"""The blocks of the quickstart for clusters with a registry; e2e/scenarios/test_quickstart.py runs the others."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import PROJECT, in_language

(REGISTRY,) = (block for block in in_language("bash") if block.note == "images and registry")
(RELEASE,) = (block for block in in_language("bash") if block.note == "release")
LINES = REGISTRY.text.replace("\\\n", " ").splitlines()


def lines_of(command):
    return [line for line in LINES if line.startswith(command)]


def test_the_images_that_are_built_are_pushed_and_are_those_that_the_chart_asks_for(tmp_path):
    built = {line.split(" -t ")[1].split()[0] for line in lines_of("docker build")}
    pushed = {line.split()[2] for line in lines_of("docker push")}
    assert pushed == built
    assert len(built) == 2
    (install,) = lines_of("helm install")
    template = install.replace("helm install", "helm template").replace("--create-namespace", "")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"REGISTRY=registry.example/team\n{template}"],
        cwd=PROJECT,
        env={"HOME": str(tmp_path), "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for image in built:
        assert image.replace("$REGISTRY", "registry.example/team") in done.stdout


def test_dockerfiles_and_nothing_else_are_built():
    files = {line.split(" -f ")[1].split()[0] for line in lines_of("docker build")}
    assert all((PROJECT / file).is_file() for file in files)
    assert [line for line in LINES if not line.startswith(("docker build", "docker push", "helm install"))] == []


def test_where_a_release_exists_one_command_installs_its_chart():
    assert RELEASE.page == REGISTRY.page
    (command,) = RELEASE.text.replace("\\\n", " ").splitlines()
    assert command.startswith("helm install inflight oci://$REGISTRY/inflight --namespace inflight-system ")
    assert "--set" not in command
