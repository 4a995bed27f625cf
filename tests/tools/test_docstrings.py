"""Docstrings say their subject; the check finds those that do not."""

from __future__ import annotations

import pytest

from tools import docstrings

SOURCE = '''"""Of a module."""

LEAST_TOKENS = 16
"""Of a piece."""


class Pool:
    """Blocks."""

    def __init__(self) -> None:
        self.size = 8
        """As configured,
        in blocks."""

    def free(self) -> int:
        r"""
        Those that nothing uses.
        """

    async def full(self) -> bool:
        """Whether none is free."""
        return "What is returned is no docstring."


def clone() -> None:
    """One-way."""
'''


def test_docstrings_of_modules_classes_functions_constants_and_attributes_are_checked():
    assert sorted(docstrings.find(SOURCE)) == [
        (1, "Of a module."),
        (4, "Of a piece."),
        (12, "As configured,"),
        (16, "Those that nothing uses."),
        (21, "Whether none is free."),
    ]


@pytest.mark.parametrize("word", ["Of", "As", "Those", "What", "Whether", "One"])
def test_each_word_is_found(word):
    assert list(docstrings.find(f'"""{word} it is."""')) == [(1, f"{word} it is.")]
    assert list(docstrings.find(f'"""{word}ness."""')) == []


def test_a_package_has_no_more_of_them_than_its_baseline(monkeypatch, tmp_path, capsys):
    (tmp_path / "tools" / "bench" / "gpu").mkdir(parents=True)
    path = tmp_path / "tools" / "bench" / "gpu" / "idle.py"
    path.write_text('"""Of a module."""\n\nREPEATS = 3\n"""What it says."""\n')
    monkeypatch.setattr(docstrings, "ROOT", tmp_path)
    monkeypatch.setattr(docstrings, "files", lambda: [path])
    monkeypatch.setattr(docstrings, "BASELINE", {"tools/bench": 2})
    assert docstrings.main() == 0
    monkeypatch.setattr(docstrings, "BASELINE", {"tools/bench": 1})
    assert docstrings.main() == 1
    printed = capsys.readouterr().out
    assert "tools/bench/gpu/idle.py:1: Of a module." in printed
    assert "tools/bench/gpu/idle.py:4: What it says." in printed
    assert "error: tools/bench: 2 docstrings begin with" in printed


def test_the_repository_has_no_more_of_them_than_its_baseline():
    assert docstrings.main() == 0
