"""Files that a build needs stay while anything builds, and are deleted when all is built."""

from __future__ import annotations

import sys

import pytest

from tools.localcluster import locking
from tools.localcluster.layout import Layout
from tools.localcluster.programs import gobuild, gotoolchain
from tools.localcluster.programs.goparts import NODE_PARTS


@pytest.fixture
def built(tmp_path):
    """A cache folder with every part of the node built, and Go's caches still there."""
    layout = Layout(tmp_path)
    for part in NODE_PARTS:
        gobuild.folder_of(part, layout).mkdir(parents=True)
    for cache in gotoolchain.caches(layout):
        (cache / "x").mkdir(parents=True)
        (cache / "x" / "file").touch()
        (cache / "x").chmod(0o555)
    return layout


def left(layout):
    return [cache for cache in gotoolchain.caches(layout) if cache.exists()]


def test_the_caches_go_once_all_is_built(built):
    said = []
    gobuild.drop_caches(built, said.append)
    assert left(built) == []
    assert said
    gobuild.drop_caches(built, lambda line: pytest.fail(f"nothing is left to say: {line}"))


def test_the_caches_stay_while_something_is_not_built_yet(built):
    gobuild.folder_of(NODE_PARTS[-1], built).rmdir()
    gobuild.drop_caches(built, print)
    assert len(left(built)) == 2


def test_the_caches_stay_while_something_builds_and_go_after(built):
    with locking.in_use(built.locks / "go-caches"), locking.in_use(built.locks / "go-caches"):
        gobuild.drop_caches(built, print)
    assert len(left(built)) == 2
    gobuild.drop_caches(built, print)
    assert left(built) == []


def test_a_deletion_that_was_cut_leaves_no_half_cache_and_is_finished_later(built, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(gobuild, "remove_tree", lambda folder: folder.exists() and sys.exit("killed"))
        with pytest.raises(SystemExit):
            gobuild.drop_caches(built, print)
    assert len(left(built)) == 1
    gobuild.drop_caches(built, print)
    assert list(built.go.iterdir()) == []
