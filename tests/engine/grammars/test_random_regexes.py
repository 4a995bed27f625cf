"""Whatever regular expression a request has, it is refused, or followed without a long run, in bounded time."""

import json
import select
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inflight_engine.formats.forced_runs import MAX_FORCED

NO_END = 60
"""Seconds after which an expression counts as one without an end."""

MOST = 4096
ATOMS = (
    r"a b é 😀 . \d \w \s \S \pL [a-c] [^a] [^\x00-\x7f] [[:alpha:]&&[^x]] (?:) (?i:ab) (?s:.) \x{10FFFF} ^ (?=a) (["
)
COUNTS = "* + ? *? {2} {0,3} {3,} {50} {9,99} {1000} {0,1000} {0,100000} {999999999}".split()
EXPRESSIONS = st.recursive(
    st.sampled_from(ATOMS.split()),
    lambda inner: st.one_of(
        st.builds(lambda part, count: f"(?:{part}){count}", inner, st.sampled_from([*COUNTS, "{ 50 }", "{ 1000 }"])),
        st.lists(inner, min_size=1, max_size=6).map("".join),
        st.lists(inner, min_size=1, max_size=6).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.builds(lambda part, times: part * min(times, MOST // len(part) or 1), inner, st.integers(1, 400)),
    ),
    max_leaves=12,
).filter(lambda expression: len(expression) <= MOST)


class Follower:
    """The process that follows expressions, anew where one ended it."""

    def __init__(self):
        self.process = None

    def ask(self, expression):
        """Return why it was refused, or the length of the longest run; None: it ended the process, or had no end."""
        if self.process is None:
            command = [sys.executable, "-m", "tests.engine.grammars.follow_regexes"]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process.stdin.write(json.dumps(expression).encode() + b"\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], NO_END)
        answer = self.process.stdout.readline() if ready else b""
        if not answer:
            self.end()
        return json.loads(answer or "null")

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="module")
def follower():
    each = Follower()
    yield each
    each.end()


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS)
@example("a(?:b{1000}){100}")
@example("a(?:b{ 1000 }){ 100 }")
@example("(?:(?:a|b){0,1000}){0,1000}c")
def test_a_random_expression_is_refused_or_followed(follower, expression):
    answer = follower.ask(expression)
    assert isinstance(answer, str) or answer <= MAX_FORCED
