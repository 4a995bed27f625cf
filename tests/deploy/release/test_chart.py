"""The packaged chart names the images of its release, and what a user sets still wins."""

import json

import pytest
import yaml

from deploy import manifest
from deploy.release import chart
from deploy.release.__main__ import is_local, main, parser, version_of
from deploy.release.images import IMAGES
from inflight_base.manifest import Manifest
from tools.localcluster import ClusterError
from tools.testbed.helm import CHART, rendered

OPERATOR, ENGINE = (f"sha256:{digit * 64}" for digit in "ab")
PINNED = {
    "inflight-operator": f"registry.example:5000/team/inflight-operator:0.2.0@{OPERATOR}",
    "inflight-engine": f"registry.example:5000/team/inflight-engine:0.2.0@{ENGINE}",
}
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return chart.package(PINNED, "0.2.0-rc.1", tmp_path_factory.mktemp("release"))


def images(*flags, chart):
    """The image of each container, and the images that the operator is told."""
    texts = [json.dumps(one) for one in rendered("--set", "gateway.enabled=true", *flags, chart=chart)]
    assert texts
    objects: list[Manifest] = [json.loads(text) for text in texts]
    pods = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    containers = [container for pod in pods for container in pod["containers"]]
    told = [flag for one in containers for flag in one.get("args", []) if "-image=" in flag]
    return {one["image"] for one in containers} | {flag.partition("=")[2] for flag in told}


def test_only_the_repositories_and_tags_of_our_images_differ_from_the_repositorys_values():
    text = (CHART / "values.yaml").read_text()
    for name, pinned in PINNED.items():
        text = chart.stamped(text, name, pinned)
    expected = yaml.safe_load((CHART / "values.yaml").read_text())
    expected["image"] |= {"repository": "registry.example:5000/team/inflight-operator", "tag": f"0.2.0@{OPERATOR}"}
    engine = {"repository": "registry.example:5000/team/inflight-engine", "tag": f"0.2.0@{ENGINE}"}
    expected["engine"]["image"] |= engine
    assert yaml.safe_load(text) == expected
    assert len(text.splitlines()) == len((CHART / "values.yaml").read_text().splitlines())


def test_an_image_that_the_values_do_not_have_is_refused():
    with pytest.raises(ClusterError, match="0 images inflight-other"):
        chart.stamped((CHART / "values.yaml").read_text(), "inflight-other", PINNED["inflight-engine"])


def test_all_pods_run_the_images_of_the_release_by_digest_and_others_images_as_they_were(archive):
    found = images(chart=archive)
    assert set(PINNED.values()) <= found
    assert {one for one in found if "inflight-" in one} == set(PINNED.values())


def test_a_tag_a_digest_and_a_mirror_of_the_user_win(archive):
    other = f"sha256:{'c' * 64}"
    found = images(
        "--set", f"engine.image.tag=0.2.0-cpu,image.repository=mirror.example/op,image.digest={other}", chart=archive
    )
    ours = {one for one in found if "inflight-" in one or "/op" in one}
    assert ours == {"registry.example:5000/team/inflight-engine:0.2.0-cpu", f"mirror.example/op@{other}"}
    assert f"mirror.example/op:0.2.0@{OPERATOR}" in images("--set", "image.repository=mirror.example/op", chart=archive)


def test_the_archive_has_the_version_of_the_tag(archive):
    assert archive.name == "inflight-0.2.0-rc.1.tgz"
    (operator,) = [one for one in rendered(chart=archive) if one["kind"] == "Deployment"]
    assert operator["metadata"]["labels"]["app.kubernetes.io/version"] == "0.2.0-rc.1"
    assert [path for path in archive.parent.iterdir() if path.is_dir()] == []


def test_the_plain_manifests_have_the_namespace_first_and_what_the_chart_renders(archive, tmp_path):
    plain, with_gateway = chart.write_manifests(archive, tmp_path)
    first, *rest = yaml.safe_load_all(plain.read_text())
    assert (first["kind"], first["metadata"]["name"]) == ("Namespace", "inflight-system")
    assert [one["kind"] for one in rest] == [one["kind"] for one in rendered("--no-hooks", chart=archive)]
    assert PINNED["inflight-engine"] in plain.read_text()
    more = len(rendered("--no-hooks", *manifest.WITH_GATEWAY, chart=archive)) + 1
    assert len(list(yaml.safe_load_all(with_gateway.read_text()))) == more
    for path in (plain, with_gateway):
        assert "helm" not in path.read_text().partition("apiVersion")[2].lower()


@pytest.mark.parametrize("tag", [f"v{VERSION}", f"v{VERSION}-rc.1", f"v{VERSION}-beta"])
def test_a_tag_gives_the_version(tag):
    assert version_of(tag) == tag[1:]


@pytest.mark.parametrize("tag", [VERSION, f"v{VERSION}.1", f"v{VERSION}-", f"v{VERSION}-rc..1", f"v{VERSION} ", "main"])
def test_a_tag_of_another_version_is_refused(tag, capsys):
    assert main(["publish", "--registry", "registry.example", "--tag", tag]) == 1
    assert f"the tag {tag} is not v{VERSION}" in capsys.readouterr().err


def test_only_a_registry_on_this_machine_is_spoken_to_without_tls():
    assert is_local("localhost:5000/team")
    assert is_local("127.0.0.1:5000")
    assert not is_local("localhost.example:5000")


def test_the_chart_names_an_image_of_the_operator_and_one_of_the_engine():
    named = [image.name for image in IMAGES.values() if not image.suffix]
    assert sorted(named) == sorted(PINNED)
    assert IMAGES["engine-cpu"].reference("r/t", "1.2.3", "arm64") == "r/t/inflight-engine:1.2.3-cpu-arm64"
    assert parser().parse_args(["image", "engine-cpu", "--registry", "r", "--tag", "v1"]).sbom
