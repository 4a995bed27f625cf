import pytest

from inflight_gateway.relay.decide import Failure, History, Tried


def test_endpoints_that_failed_are_avoided_until_no_replica_is_free():
    history = History()
    for endpoint in ("b", "a", "", "b"):
        history.failed(Failure.CUT, endpoint, 1.0, advanced=True)
    assert list(history.avoid) == ["b", "a"]
    history.failed(Failure.BUSY, "", 2.0, advanced=False)
    assert not history.avoid


def test_engines_that_refused_are_avoided_beside_the_one_that_failed():
    history = History()
    history.failed(Failure.CUT, "c", 1.0, advanced=False, refused=["a", "b"])
    assert list(history.avoid) == ["a", "b", "c"]
    history.failed(Failure.UNREACHABLE, "", 1.0, advanced=False, refused=["d"])
    assert list(history.avoid) == ["a", "b", "c", "d"]


def test_a_wait_for_the_first_engine_counts_from_its_begin():
    history = History()
    assert history.failed(Failure.UNREACHABLE, "", 100.0, advanced=False) == Tried(0, waited_s=0.0)
    assert history.failed(Failure.BUSY, "", 103.0, advanced=False) == Tried(0, waited_s=3.0)


def test_busy_replicas_are_no_failure_and_the_wait_counts_from_the_last_one():
    history = History()
    assert history.failed(Failure.SILENT, "a", 10.0, advanced=False) == Tried(1)
    assert history.failed(Failure.BUSY, "", 12.5, advanced=False) == Tried(1, waited_s=2.5)
    assert history.failed(Failure.LATE, "b", 20.0, advanced=False) == Tried(2)


@pytest.mark.parametrize("failure", Failure)
def test_only_a_known_engine_that_was_lost_before_a_token_counts_as_a_death(failure):
    lost = failure in (Failure.CUT, Failure.DIED)
    assert History().failed(failure, "a", 0.0, advanced=False).deaths == lost
    assert History().failed(failure, "a", 0.0, advanced=True).deaths == 0
    assert History().failed(failure, "", 0.0, advanced=False).deaths == 0
