"""Image archives, the base image's settings, and what is said about builds."""

from __future__ import annotations

import hashlib
import json
import tarfile

import pytest

from tools.localcluster.errors import ClusterError
from tools.localcluster.images import base_image, dockerfiles, image_store, oci_archive
from tools.localcluster.images.dockerfiles import StepReader
from tools.localcluster.images.oci_archive import ImageConfig


def test_an_archive_is_an_image_layout_whose_digests_hold(tmp_path):
    layer = tmp_path / "layer.tar"
    oci_archive.layer_of_files(layer, {"/bin/x": (b"program", 0o755), "/etc/y": (b"text", 0o644)})
    oci_archive.write(tmp_path / "image.tar", "localhost/x:1", [layer], ImageConfig(entrypoint=("/bin/x",), user="5"))
    with tarfile.open(tmp_path / "image.tar") as tar:
        content = {entry.name: tar.extractfile(entry).read() for entry in tar}
    for name, blob in content.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}"
    described = json.loads(content["index.json"])["manifests"][0]
    assert described["annotations"]["io.containerd.image.name"] == "localhost/x:1"

    def blob(descriptor):
        found = content["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
        assert len(found) == descriptor["size"]
        return found

    manifest = json.loads(blob(described))
    config = json.loads(blob(manifest["config"]))
    assert config["config"] == {"Entrypoint": ["/bin/x"], "User": "5"}
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    assert blob(manifest["layers"][0]) == layer.read_bytes()


def test_the_same_files_give_the_same_layer(tmp_path):
    files = {"/b": (b"2", 0o644), "/a": (b"1", 0o755)}
    oci_archive.layer_of_files(tmp_path / "1.tar", files)
    oci_archive.layer_of_files(tmp_path / "2.tar", dict(reversed(files.items())))
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_pip_settings_from_the_environment_win_over_files():
    listing = (
        ":env:.index-url='https://env.example/simple'\n"
        "global.index-url='https://file.example/simple'\n"
        "global.timeout='60'\n"
        "freeze.all='yes'\n"
        "not a setting\n"
    )
    settings = base_image.parse_pip_settings(listing)
    assert settings == {"index-url": "https://env.example/simple", "timeout": "60"}


def test_the_images_pip_settings_name_no_folder_of_this_machine():
    text = base_image.pip_configuration(
        {"index-url": "https://i.example", "find-links": "/opt/wheels https://w.example", "cert": "/etc/mine.pem"}
    )
    assert text == "[global]\nindex-url = https://i.example\nfind-links = https://w.example\n"
    assert base_image.pip_configuration({}) == "[global]\n"


@pytest.mark.parametrize(
    ("pip", "environment", "expected"),
    [
        ({}, {}, ""),
        ({"index-url": "https://p"}, {}, '[[index]]\nurl = "https://p"\ndefault = true\n'),
        (
            {"index-url": "https://p"},
            {"UV_DEFAULT_INDEX": "https://u"},
            '[[index]]\nurl = "https://u"\ndefault = true\n',
        ),
        ({"extra-index-url": "https://e"}, {}, '[[index]]\nurl = "https://e"\n'),
    ],
)
def test_uv_gets_its_own_index_or_else_pips(pip, environment, expected):
    assert base_image.uv_configuration(pip, environment) == expected


def test_the_bundle_that_the_environment_names_comes_first(tmp_path):
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(b"mine")
    assert base_image.authorities({"SSL_CERT_FILE": str(tmp_path / "missing"), "PIP_CERT": str(bundle)}) == b"mine"


def test_an_unknown_image_is_refused_with_the_names_that_exist():
    with pytest.raises(ClusterError, match="engine, operator, envoy"):
        dockerfiles.named("gateway")


def test_too_little_disk_is_said_before_a_build():
    image = dockerfiles.named("engine")
    dockerfiles.require_disk(image, image.disk_gb * 10**9)
    with pytest.raises(ClusterError, match="INFLIGHT_CACHE"):
        dockerfiles.require_disk(image, image.disk_gb * 10**9 - 1)


def test_only_proxy_settings_that_are_set_reach_a_build():
    environment = {"HTTPS_PROXY": "http://p:1", "no_proxy": "", "SECRET": "x"}
    assert dockerfiles.proxy_arguments(environment) == {"HTTPS_PROXY": "http://p:1"}


def test_build_output_tells_the_step_the_cached_ones_and_the_last_words():
    reader = StepReader()
    for line in (
        "#1 [internal] load",
        "#5 [stage-3 2/5] RUN x",
        "#5 CACHED",
        "",
        "#6 [stage-3 3/5] RUN y",
        "#6 1.2 boom",
    ):
        reader.read(line + "\n")
    assert reader.text() == "[stage-3 3/5] RUN y: boom"
    assert reader.cached == 1
    assert reader.said[-1] == "boom"
    for number in range(100):
        reader.read(f"#6 {number}.5 line {number}")
    assert reader.said[-1] == "line 99"
    assert len(reader.said) < 20


def test_the_size_of_an_image_is_read_from_the_table():
    table = (
        "REF TYPE DIGEST SIZE PLATFORMS LABELS\n"
        "localhost/a:1 application/vnd.oci.image.manifest.v1+json sha256:aa 3.5 GiB linux/amd64 io.x=1\n"
    )
    assert image_store.parse_image_size(table, "localhost/a:1") == int(3.5 * 2**30)
    with pytest.raises(ClusterError, match="build it first"):
        image_store.parse_image_size(table, "localhost/b:1")


def test_an_image_without_a_name_was_replaced():
    listing = (
        "REF TYPE DIGEST SIZE PLATFORMS LABELS\n"
        "localhost/a:1 application/vnd.oci.image.manifest.v1+json sha256:m1 3.5 GiB linux/amd64 -\n"
        "sha256:c0 application/vnd.oci.image.manifest.v1+json sha256:m0 3.5 GiB linux/amd64 -\n"
        "sha256:c1 application/vnd.oci.image.manifest.v1+json sha256:m1 3.5 GiB linux/amd64 -\n"
    )
    assert image_store.replaced_images(listing) == {"sha256:c0"}
