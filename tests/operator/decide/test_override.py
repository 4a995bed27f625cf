"""Limits set by hand: in force until their end, then the limits before them return, whatever happens in between."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inflight_operator.decide.override import Override, decide_override
from inflight_settings.limits import Limits
from tests.operator.decide.words import change_said

NOW = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
CAPACITY = Limits(256, 8192)
TUNED = Limits(84, 224)


def asked(seqs=None, tokens=None, seconds=600.0):
    return Override(seqs, tokens, until=NOW + timedelta(seconds=seconds))


def test_a_limit_that_is_not_set_keeps_the_value_from_before():
    decision = decide_override(asked(seqs=8), NOW, TUNED, None, CAPACITY)
    assert (decision.limits, decision.before) == (Limits(8, 224), TUNED)
    assert [change_said(one) for one in decision.changes] == [
        "max_num_seqs 84 -> 8: set by hand in spec.tuning.override until 2026-11-20T10:10:00Z"
    ]


def test_an_edited_override_counts_from_the_limits_before_the_first_one():
    decision = decide_override(asked(tokens=4096), NOW, Limits(8, 224), TUNED, CAPACITY)
    assert (decision.limits, decision.before) == (Limits(84, 4096), TUNED)


def test_no_limit_exceeds_the_capacity():
    assert decide_override(asked(999, 99_999), NOW, TUNED, None, CAPACITY).limits == CAPACITY
    assert decide_override(None, NOW, Limits(8, 8), TUNED, Limits(50, 100)).limits == Limits(50, 100)


def test_at_its_end_to_the_second_the_limits_before_return_and_the_reason_says_so():
    override = asked(8, 64, seconds=0)
    decision = decide_override(override, NOW, Limits(8, 64), TUNED, CAPACITY)
    assert (decision.limits, decision.before) == (TUNED, None)
    assert change_said(decision.changes[0]) == (
        "max_num_seqs 8 -> 84: the override ended at 2026-11-20T10:00:00Z: the limits before it return"
    )
    removed = decide_override(None, NOW, Limits(8, 64), TUNED, CAPACITY)
    assert change_said(removed.changes[1]) == (
        "max_num_batched_tokens 64 -> 224: the override was removed: the limits before it return"
    )


def test_an_override_that_ended_before_it_was_seen_changes_nothing():
    decision = decide_override(asked(8, seconds=-1), NOW, TUNED, None, CAPACITY)
    assert (decision.limits, decision.before, decision.changes) == (TUNED, None, ())


def test_an_end_outside_all_calendars_of_utc_is_shown_as_it_is():
    ends = (datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=12))), "9999-12-31T23:00:00Z")
    began = (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12))), "0001-01-01T00:00:00Z")
    assert Override(8, None, until=ends[0]).end == ends[1]
    assert Override(8, None, until=began[0]).end.endswith(began[1].lstrip("0"))


def test_the_end_is_shown_in_utc():
    zone = timezone(timedelta(hours=2))
    assert Override(8, None, until=datetime(2026, 11, 20, 12, 30, tzinfo=zone)).end == "2026-11-20T10:30:00Z"


class AnyOverrides(RuleBasedStateMachine):
    """Overrides that begin, change, end and are removed, while tuning moves the limits whenever it may."""

    def __init__(self):
        super().__init__()
        self.now, self.asked = NOW, None
        self.limits, self.before = TUNED, None
        self.tuned = TUNED

    def decide(self):
        decision = decide_override(self.asked, self.now, self.limits, self.before, CAPACITY)
        changed = self.limits
        for one in decision.changes:
            assert changed.get(one.knob) == one.frm != one.to
            changed = changed.with_(one.knob, one.to)
        assert changed == decision.limits
        self.limits, self.before = decision.limits, decision.before

    @rule(
        seqs=st.none() | st.integers(1, 400),
        tokens=st.none() | st.integers(1, 10_000),
        seconds=st.integers(-30, 120),
    )
    def edit(self, seqs, tokens, seconds):
        self.asked = Override(seqs, tokens, until=self.now + timedelta(seconds=seconds))
        self.decide()

    @rule()
    def remove(self):
        self.asked = None
        self.decide()

    @rule(seconds=st.integers(0, 60))
    def passes(self, seconds):
        self.now += timedelta(seconds=seconds)
        self.decide()

    @precondition(lambda self: self.before is None)
    @rule(seqs=st.integers(1, 256), tokens=st.integers(1, 8192))
    def tune(self, seqs, tokens):
        self.tuned = self.limits = Limits(seqs, tokens)

    @invariant()
    def holds(self):
        held = self.asked is not None and self.now < self.asked.until
        assert (self.before is not None) == held
        assert self.limits == self.limits.at_most(CAPACITY)
        assert self.before in (None, self.tuned)
        assert self.limits == (self.asked.over(self.tuned).at_most(CAPACITY) if held else self.tuned)
        again = decide_override(self.asked, self.now, self.limits, self.before, CAPACITY)
        assert (again.limits, again.before, again.changes) == (self.limits, self.before, ())


TestAnyOverrides = AnyOverrides.TestCase
TestAnyOverrides.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
