"""The picks log: newest first, bounded, one entry for each request."""

from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.state.picks import MAX_ATTEMPTS, PicksLog
from inflight_gateway.types import Endpoint, Finished, Pick, RequestView

CHAT, CODE = ServiceKey("team", "chat"), ServiceKey("team", "code")
PICK = Pick((Endpoint("10.0.0.1:8000", "chat-0"),), "only")


def view(request_id, service=CHAT, attempt=1):
    return RequestView(request_id, service, 0.0, attempt=attempt, external_id=request_id)


def ids(log, count=100, service=CHAT):
    return [pick["request_id"] for pick in log.last(service, count)]


def test_the_newest_come_first_and_the_oldest_go():
    log = PicksLog(per_service=3)
    for number in range(5):
        log.picked(view(f"r-{number}"), PICK, 0.0, 0.0)
    assert ids(log) == ["r-4", "r-3", "r-2"]
    assert ids(log, 1) == ["r-4"]
    assert ids(log, service=CODE) == []


def test_attempts_and_the_end_of_a_request_are_in_its_one_entry():
    log = PicksLog()
    log.picked(view("r"), PICK, 0.5, 10.0)
    log.picked(view("r", attempt=2), PICK, 0.0, 11.0)
    log.finished(Finished("r", CHAT, 200, True, ttft_s=0.3, endpoints=("a", "b"), continuations=1))
    log.finished(Finished("unknown", CHAT, 200, True))
    [entry] = log.last(CHAT, 10)
    assert [(one["attempt"], one["held_s"]) for one in entry["attempts"]] == [(1, 0.5), (2, 0.0)]
    assert (entry["at"], entry["finished"]["status"], entry["finished"]["continuations"]) == (10.0, 200, 1)


def test_attempts_are_bounded():
    log = PicksLog()
    for attempt in range(50):
        log.picked(view("r", attempt=attempt + 1), PICK, 0.0, 0.0)
    assert len(log.last(CHAT, 1)[0]["attempts"]) == MAX_ATTEMPTS


STEP = st.tuples(st.sampled_from(["picked", "finished", "forget"]), st.sampled_from([CHAT, CODE]), st.integers(0, 9))


@given(st.lists(STEP))
def test_nothing_is_kept_beyond_the_rings(steps):
    log = PicksLog(per_service=3)
    for kind, service, number in steps:
        if kind == "picked":
            log.picked(view(str(number), service), PICK, 0.0, 0.0)
        elif kind == "finished":
            log.finished(Finished(str(number), service, 200, False))
        else:
            log.forget(service)
        kept = {(key, record.request_id) for key, ring in log._services.items() for record in ring}
        assert set(log._by_id) == kept
        assert all(len(ring) <= 3 for ring in log._services.values())
