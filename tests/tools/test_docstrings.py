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


def test_the_check_names_each_place_and_what_to_do(monkeypatch, tmp_path, capsys):
    path = tmp_path / "tools" / "bench" / "idle.py"
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(docstrings, "ROOT", tmp_path)
    monkeypatch.setattr(docstrings, "files", lambda: [path])
    path.write_text('"""A module."""\n')
    assert docstrings.main() == 0
    path.write_text('"""Of a module."""\n\nREPEATS = 3\n"""What it says."""\n')
    assert docstrings.main() == 1
    printed = capsys.readouterr().out
    assert "tools/bench/idle.py:1: Of a module.\n" in printed
    assert "tools/bench/idle.py:4: What it says.\n" in printed
    assert "error: 2 docstrings begin with" in printed
    assert "Begin with the subject" in printed


def test_no_docstring_of_the_repository_begins_without_its_subject():
    assert docstrings.main() == 0
