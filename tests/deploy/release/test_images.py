"""The command that builds an image of a release and pushes it."""

import pytest

from deploy.release import images
from deploy.release.__main__ import main
from deploy.release.images import IMAGES
from tools.localcluster.images.oci_archive import architecture

REGISTRY = "registry.example/team"


@pytest.fixture
def run(monkeypatch):
    """The command of `make release-image` with a BuildKit of the user's, which is not run."""
    commands = []
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("BUILDKIT_HOST", "docker-container://builder")
    monkeypatch.setenv("RELEASE_REGISTRY", REGISTRY)
    monkeypatch.setenv("RELEASE_TAG", "v0.2.0-rc.1")
    monkeypatch.setattr(images, "installed", lambda name: name)
    monkeypatch.setattr(images, "output", lambda command, failure: commands.append(command))

    def run(*arguments):
        assert main(["image", *arguments]) == 0
        return commands[-1]

    return run


def test_an_image_is_pushed_for_one_architecture_with_packages_and_provenance_and_the_version_of_the_tag(run):
    command = run("engine-cpu", "--build-arg", "TORCH_INDEX=https://index.example/cpu")
    name = f"{REGISTRY}/inflight-engine:0.2.0-rc.1-cpu-{architecture()}"
    assert f"--output=type=image,name={name},push=true,store=false" in command
    given = {part.removeprefix("--opt=build-arg:") for part in command if "build-arg" in part}
    assert given == {"VERSION=0.2.0-rc.1", "VARIANT=cpu", "TORCH_INDEX=https://index.example/cpu"}
    assert {"--opt=attest:sbom=", "--opt=attest:provenance=mode=max"} <= set(command)


def test_the_list_of_packages_can_be_left_out(run):
    assert not any("sbom" in part for part in run("operator", "--no-sbom"))


def test_the_address_of_a_proxy_is_in_no_attestation(run, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://user:password@proxy.example")
    assert "--opt=attest:provenance=mode=min" in run("operator")


def test_a_build_argument_without_a_value_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        run("operator", "--build-arg", "TORCH_INDEX")
    assert "NAME=VALUE" in capsys.readouterr().err


def test_both_variants_of_the_engine_have_tags_of_their_own():
    tags = {image.reference("r", "1.0.0") for image in IMAGES.values()}
    assert tags == {"r/inflight-operator:1.0.0", "r/inflight-engine:1.0.0", "r/inflight-engine:1.0.0-cpu"}
