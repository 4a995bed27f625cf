"""The folder of models that engines share: bounded, least recently used first, never what somebody holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.models.remote import cache as caches
from inflight_engine.models.remote.cache import CacheError, ModelCache


def entries_in(cache):
    folder = cache.folder / "inflight-models"
    return {path.name for path in folder.iterdir() if not path.name.startswith(".lock")}


@settings(max_examples=60)
@given(steps=st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=25), size=st.integers(1, 15))
def test_the_bound_holds_and_the_least_recently_used_go_first(tmp_path_factory, steps, size):
    cache = ModelCache(tmp_path_factory.mktemp("cache"), size)
    sizes = {name: at + 1 for at, name in enumerate("abcdef")}
    held, used = {}, []  # least recently used first
    for name, give_back in steps:
        if give_back:
            held.pop(name, None)
            continue
        removable = [each for each in used if each not in held]
        expected = list(used)
        while name not in used and sum(map(sizes.get, expected)) + sizes[name] > size and removable:
            expected.remove(removable.pop(0))
        if name in used or sum(map(sizes.get, expected)) + sizes[name] <= size:
            held[name] = cache.hold(name, sizes[name])
            if name not in used:
                (held[name].path / "data").write_bytes(bytes(sizes[name]))
            used = [each for each in expected if each != name] + [name]
        else:
            with pytest.raises(CacheError, match="has no room for"):
                cache.hold(name, sizes[name])
        assert entries_in(cache) == set(used), "and nothing was removed in vain"
        assert all((entry.path / "data").is_file() for entry in held.values())


def test_what_a_killed_process_left_is_removed_and_what_is_not_ours_stays(tmp_path):
    cache = ModelCache(tmp_path, 10)
    (tmp_path / "theirs").mkdir()
    ours = tmp_path / "inflight-models"
    (ours / "made").mkdir(parents=True)
    (ours / ".removed-half").mkdir()
    (ours / ".removed-half/data").write_bytes(b"12345")
    cache.hold("new", 10)
    assert entries_in(cache) == {"new"}
    assert (tmp_path / "theirs").is_dir()


def test_an_entry_is_given_back_with_its_object(tmp_path):
    cache = ModelCache(tmp_path, 10)
    entry = cache.hold("one", 10)
    with pytest.raises(CacheError):
        cache.hold("two", 10)
    del entry
    cache.hold("two", 10)
    assert entries_in(cache) == {"two"}


def test_a_lock_that_is_not_given_up_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "_LOCK_SECONDS", 0.01)
    cache = ModelCache(tmp_path, 10)
    cache.hold("one", 10)
    with cache._locked(), pytest.raises(CacheError, match="is locked by another process"):
        cache.hold("one", 10)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"the model cache .*/file cannot be used: Not a directory"):
        ModelCache(tmp_path / "file", 10).hold("one", 10)


def test_links_are_refused(tmp_path):
    cache = ModelCache(tmp_path, 10)
    entry = cache.hold("one", 10)
    (entry.path / "data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        entry.open("data")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("stale", [False, True])
def test_an_entry_that_is_a_link_is_replaced_and_nothing_behind_it_is_touched(tmp_path, stale):
    cache, theirs, ours = ModelCache(tmp_path, 10), tmp_path / "theirs", tmp_path / "inflight-models"
    theirs.mkdir()
    ours.mkdir()
    (theirs / "use").write_text("10")
    (ours / "one").symlink_to(theirs)
    (ours / "two").write_text("a file")
    if stale:
        (ours / ".removed-one").symlink_to(theirs)
        (ours / ".removed-two").write_text("a file")
    entry = cache.hold("one", 10)
    assert not entry.path.is_symlink()
    assert entries_in(cache) == {"one"}
    assert [path.name for path in theirs.iterdir()] == ["use"]


def test_a_folder_of_entries_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "theirs/kept").mkdir(parents=True)
    (tmp_path / "inflight-models").symlink_to(tmp_path / "theirs")
    with pytest.raises(CacheError, match="cannot be used: inflight-models is a link"):
        ModelCache(tmp_path, 10).hold("one", 10)
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["kept"]


def test_an_entry_is_found_where_it_is_and_kept(tmp_path):
    cache = ModelCache(tmp_path, 10)
    assert cache.find("one") is None
    assert cache.hold("one", 10).path == tmp_path / "inflight-models/one"
    found = cache.find("one")
    with pytest.raises(CacheError, match="has no room"):
        cache.hold("two", 10)
    assert found.path == tmp_path / "inflight-models/one"
