"""A release in a real registry: images of two architectures joined and pulled by digest, the chart, its installation.

The images are small ones made here; `make e2e-release` builds and pushes the operator's.
"""

import hashlib
import json
import tarfile

import httpx
import pytest
import yaml

from deploy.release.__main__ import publish
from deploy.release.images import IMAGES, Crane
from tests.chart.conftest import Helm
from tools.localcluster import ClusterError, layout
from tools.localcluster.images import oci_archive
from tools.localcluster.node.plane import apiserver_only
from tools.localcluster.progress import to_stdout
from tools.testbed.registry import local_registry

pytestmark = pytest.mark.contract
MACHINES = ("amd64", "arm64")
VERSIONS = ("0.2.0-rc.1", "0.2.0")


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    with local_registry(tmp_path_factory.mktemp("registry"), to_stdout()) as address:
        yield f"{address}/team"


@pytest.fixture(scope="module")
def crane():
    return Crane(layout.current(), to_stdout())


def push_image(crane, folder, reference, machine):
    """Push an image of one small file, another one for each reference."""
    folder.mkdir(parents=True)
    layer, archive = folder / "layer.tar", folder / "image.tar"
    oci_archive.layer_of_files(layer, {"name": (reference.encode(), 0o644)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oci_archive, "architecture", lambda: machine)
        oci_archive.write(archive, reference, [layer], oci_archive.ImageConfig())
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "layout", filter="data")
    crane.run("push", str(folder / "layout"), reference)


@pytest.fixture(scope="module")
def releases(registry, crane, tmp_path_factory):
    """The references that each version published, and the folder of its files."""
    made = {}
    for version in VERSIONS:
        folder = tmp_path_factory.mktemp("release")
        for image in IMAGES.values():
            for machine in MACHINES:
                reference = image.reference(registry, version, machine)
                push_image(crane, folder / f"{image.name}{image.suffix}-{machine}", reference, machine)
        made[version] = publish(registry, version, MACHINES, list(IMAGES), folder / "out"), folder / "out"
    return made


def test_each_image_is_one_index_of_both_architectures_and_is_pulled_by_its_digest(releases, registry):
    host, _, path = registry.partition("/")
    for published, _ in releases.values():
        for reference in published[:-1]:
            name, _, digest = reference.partition("@")
            repository = name.removeprefix(f"{host}/{path}/").partition(":")[0]
            index = "application/vnd.oci.image.index.v1+json"
            answer = httpx.get(f"http://{host}/v2/{path}/{repository}/manifests/{digest}", headers={"Accept": index})
            assert f"sha256:{hashlib.sha256(answer.content).hexdigest()}" == digest
            assert [one["platform"]["architecture"] for one in answer.json()["manifests"]] == list(MACHINES)


def test_the_content_behind_a_digest_is_what_was_pushed(releases, crane, tmp_path):
    published, _ = releases["0.2.0"]
    crane.run("pull", "--platform", "linux/arm64", published[0], str(tmp_path / "image.tar"))
    with tarfile.open(tmp_path / "image.tar") as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json"))
        with tarfile.open(fileobj=tar.extractfile(manifest["Layers"][0]), mode="r:*") as layer:
            assert layer.extractfile("name").read().decode().endswith("inflight-operator:0.2.0-arm64")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_chart_of_each_version_names_the_digests_of_its_own_images(releases, registry, version, tmp_path):
    published, out = releases[version]
    operator, engine = published[:2]
    helm = Helm(tmp_path)
    source = ("inflight", f"oci://{registry}/inflight", "--plain-http", "--version", version)
    objects = {one["kind"]: one for one in yaml.safe_load_all(helm.ok("template", *source)) if one}
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == operator
    assert f"--engine-image={engine}" in container["args"]
    assert objects["Deployment"]["metadata"]["labels"]["helm.sh/chart"] == f"inflight-{version}"
    helm.ok("pull", *source[1:], "--destination", str(tmp_path))
    archive = f"inflight-{version}.tgz"
    assert (tmp_path / archive).read_bytes() == (out / archive).read_bytes()
    assert operator in (out / "inflight.yaml").read_text()


def test_without_a_version_helm_takes_the_release_and_no_pre_release(releases, registry, tmp_path):
    shown = Helm(tmp_path).ok("show", "chart", f"oci://{registry}/inflight", "--plain-http")
    assert yaml.safe_load(shown)["version"] == "0.2.0"


def test_all_that_is_to_be_signed_is_listed_by_digest(releases, crane):
    for version, (published, out) in releases.items():
        assert (out / "references.txt").read_text().split() == published
        assert len(published) == len(IMAGES) + 1
        for reference in published:
            name, _, digest = reference.partition("@")
            assert version in name
            assert crane.run("digest", name) == digest


def test_an_image_that_was_not_pushed_is_named(registry, tmp_path):
    with pytest.raises(ClusterError, match=r"inflight-operator:0\.2\.0-s390x"):
        publish(registry, "0.2.0", ("s390x",), ["operator"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_helm_install_from_the_registry_is_accepted_by_a_real_api_server(releases, registry, tmp_path):
    with apiserver_only(tmp_path / "apiserver") as kubeconfig:
        helm = Helm(tmp_path, kubeconfig)
        done = helm.ok(
            *("install", "inflight", f"oci://{registry}/inflight", "--plain-http", "--dry-run=server"),
            *("--namespace", "inflight-system", "--create-namespace", "--set", "gateway.enabled=true"),
        )
    assert releases["0.2.0"][0][0] in done
