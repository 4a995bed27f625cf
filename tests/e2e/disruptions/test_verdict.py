"""Lost requests that a kill excuses, and others that none does."""

import json
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from e2e.disruptions import table
from e2e.disruptions.load import Traffic
from e2e.disruptions.verdict import ERROR_SECONDS, Blow, Outcome, judge
from inflight_kubectl.load.client import CONNECT_SECONDS
from tools.load.driver import Loss
from tools.measure.report import write_json

VICTIM, OTHER = "10.0.0.5", "10.0.0.6"
KILL = Blow(at=100.0, pod="chat-a", address=VICTIM, whole=True)
ENGINE_KILL = Blow(at=100.0, pod="chat-a", address=VICTIM, whole=False)


def loss(begun=99.0, ended=101.0, port=7, kind="ReadError"):
    return Loss(kind, begun, ended, port, stream=False)


def judged(*losses, blow=KILL, routed=None):
    pods = {7: VICTIM} if routed is None else routed
    traffic = Traffic(
        10 + len(losses), 10, 0, 1.0, 0.2, losses, {one: pods[one.port] for one in losses if one.port in pods}
    )
    return judge("phase", traffic, 20.0, blow=blow)


def test_a_request_that_cannot_connect_fails_in_the_time_that_a_kill_allows():
    assert CONNECT_SECONDS < ERROR_SECONDS


def test_a_phase_without_a_kill_holds_only_without_a_loss():
    assert judged(blow=None).problems == ()
    assert judged(loss(), blow=None).problems == ("lost: ReadError",)


def test_a_request_on_the_killed_pod_may_fail_with_an_error_in_time():
    outcome = judged(loss(), loss(ended=100.0 + ERROR_SECONDS))
    assert outcome.problems == ()
    assert outcome.excused == 2
    assert outcome.lost == {"ReadError": 2}


def test_a_request_on_another_pod_may_not_fail():
    assert judged(loss(), routed={7: OTHER}).problems
    assert judged(loss(), routed={}).problems


def test_a_request_may_not_fail_late_or_before_the_kill():
    assert "allowed" in judged(loss(ended=100.1 + ERROR_SECONDS)).problems[0]
    assert "before the kill" in judged(loss(begun=98.0, ended=99.9)).problems[0]


def test_where_the_whole_pod_is_dead_requests_are_sent_there_until_the_cluster_has_noticed():
    outcome = judged(loss(begun=100.5), loss(begun=100.5, port=None, kind="ConnectError"))
    assert outcome.problems == ()
    assert outcome.note == "2 of the lost requests were sent after the kill"


def test_where_a_process_of_the_pod_is_left_it_has_to_answer_new_requests():
    assert judged(loss(begun=99.5), blow=ENGINE_KILL).problems == ()
    assert judged(loss(begun=100.5), blow=ENGINE_KILL).problems
    assert judged(loss(begun=100.5, port=None), blow=ENGINE_KILL).problems


def test_a_phase_in_which_nothing_is_answered_or_a_request_has_no_outcome_does_not_hold():
    assert judge("phase", Traffic(0, 0, 0, 0.0, 0.0, (), {}), 20.0).problems
    assert judge("phase", Traffic(5, 4, 0, 0.0, 0.0, (), {}), 20.0).problems == ("1 requests are unaccounted for",)
    assert judge("phase", Traffic(5, 5, 0, 0.0, 0.0, (), {}), 20.0, trouble="the drain evicted no pod").problems


@given(st.lists(st.builds(loss, st.floats(90, 110), st.floats(90, 130), st.sampled_from([None, 7, 8, 9])), max_size=20))
def test_every_loss_is_either_excused_or_a_problem(losses):
    outcome = judged(*losses, routed={7: VICTIM, 8: OTHER})
    assert sum(outcome.lost.values()) == len(losses)
    assert 0 <= outcome.excused <= len(losses)
    assert (outcome.excused == len(losses)) == (outcome.problems == ())


def test_the_table_has_a_row_for_each_phase_and_says_what_broke_the_rule(tmp_path):
    outcomes = [judged(loss(kind="HTTP 500"), blow=None), Outcome("drain", skipped=True, note="it needs a node")]
    shown = table.text(outcomes).splitlines()
    assert shown[0].split()[:4] == ["phase", "sent", "answered", "lost"]
    assert shown[1].split() == ["phase", "11", "10", "1", "0", "0", "0", "1.0", "s", "0.2", "s", "20", "NO"]
    assert shown[2].split()[-1] == "skipped"
    assert "phase: problem: lost: HTTP 500" in shown
    write_json(tmp_path / "outcome.json", [asdict(outcome) for outcome in outcomes])
    assert json.loads((tmp_path / "outcome.json").read_text())[0]["losses"][0]["kind"] == "HTTP 500"
