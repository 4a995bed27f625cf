"""Every reason that a decision can give has a sentence, and a sentence needs nothing but the reason."""

import ast
from pathlib import Path
from typing import get_args

import pytest

from inflight_operator import decide, reconcile
from inflight_operator.decide.decision import Reason
from inflight_operator.decide.status.sentences import _SENTENCES, sentence
from inflight_operator.observe.prefetch_view import Obstacle

FOLDERS = [Path(package.__file__).parent for package in (decide, reconcile)]


def codes():
    """First arguments of all calls of `Reason` in the source, where they are literals."""
    for folder in FOLDERS:
        for file in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Reason":
                    yield from (one.value for one in node.args[:1] if isinstance(one, ast.Constant))


def test_every_code_in_the_source_has_a_sentence_and_no_sentence_is_left_over():
    computed = {"BelowMinReplicas", "AboveMaxReplicas", "ScaleUpWindow", "ScaleDownWindow"} | {
        "LatelyNeeded",
        "SeasonNeeded",
    }
    obstacles = {f"Prefetch{obstacle}" for obstacle in get_args(Obstacle) if obstacle}
    assert set(codes()) | computed | obstacles == set(_SENTENCES)


def test_what_held_a_decision_back_follows_it():
    held = Reason("ScaleDownWindow", {"seconds": 80})
    text = sentence(Reason("NoRequestsWait", {"target": 4}, held=held))
    assert text == "no request waits, 4 per replica is the target; held by the scale-down window for 80 s more"


def test_a_reason_without_its_numbers_is_an_error_and_no_half_sentence():
    with pytest.raises(KeyError):
        sentence(Reason("WaitingRequests", {"waiting": 3}))
