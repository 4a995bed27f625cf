"""Weights from peers: each byte once from the source by all pods together, and never a wrong one."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from inflight_contract import admin_signature
from inflight_engine.models.remote import cached, peers, sharing
from inflight_engine.server.admin import model_blocks
from inflight_engine.server.engine.session import NO_STATS
from inflight_settings.scheduling import ServiceClass
from tests.engine.models.remote.pods import cluster

BLOCK, PAGE = 16 << 10, 2 << 10
BLOCKS = 20
SIZE = (BLOCKS - 1) * BLOCK + 1234


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in (cached, sharing):
        monkeypatch.setattr(module, "PIECE", BLOCK)
    monkeypatch.setattr(cached, "PAGE", PAGE)
    monkeypatch.setattr(peers, "_ANSWER_SECONDS", 3.0)
    monkeypatch.setattr(peers, "_BUSY_SECONDS", 0.01)
    monkeypatch.setattr(model_blocks, "_WAIT_SECONDS", 0.1)


@pytest.fixture
def content(server):
    weights = random.Random(0).randbytes(SIZE)
    server.files = {"tiny/config.json": b"{}", "tiny/model.safetensors": weights}
    return weights


@pytest.fixture
def pods(server, content, source, tmp_path, monkeypatch):
    with cluster(tmp_path, source("s3", "tiny"), monkeypatch) as found:
        yield found


@pytest.fixture
def from_source(server):
    """A function that returns the bytes of weights that the source gave since the last call."""

    def count():
        found, server.num_bytes = server.num_bytes, 0
        return found

    return count


def read_blocks(store, file, blocks=range(BLOCKS)):
    """Read blocks one by one, in this order; returns them joined."""
    cuts = [(number * BLOCK, min((number + 1) * BLOCK, SIZE)) for number in blocks]
    return b"".join(bytes(store.read(file, *cut)) for cut in cuts)


def fill(pods, pod, from_source):
    """The pod has the whole model."""
    read_blocks(*pods.open(pod))
    from_source()


def gets(pod):
    return sum(line.startswith("GET") for line in pod.asked)


def test_a_new_pod_reads_all_from_a_ready_one_and_keeps_it_for_the_next(pods, content, from_source):
    fill(pods, pods.add("first"), from_source)
    second = pods.add("second", ready=False)
    store, file = pods.open(second)
    from_source()
    assert read_blocks(store, file) == content
    assert from_source() == 0
    assert second.peers.counts.peer_bytes == SIZE
    pods.name("second")
    third = pods.add("third", ready=False)
    store, file = pods.open(third)
    from_source()
    assert read_blocks(store, file) == content
    assert from_source() == 0


def test_pods_that_start_at_once_read_the_source_once_and_share_the_work(pods, content, from_source):
    started = [pods.add(f"pod-{number}", ready=False) for number in range(4)]
    opened = [pods.open(pod) for pod in started]
    from_source()
    with ThreadPoolExecutor(len(opened)) as threads:
        found = list(threads.map(lambda each: read_blocks(*each), opened))
    assert all(each == content for each in found)
    assert from_source() == SIZE == sum(pod.peers.counts.source_bytes for pod in started)
    assert all(pod.peers.counts.source_bytes < SIZE / 2 for pod in started), "a tree, not a star"
    assert all(gets(pod) for pod in started)


def test_pods_that_share_a_cache_do_not_wait_for_each_other_over_a_third(pods, content, from_source):
    """Two nodes with two pods each: who holds the lock of a block in a cache never waits for another node."""
    started = [pods.add(f"pod-{number}", ready=False, cache=f"node-{number % 2}") for number in range(4)]
    opened = [pods.open(pod) for pod in started]
    from_source()
    with ThreadPoolExecutor(len(opened)) as threads:
        found = list(threads.map(lambda each: read_blocks(*each), opened))
    assert all(each == content for each in found)
    assert from_source() == SIZE
    assert sum(pod.peers.counts.peer_bytes for pod in started) == SIZE, "each of the two nodes half"
    assert not any(pod.peers.counts.failures for pod in started)


def test_a_pod_that_is_not_named_reads_nothing_from_the_source_that_others_will(pods, content, from_source):
    first, other = pods.add("first", ready=False), pods.add("other", ready=False, named=False)
    opened = [pods.open(first), pods.open(other)]
    from_source()
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda each: read_blocks(*each), opened)) == [content, content]
    assert from_source() == SIZE == first.peers.counts.source_bytes


def flip(at):
    def change(head, body):
        changed = bytearray(body)
        if body:
            changed[at % len(body)] ^= 1
        return head + b"\r\n\r\n" + bytes(changed)

    return change


def other_checksums(head, body):
    """A man in the middle who changes bytes and checksums."""
    name = b"inflight-checksums: "
    at = head.lower().find(name) + len(name)
    return head if at < len(name) else head[:at] + b"00" + head[at + 2 :] + b"\r\n\r\n" + body


FAULTS = {
    "it dies before it answers": lambda head, body: b"",
    "it dies in the middle": lambda head, body: head + b"\r\n\r\n" + body[: len(body) // 2],
    "it hangs": lambda head, body: None,
    "its bytes are damaged on the way": flip(5000),
    "its checksums are changed on the way": other_checksums,
    "it answers nonsense": lambda head, body: b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "it is no engine": lambda head, body: b"nonsense\r\n\r\n",
    "it refuses": lambda head, body: b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("others", [0, 1])
def test_a_peer_that_fails_rests_and_another_or_the_source_gives_the_bytes(
    pods, content, from_source, caplog, fault, others
):
    bad = pods.add("bad")
    fill(pods, bad, from_source)
    for number in range(others):
        fill(pods, pods.add(f"good-{number}"), from_source)
    bad.asked.clear()
    bad.fault = FAULTS[fault]
    joining = pods.add("joining", ready=False, named=False)
    store, file = pods.open(joining)
    from_source()
    assert read_blocks(store, file) == content
    assert from_source() == (0 if others else SIZE)
    assert joining.peers.counts.failures == 1
    assert 1 <= len(bad.asked) <= 2, "then it rests"
    assert any("peer bad at 127.0.0.1" in line and "is not asked for" in line for line in caplog.messages)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "[::1]:1", ""])
def test_a_peer_that_is_gone_is_no_error(pods, content, from_source, address):
    joining = pods.add("joining", ready=False)
    pods.name("joining", gone=address)
    store, file = pods.open(joining)
    from_source()
    assert read_blocks(store, file) == content
    assert from_source() == SIZE
    assert joining.peers.counts.failures == 1


def test_another_pod_with_the_address_of_a_peer_is_not_taken_for_it(pods, content, from_source):
    stranger = pods.add("stranger")
    fill(pods, stranger, from_source)
    joining = pods.add("joining", ready=False)
    pods.name(gone=stranger.address)
    store, file = pods.open(joining)
    from_source()
    assert read_blocks(store, file) == content
    assert (from_source(), joining.peers.counts.failures) == (SIZE, 1)


def test_a_peer_with_another_token_is_not_believed(pods, content, from_source, monkeypatch):
    first = pods.add("first")
    fill(pods, first, from_source)
    joining = pods.add("joining", ready=False)
    monkeypatch.setattr(admin_signature, "content_proof", lambda *given: "other")  # as the joining pod sees it
    store, file = pods.open(joining)
    from_source()
    assert read_blocks(store, file) == content
    assert (from_source(), joining.peers.counts.failures) == (SIZE, 1)


def test_a_block_that_was_damaged_in_the_cache_of_a_ready_pod_rests_it_for_five_minutes(
    pods, content, from_source, tmp_path, caplog
):
    first = pods.add("first")
    fill(pods, first, from_source)
    (data,) = (tmp_path / "first").glob("inflight-models/*/data")
    damaged = bytearray(content)
    damaged[3 * BLOCK + 7] ^= 1
    data.write_bytes(damaged)
    joining = pods.add("joining", ready=False, named=False)
    store, file = pods.open(joining)
    from_source()
    assert read_blocks(store, file) == content
    assert from_source() == SIZE - 3 * BLOCK
    assert sum("is not asked for 300 s: block 3 of" in line for line in caplog.messages) == 1


def test_without_a_token_the_source_is_read_and_the_log_says_why(pods, content, from_source, monkeypatch, caplog):
    fill(pods, pods.add("first"), from_source)
    joining = pods.add("joining", ready=False)
    store, file = pods.open(joining)
    monkeypatch.delenv("INFLIGHT_ADMIN_TOKEN")
    from_source()
    assert read_blocks(store, file) == content
    assert from_source() == SIZE
    assert "this server has no token" in caplog.text


def test_a_busy_peer_is_asked_again_and_then_rests(pods, content, from_source, monkeypatch):
    monkeypatch.setattr(peers, "_PATIENCE_SECONDS", 0.1)
    first = pods.add("first", classes=(ServiceClass("default", tpot_target=0.1),))
    fill(pods, first, from_source)
    first.service.session.stats = structs.replace(NO_STATS, num_running=1, step_seconds=0.2)
    joining = pods.add("joining", ready=False, named=False)
    store, file = pods.open(joining)
    from_source()
    assert read_blocks(store, file, [0, 1]) == content[: 2 * BLOCK]
    assert from_source() == 2 * BLOCK
    assert gets(first) > 1
    assert first.service.peer_reads.refused == gets(first)


def test_a_pod_whose_loading_does_not_get_on_is_waited_for_once(pods, content, from_source, monkeypatch):
    monkeypatch.setattr(peers, "_PATIENCE_SECONDS", 0.3)
    hung = pods.add("hung", ready=False)
    joining = pods.add("joining", ready=False, named=False)
    store, file = pods.open(joining)
    from_source()
    assert read_blocks(store, file) == content
    assert from_source() == SIZE
    assert 1 <= len(hung.asked) <= 4
    assert joining.peers.counts.failures == 1


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_peers_do_the_bytes_are_right(pods, content, monkeypatch, data):
    monkeypatch.setattr(peers, "_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(peers, "_ANSWER_SECONDS", 0.2)
    names = [f"{len(pods.pods)}-{number}" for number in range(data.draw(st.integers(1, 3)))]
    for name in names:
        pod = pods.add(name, ready=data.draw(st.booleans()))
        read_blocks(*pods.open(pod), data.draw(st.sets(st.integers(0, BLOCKS - 1))))
        fault = data.draw(st.sampled_from(["none", *FAULTS, "now and then"]))
        pod.fault = FAULTS.get(fault)
        if fault == "now and then":
            chosen = data.draw(st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=5))
            pod.fault = lambda head, body, chosen=chosen: FAULTS[random.choice(chosen)](head, body)
    joining = pods.add(f"{len(pods.pods)}-joining", ready=False)
    pods.name(*names)
    store, file = pods.open(joining)
    start = data.draw(st.integers(0, SIZE))
    end = data.draw(st.integers(start, SIZE))
    assert bytes(store.read(file, start, end)) == content[start:end]
