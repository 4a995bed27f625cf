"""The CRD of InferencePools is that of a pinned module, downloaded once. A script stands in for Go here."""

from pathlib import Path

import pytest

from tools.localcluster.errors import ClusterError
from tools.localcluster.layout import REPOSITORY, Layout
from tools.localcluster.programs import gotoolchain, inference_pools

DOWNLOADS = """#!/bin/sh
[ "$1 $2" = "mod download" ] && grep -q "$3 {version}" go.mod || exit 2
echo "$GOMODCACHE" >> "{calls}"
folder="$GOMODCACHE/$3@{version}/config/crd/bases"
mkdir -p "$folder" && echo definition > "$folder/inference.networking.k8s.io_inferencepools.yaml"
"""
FAILS = """#!/bin/sh
echo "verifying $3: checksum mismatch" >&2
exit 1
"""


@pytest.fixture
def ensure(tmp_path, monkeypatch):
    """Gets the definition with this script as Go."""

    def ensure(script):
        go = tmp_path / "go"
        go.write_text(script.format(version=inference_pools.version(), calls=tmp_path / "calls"))
        go.chmod(0o755)
        monkeypatch.setattr(gotoolchain, "find_go", lambda layout, progress: go)
        return inference_pools.ensure(Layout(tmp_path / "cache"), lambda line: None)

    return ensure


def test_the_definition_is_downloaded_once_and_nothing_else_of_the_module_stays(ensure, tmp_path):
    assert ensure(DOWNLOADS).read_text() == "definition\n"
    assert ensure(FAILS).read_text() == "definition\n"
    (modules,) = (tmp_path / "calls").read_text().splitlines()
    assert not Path(modules).exists()


def test_a_download_that_fails_says_what_go_said(ensure):
    with pytest.raises(ClusterError, match="checksum mismatch"):
        ensure(FAILS)


def test_the_version_is_pinned_by_its_sum_and_named_in_the_guide():
    pinned = f"{inference_pools.MODULE} {inference_pools.version()}"
    lines = (inference_pools.FOLDER / "go.sum").read_text().splitlines()
    assert [line.rpartition(" ")[0] for line in lines] == [pinned, f"{pinned}/go.mod"]
    assert inference_pools.version() in (REPOSITORY / "docs" / "guides" / "gateway.md").read_text()
