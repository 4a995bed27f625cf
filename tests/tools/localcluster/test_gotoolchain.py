"""Choice of Go, and the environment in which it builds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.localcluster import commands
from tools.localcluster.layout import Layout
from tools.localcluster.programs import gotoolchain


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go version go1.26 linux/arm64", (1, 26, 0)),
        ("go version devel linux/amd64", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_go_version(output, version):
    assert gotoolchain.parse_version(output) == version


def test_builds_use_the_cache_folder_and_no_other_toolchain():
    environment = gotoolchain.build_environment({"GOFLAGS": "-mod=mod", "HOME": "/h"}, Layout(Path("/c")), 0)
    assert environment["GOCACHE"] == "/c/go/build"
    assert environment["GOMODCACHE"] == "/c/go/mod"
    assert environment["GOTOOLCHAIN"] == "local"
    assert environment["CGO_ENABLED"] == "0"
    assert environment["GOFLAGS"] == ""
    assert environment["HOME"] == "/h"


def test_the_compiler_collects_less_garbage_only_with_memory_to_spare():
    layout = Layout(Path("/c"))
    assert "GOGC" not in gotoolchain.build_environment({}, layout, 4 * 2**30)
    assert "GOGC" in gotoolchain.build_environment({}, layout, 16 * 2**30)


def test_the_last_line_that_says_something_is_shown():
    assert commands.last_line("a\nb\n\n  \n") == "b"
    assert commands.last_line("\n") == "no message"
