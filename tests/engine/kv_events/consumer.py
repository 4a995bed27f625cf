"""A consumer of KV cache events, written from the protocol alone."""

import msgspec
import zmq

from inflight_engine.block_events import HASH_SIZE
from inflight_engine.server.kv_events.publisher import END_OF_REPLAY

DEADLINE_MS = 20_000


def short(block_hash):
    """The 64 bits of a hash that are published."""
    assert len(block_hash) == HASH_SIZE
    return int.from_bytes(block_hash, "big") & (1 << 64) - 1


def findable(pool):
    """Returns the hashes that a block pool can find, as they are published."""
    return {short(each) for each in pool._block_of if len(pool.match([each]))}


class Consumer:
    """Applies the batches of one publisher in the order of their numbers.

    Attributes:
        hashes: of the blocks that are there, on the device.
        in_tier: of those that are in host memory.
        events: all that were applied.
        gaps: numbers that never came, not even when they were asked for.
    """

    def __init__(self, config):
        self.hashes, self.in_tier, self.events, self.gaps, self.next = set(), set(), [], [], 0
        self.topic = config.topic.encode()
        self._context = zmq.Context()
        self._subscriber = self._open(zmq.SUB, config.endpoint)
        self._subscriber.subscribe(self.topic)
        self._replay = None
        if config.replay_endpoint is not None:
            self._replay = self._open(zmq.DEALER, config.replay_endpoint)

    def receive(self, *, wait=False):
        """Applies what came, or loses it where a batch before it is missing. False: nothing came."""
        if not self._subscriber.poll(DEADLINE_MS if wait else 0):
            return False
        topic, number, content = self._subscriber.recv_multipart()
        assert topic == self.topic
        self._apply(int.from_bytes(number, "big"), content)
        return True

    def lose(self):
        """Loses what came."""
        while self._subscriber.poll(0):
            self._subscriber.recv_multipart()

    def catch_up(self):
        """Asks for all that is missing, and applies it."""
        self._replay.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            assert self._replay.poll(DEADLINE_MS), "a replay has an end"
            empty, topic, number, content = self._replay.recv_multipart()
            assert empty == b""
            if number == END_OF_REPLAY:
                assert (topic, content) == (b"", b"")
                return
            assert topic == self.topic
            number = int.from_bytes(number, "big")
            self.gaps += range(self.next, number)
            self.next = max(self.next, number)
            self._apply(number, content)

    def close(self):
        self._context.destroy(linger=0)

    def _open(self, kind, endpoint):
        socket = self._context.socket(kind)
        socket.rcvhwm = 0
        socket.connect(endpoint.replace("*", "127.0.0.1"))
        return socket

    def _apply(self, number, content):
        if number != self.next:
            return
        self.next += 1
        _, events, rank = msgspec.msgpack.decode(content)
        assert rank == 0
        self.events += events
        for event in events:
            on_device = event.get("medium") == "GPU"
            hashes = self.hashes if on_device else self.in_tier
            match event["type"]:
                case "BlockStored":
                    num_tokens = event["block_size"] * len(event["block_hashes"]) if on_device else 0
                    assert len(event["token_ids"]) == num_tokens
                    hashes.update(event["block_hashes"])
                case "BlockRemoved":
                    assert hashes.issuperset(event["block_hashes"])
                    hashes.difference_update(event["block_hashes"])
                case "AllBlocksCleared":
                    self.hashes.clear()
                    self.in_tier.clear()
                case other:
                    raise AssertionError(other)
