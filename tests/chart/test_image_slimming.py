"""The scripts that make the CPU image small keep what is loaded and drop what is not."""

import ctypes
import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import image_drop_unlinked
import image_strip_elf
from image_strip_elf import PT_LOAD, Segment, plan_cut

SITE_PACKAGES = Path(sysconfig.get_path("purelib"))


def load(offset, filesz, align=0x1000):
    return Segment(PT_LOAD, 4, offset, offset, offset, filesz, filesz, align)


def test_a_symbol_table_at_the_end_is_cut_off():
    cut = plan_cut((load(0, 0x2345),), headers_end=64)
    assert cut.kept == ((0, 0x2345),)
    assert cut.size == 0x2345


def test_a_gap_between_segments_is_closed_by_whole_pages():
    cut = plan_cut((load(0, 0x1100), load(0x9000, 0x500)), headers_end=64)
    assert cut.kept == ((0, 0x1100), (0x8100, 0x9500))
    assert [s.offset for s in cut.segments] == [0, 0x2000]


def test_a_segment_inside_another_moves_with_it():
    inner = Segment(2, 4, 0x9100, 0x9100, 0x9100, 0x80, 0x80, 8)
    cut = plan_cut((load(0, 0x1100), load(0x9000, 0x500), inner), headers_end=64)
    assert cut.segments[2].offset - cut.segments[1].offset == 0x100


@given(st.lists(st.tuples(st.integers(0, 50_000), st.integers(1, 20_000)), min_size=1, max_size=6))
def test_every_mapped_byte_survives_at_an_offset_that_fits_its_address(gaps_and_sizes):
    segments, offset = [], 0
    for gap, size in gaps_and_sizes:
        offset += gap
        segments.append(load(offset, size))
        offset += size
    file = bytes(i * 31 % 251 for i in range(offset))
    cut = plan_cut(tuple(segments), headers_end=64)
    smaller = b"".join(file[start:end] for start, end in cut.kept)
    for before, after in zip(segments, cut.segments, strict=True):
        assert smaller[after.offset : after.end] == file[before.offset : before.end]
        assert after.offset % 0x1000 == before.vaddr % 0x1000
        assert after.vaddr == before.vaddr


@pytest.fixture
def library(tmp_path):
    """A library with symbols and debug information, as wheels carry them."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source = tmp_path / "answer.c"
    # Big enough to be looked at, with a symbol table worth dropping.
    functions = "\n".join(f"static __attribute__((used)) int f{i}(int x) {{ return x + {i}; }}" for i in range(9000))
    source.write_text(f"{functions}\nstatic int state = 40;\nint answer(void) {{ return f2(state); }}\n")
    target = tmp_path / "site" / "libanswer.so"
    target.parent.mkdir()
    subprocess.run([compiler, "-g", "-shared", "-fPIC", "-o", target, source], check=True)
    return target


def test_a_stripped_library_is_smaller_loads_and_works(library):
    before = library.stat().st_size
    saved = image_strip_elf.strip_all(library.parent)
    assert saved > before / 4
    assert library.stat().st_size == before - saved
    assert ctypes.CDLL(str(library)).answer() == 42
    assert image_strip_elf.strip(library) == 0, "a second time there is nothing left to drop"


def test_links_to_a_library_in_a_cache_keep_the_library_whole(library, tmp_path):
    original = tmp_path / "cached.so"
    original.hardlink_to(library)
    size = original.stat().st_size
    assert image_strip_elf.strip(library) > 0
    assert original.stat().st_size == size


def test_nvidia_libraries_and_other_files_are_left_alone(library):
    vendor = library.parent / "nvidia" / "lib" / library.name
    vendor.parent.mkdir(parents=True)
    shutil.move(library, vendor)
    size = vendor.stat().st_size
    text = library.parent / "notes.so.txt"
    text.write_text("x" * 300_000)
    assert image_strip_elf.strip_all(library.parent) == 0
    assert vendor.stat().st_size == size
    assert len(text.read_text()) == 300_000


def test_only_unlinked_files_are_unused(tmp_path):
    keep = [
        "nvidia/cudnn/lib/libcudnn.so.9",
        "nvidia/cudnn/LICENSE.txt",
        "torch/lib/libtorch_cuda.so",
        "torch/lib/libshm.so",
    ]
    drop = [
        "nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9",
        "nvidia/cudnn/include/cudnn.h",
        "nvidia/cu13/lib/libcudart_static.a",
        "torch/lib/libtorch_cuda_linalg.so",
    ]
    for name in keep + drop:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    linked = {(tmp_path / name).resolve() for name in keep if ".so" in name and "libshm" not in name}
    unused = {str(path.relative_to(tmp_path)) for path in image_drop_unlinked.unused_files(tmp_path, linked)}
    assert unused == set(drop)


def test_a_folder_without_torch_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="no torch under"):
        image_drop_unlinked.linked_libraries(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_what_import_torch_maps_counts_as_linked_or_is_dropped_on_purpose():
    linked = image_drop_unlinked.linked_libraries(SITE_PACKAGES)
    assert (SITE_PACKAGES / "torch" / "lib" / "libtorch_cpu.so").resolve() in linked
    unused = set(image_drop_unlinked.unused_files(SITE_PACKAGES, linked))
    assert not linked & {path.resolve() for path in unused}
