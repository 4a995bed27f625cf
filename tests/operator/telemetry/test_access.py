"""Who may read the metrics, and what a flood of wrong tokens costs."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from time import sleep
from types import SimpleNamespace

import httpx
import pytest
from kubernetes.aio import client

from inflight_base.kube.errors import KubeApiError
from inflight_operator.telemetry import access as access_module
from inflight_operator.telemetry.access import (
    KEPT,
    KEPT_SECONDS,
    MAX_TOKEN,
    REFUSED_SECONDS,
    Access,
    Verdict,
    review,
    reviewer,
)
from inflight_operator.telemetry.metrics import OperatorMetrics
from inflight_operator.telemetry.web import Heartbeat, WebServer

USER = {"username": "system:serviceaccount:monitoring:prometheus", "uid": "u-1", "groups": ["system:authenticated"]}


HERE = "10.0.0.1"


class Reviews:
    """A stand-in for reviews: the tokens that it knows, and what it was asked."""

    def __init__(self, **known):
        self.known, self.asked, self.error = known, [], None

    def __call__(self, token):
        self.asked.append(token)
        if self.error:
            raise self.error
        return self.known.get(token, Verdict.UNKNOWN)


@pytest.fixture
def reviews():
    return Reviews(prometheus=Verdict.ALLOWED, guest=Verdict.FORBIDDEN)


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def access(reviews, clock):
    return Access(reviews, lambda: clock.now)


@pytest.fixture
def address(access):
    server = WebServer(0, OperatorMetrics().registry, Heartbeat(), access)
    yield f"http://127.0.0.1:{server.port}"
    server.close()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Basic cHJvbWV0aGV1cw==", 401),
        ("Bearer", 401),
        ("Bearer " + "x" * (MAX_TOKEN + 1), 401),
        ("Bearer stranger", 401),
        ("Bearer guest", 403),
        ("bearer prometheus", 200),
    ],
)
def test_only_who_may_get_the_metrics_gets_them(address, header, status):
    headers = {} if header is None else {"Authorization": header}
    answer = httpx.get(f"{address}/metrics", headers=headers)
    assert answer.status_code == status
    assert ("inflight_operator" in answer.text) == (status == 200)
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_probes_need_no_token(address, reviews):
    assert httpx.get(f"{address}/healthz").status_code == 200
    assert reviews.asked == []


def test_a_decision_holds_for_a_while_and_not_longer(access, reviews, clock):
    for token, kept in (("prometheus", KEPT_SECONDS[True]), ("guest", KEPT_SECONDS[False])):
        reviews.asked.clear()
        first = access.verdict(f"Bearer {token}", HERE)
        clock.now += kept - 1
        assert access.verdict(f"Bearer {token}", HERE) is first
        assert len(reviews.asked) == 1
        clock.now += 1
        assert access.verdict(f"Bearer {token}", HERE) is first
        assert len(reviews.asked) == 2


def test_wrong_tokens_do_not_push_out_who_is_let_in_and_are_bounded(access, reviews):
    access.verdict("Bearer prometheus", HERE)
    for number in range(3 * KEPT):
        access.verdict(f"Bearer {number}", HERE)
    reviews.asked.clear()
    assert access.verdict("Bearer prometheus", HERE) is Verdict.ALLOWED
    assert reviews.asked == []
    assert [len(kept) for kept in access._kept.values()] == [1, KEPT]


def test_who_was_let_in_does_not_wait_for_the_reviews_of_strangers(reviews, clock):
    begun, go = Event(), Event()

    def review(token):
        if token == "stranger":
            begun.set()
            go.wait(60)
        return reviews(token)

    access = Access(review, lambda: clock.now)
    assert access.verdict("Bearer prometheus", HERE) is Verdict.ALLOWED
    clock.now += KEPT_SECONDS[True]
    with ThreadPoolExecutor() as threads:
        stranger = threads.submit(access.verdict, "Bearer stranger", "10.0.0.9")
        try:
            assert begun.wait(60)
            assert access.verdict("Bearer prometheus", HERE) is Verdict.ALLOWED
            reviews.known["prometheus"] = Verdict.FORBIDDEN
            clock.now += KEPT_SECONDS[True]
            assert access.verdict("Bearer prometheus", HERE) is Verdict.FORBIDDEN
        finally:
            go.set()
        assert stranger.result() is Verdict.UNKNOWN
    assert access._kept[True] == {}  # it is a stranger now


def test_a_client_whose_token_was_rotated_does_not_wait_for_the_reviews_of_strangers(reviews):
    begun, go = Event(), Event()

    def review(token):
        if token == "stranger":
            begun.set()
            go.wait(60)
        return reviews(token)

    access = Access(review)
    assert access.verdict("Bearer prometheus", HERE) is Verdict.ALLOWED
    reviews.known["rotated"] = Verdict.ALLOWED
    with ThreadPoolExecutor() as threads:
        strangers = [threads.submit(access.verdict, "Bearer stranger", "10.0.0.9")]
        try:
            assert begun.wait(60)
            assert access.verdict("Bearer rotated", HERE) is Verdict.ALLOWED
        finally:
            go.set()
        assert strangers[0].result() is Verdict.UNKNOWN


def test_few_strangers_wait_for_reviews_and_the_others_are_told_at_once(reviews, monkeypatch):
    monkeypatch.setattr(access_module, "WAITING", 2, raising=False)
    begun, go = Event(), Event()

    def review(token):
        begun.set()
        go.wait(60)
        return reviews(token)

    access = Access(review)
    with ThreadPoolExecutor() as threads:
        first = [threads.submit(access.verdict, f"Bearer {number}", "10.0.0.9") for number in range(2)]
        try:
            assert begun.wait(60)
            while access._waiting[False]._value:
                sleep(0.001)
            assert access.verdict("Bearer 2", "10.0.0.9") is Verdict.UNDECIDED
        finally:
            go.set()
        assert [one.result() for one in first] == [Verdict.UNKNOWN] * 2


def test_addresses_of_clients_that_were_let_in_are_bounded(access, reviews, clock):
    for number in range(2 * KEPT):
        clock.now += KEPT_SECONDS[True]
        assert access.verdict("Bearer prometheus", f"10.0.{number}.1") is Verdict.ALLOWED
    assert len(access._addresses) == KEPT


def test_an_account_that_loses_the_right_is_refused_at_the_next_review(access, reviews, clock):
    assert access.verdict("Bearer prometheus", HERE) is Verdict.ALLOWED
    reviews.known["prometheus"] = Verdict.FORBIDDEN
    clock.now += KEPT_SECONDS[True]
    assert access.verdict("Bearer prometheus", HERE) is Verdict.FORBIDDEN


def test_without_an_answer_of_the_api_server_a_client_gets_503_and_is_asked_about_again(access, reviews):
    reviews.error = KubeApiError("POST", 0, "down")
    assert access.verdict("Bearer prometheus", HERE) is Verdict.UNDECIDED
    reviews.error = None
    assert access.verdict("Bearer prometheus", HERE) is Verdict.ALLOWED


@pytest.mark.parametrize("found", ["UNKNOWN", "FORBIDDEN", "UNDECIDED", "ALLOWED"])
def test_a_review_that_lets_nobody_in_takes_a_while_so_that_few_are_made(monkeypatch, found):
    slept = []

    async def decided(api, token):
        if token == "UNDECIDED":
            raise KubeApiError("POST", 500, "no")
        return Verdict[token]

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr("inflight_operator.telemetry.access.review", decided)
    monkeypatch.setattr("asyncio.sleep", sleep)
    review = reviewer(client.Configuration(host="http://127.0.0.1:1"))
    with suppress(KubeApiError):
        assert review(found) is Verdict[found]
    assert (REFUSED_SECONDS in slept) == (found != "ALLOWED")


class Api:
    """A stand-in for the API server's two reviews."""

    def __init__(self, *statuses):
        self.statuses, self.created = list(statuses), []

    async def create(self, manifest):
        self.created.append(manifest)
        return {"status": self.statuses.pop(0)}


async def test_the_account_of_the_token_is_asked_about_and_not_the_clients_word():
    api = Api({"authenticated": True, "user": USER}, {"allowed": True})
    assert await review(api, "token") is Verdict.ALLOWED
    first, second = api.created
    assert first["spec"] == {"token": "token"}
    assert second["spec"]["user"] == USER["username"]
    assert second["spec"]["groups"] == USER["groups"]
    assert second["spec"]["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ([{}], Verdict.UNKNOWN),
        ([{"error": "expired"}], Verdict.UNKNOWN),
        ([{"authenticated": True, "user": USER}, {}], Verdict.FORBIDDEN),
        ([{"authenticated": True, "user": USER}, {"allowed": False, "denied": True}], Verdict.FORBIDDEN),
    ],
)
async def test_anything_but_a_clear_yes_lets_nobody_in(statuses, verdict):
    assert await review(Api(*statuses), "token") is verdict
