"""A type of resources on an ADS stream."""

from __future__ import annotations

from google.protobuf.any_pb2 import Any as AnyMessage
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.proxy.ads import Subscription
from inflight_gateway.proxy.snapshot import Resources


def resources(version, *names):
    return Resources(version, {name: AnyMessage(value=name.encode()) for name in names})


def names(response):
    return None if response is None else [one.value.decode() for one in response]


def test_a_version_is_sent_once():
    subscription = Subscription()
    assert not subscription.requested([], "", refused=False)
    assert names(subscription.response(resources("1", "a", "b"))) == ["a", "b"]
    assert subscription.requested([], subscription.nonce, refused=False)
    assert subscription.acknowledged == "1"
    assert subscription.response(resources("1", "a", "b")) is None
    assert names(subscription.response(resources("2", "a"))) == ["a"]


def test_a_refused_version_is_not_sent_again():
    subscription = Subscription()
    subscription.requested([], "", refused=False)
    subscription.response(resources("1", "a"))
    assert subscription.requested([], subscription.nonce, refused=True)
    assert subscription.acknowledged == ""
    assert subscription.response(resources("1", "a")) is None
    assert subscription.response(resources("2", "a")) is not None


def test_more_names_are_answered_though_the_version_is_the_same():
    subscription = Subscription()
    subscription.requested(["a"], "", refused=False)
    assert names(subscription.response(resources("1", "a", "b", "c"))) == ["a"]
    subscription.requested(["a", "b"], subscription.nonce, refused=False)
    assert names(subscription.response(resources("1", "a", "b", "c"))) == ["a", "b"]


def test_a_subscription_that_begins_again_is_answered():
    """Envoy gives up a type and asks for it anew, without a nonce."""
    subscription = Subscription()
    subscription.requested(["a"], "", refused=False)
    subscription.response(resources("1", "a"))
    assert not subscription.requested(["a"], "", refused=False)
    assert names(subscription.response(resources("1", "a"))) == ["a"]


@given(st.lists(st.tuples(st.sampled_from(["publish", "ack", "nack", "stale"]), st.integers(0, 5)), max_size=30))
def test_the_newest_version_always_gets_out_and_only_answers_count(steps):
    subscription, version, sent = Subscription(), 0, []
    subscription.requested([], "", refused=False)
    for step, number in steps:
        if step == "publish":
            version = number
        else:
            nonce = "stale" if step == "stale" else subscription.nonce
            answered = subscription.requested([], nonce, refused=step == "nack")
            assert answered == (step != "stale" and bool(sent))
        if subscription.response(resources(str(version), "a")) is not None:
            sent.append(str(version))
        assert sent[-1] == str(version)
        assert subscription.acknowledged in ("", *sent)
