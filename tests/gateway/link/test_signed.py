"""Signed streams between gateway pods, fed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.link import wire
from inflight_gateway.link.signed import Accepting, Proving, Sealed
from inflight_gateway.link.wire import Hello, Left

OLD, NEW, OTHER = b"old" * 11, b"new" * 40, b"other" * 9
RELAY = "0123456789abcdef0123456789abcdef"


def joined(picker_keys=(NEW,), relay_keys=(NEW,), pod="gw-1", wanted="gw-1", at_once=True):
    """Both sides after the handshake."""
    picker, relay = Accepting(picker_keys, pod), Proving(relay_keys, RELAY, wanted)

    def pass_on(data: bytes, to: Accepting | Proving) -> bytes:
        pieces = [data] if at_once else [data[place : place + 1] for place in range(len(data))]
        return b"".join([to.feed(piece) for piece in pieces])

    assert pass_on(pass_on(pass_on(picker.greeting, relay), picker), relay) == b""
    return picker, relay


def sealed(**more) -> tuple[Sealed, Sealed]:
    picker, relay = joined(**more)
    assert picker.sealed is not None
    assert relay.sealed is not None
    return picker.sealed, relay.sealed


@pytest.mark.parametrize("at_once", [True, False])
def test_both_sides_prove_the_key_and_messages_pass_both_ways(at_once):
    picker, relay = joined(at_once=at_once)
    assert picker.sealed is not None
    assert relay.sealed is not None
    for number in range(3):
        messages = [Left(f"r-{number}", 1)]
        for sender, receiver in ((picker.sealed, relay.sealed), (relay.sealed, picker.sealed)):
            (content,) = receiver.feed(sender.frame(messages))
            assert wire.from_relay.decode(content) == messages


def test_a_frame_right_behind_the_pickers_proof_is_kept():
    picker, relay = Accepting((NEW,), "gw-1"), Proving((NEW,), RELAY, "gw-1")
    answer = picker.feed(relay.feed(picker.greeting))
    assert picker.sealed is not None
    relay.feed(answer + picker.sealed.frame([]))
    assert relay.sealed is not None
    assert relay.sealed.feed(relay.rest) == [wire.encode([])]


@pytest.mark.parametrize(
    ("picker_keys", "relay_keys"),
    [((NEW, OLD), (OLD,)), ((OLD,), (NEW, OLD)), ((NEW, OLD), (OTHER, OLD)), ((NEW, OLD), (NEW, OLD))],
)
def test_during_a_rotation_one_common_key_is_enough(picker_keys, relay_keys):
    picker, relay = sealed(picker_keys=picker_keys, relay_keys=relay_keys)
    assert picker.feed(relay.frame([Hello(RELAY)]))


@pytest.mark.parametrize(
    "more", [{"relay_keys": (OTHER,)}, {"picker_keys": ()}, {"wanted": "gw-2"}, {"picker_keys": (OLD,)}]
)
def test_a_relay_with_another_key_or_for_another_pod_is_refused(more):
    with pytest.raises(ValueError, match="does not have the gateway key, or wants another pod"):
        joined(**more)


def test_a_picker_without_the_key_is_refused():
    """Also one that sends back what the relay sent."""
    relay = Proving((NEW,), RELAY, "gw-1")
    proofs = relay.feed(bytes(32))
    with pytest.raises(ValueError, match="picker does not have"):
        relay.feed(b"\0" + proofs[64:96])
    relay = Proving((NEW,), RELAY, "gw-1")
    relay.feed(bytes(32))
    with pytest.raises(ValueError, match="picker does not have"):
        relay.feed(b"\x01" + bytes(32))


def test_a_proof_holds_for_one_connection():
    picker, relay = Accepting((NEW,), "gw-1"), Proving((NEW,), RELAY, "gw-1")
    proof = relay.feed(picker.greeting)
    assert picker.feed(proof)
    with pytest.raises(ValueError, match="does not have"):
        Accepting((NEW,), "gw-1").feed(proof)


def test_bytes_before_the_proof_are_bounded():
    picker = Accepting((NEW,), "gw-1")
    with pytest.raises(ValueError, match="more than its proof"):
        picker.feed(bytes(2**16))
    picker = Accepting((NEW,), "gw-1")
    picker.feed(bytes(100))
    with pytest.raises(ValueError, match="more than its proof"):
        picker.feed(bytes(100))


@given(place=st.integers(min_value=4), change=st.integers(1, 255))
def test_no_byte_of_a_frame_can_be_changed(place, change):
    picker, relay = sealed()
    frame = bytearray(relay.frame([Left("r-1", 1), Left("r-2", 1)]))
    frame[4 + place % (len(frame) - 4)] ^= change
    with pytest.raises(ValueError, match="wrong MAC"):
        picker.feed(bytes(frame))


@given(st.permutations(range(4)), st.sets(st.integers(0, 3)))
def test_frames_are_taken_in_their_order_and_once(order, missing):
    picker, relay = sealed()
    frames = [relay.frame([Left(f"r-{number}", 1)]) for number in range(4)]
    sent = [number for number in order if number not in missing]
    good = 0
    while good < len(sent) and sent[good] == good:
        good += 1
    for number in sent[:good]:
        picker.feed(frames[number])
    for number in sent[good : good + 1] or [0] * bool(good):  # or a repeated one
        with pytest.raises(ValueError, match="wrong MAC"):
            picker.feed(frames[number])


def test_a_frame_cannot_be_sent_back_to_its_sender_or_into_another_stream():
    picker, relay = sealed()
    other_picker, _ = sealed()
    frame = relay.frame([Left("r-1", 1)])
    for wrong in (relay, other_picker):
        with pytest.raises(ValueError, match="wrong MAC"):
            wrong.feed(frame)
    assert picker.feed(frame)


def test_a_frame_shorter_than_a_mac_ends_the_stream():
    picker, _ = sealed()
    with pytest.raises(ValueError, match="wrong MAC"):
        picker.feed(wire.framed(b"short"))
