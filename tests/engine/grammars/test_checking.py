"""The process that validates grammars is started anew, and what ended it costs no other grammar."""

import asyncio
import os
import signal

import pytest

from inflight_engine.grammars import sources
from inflight_engine.grammars.checking import Checker
from inflight_engine.grammars.compiled import GrammarError

GRAMMAR = sources.of_regex("f", "[ab]+")


def check(checker, source=GRAMMAR):
    return asyncio.run(checker.check(source))


def test_a_process_that_ended_between_two_grammars_costs_none_of_them():
    checker = Checker()
    assert check(checker) == GRAMMAR.text
    process = checker._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert check(checker) == GRAMMAR.text


def test_an_answer_that_is_cut_off_is_none_and_the_next_grammar_gets_its_own(monkeypatch):
    checker = Checker()
    check(checker)
    process = checker._process
    whole = process.stdout.readline
    monkeypatch.setattr(
        process, "stdout", type("Cut", (), {"readline": lambda self: whole()[:9], "close": lambda self: None})()
    )
    monkeypatch.setattr(process, "communicate", process.wait)
    with pytest.raises(GrammarError, match="too much time or memory"):
        check(checker)
    assert check(checker) == GRAMMAR.text
