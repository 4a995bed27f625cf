"""A stand-in for the engine process, in the test's own event loop: it speaks the real messages over a real socket and
does what the test says, so that waits, timeouts and bounds are exact. The real engine is in test_real_engine.py."""

import asyncio
import codecs
import socket
from types import MappingProxyType

import numpy as np
from msgspec import structs

from inflight_engine.channel import FrameDecoder, encode
from inflight_engine.formats.choose import ModelText
from inflight_engine.messages import (
    AddRequest,
    Admission,
    BlocksRead,
    CancelRequest,
    Configure,
    Configured,
    EngineReady,
    Finished,
    FlushRecord,
    ReadBlocks,
    RecordFlushed,
    Sleep,
    Slept,
    StepCost,
    StepReport,
    StepStats,
)
from inflight_engine.models.checkpoints.generation_config import OPENAI_DEFAULTS
from inflight_engine.models.checkpoints.pooling_config import PoolingConfig
from inflight_engine.models.tokens.conversation import TooManyTokensError
from inflight_engine.output import Pooled
from inflight_engine.request import FinishReason
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.server.app import create_admin_app, create_app
from inflight_engine.server.engine.session import NO_STATS
from inflight_engine.server.http.middleware import OpenResponses
from inflight_engine.server.service import Service
from inflight_engine.server.settings.config import ServerConfig
from inflight_settings.engine import EngineConfig
from inflight_settings.limits import Limits, LimitsInForce

EOS = 0
CAPACITY = Limits(4, 64)
READY = EngineReady(
    capacity=CAPACITY,
    runner=RunnerInfo(
        num_blocks=32,
        block_size=16,
        max_model_len=100,
        kv_bytes_per_token=128,
        vocab_size=256,
        device="cpu",
        dtype="float32",
        attention_backend="none",
        load_seconds=0.0,
        can_sleep=True,
    ),
)


class ByteTokenizer:
    """Token id = byte; `chats` are the conversations that it was given.
    What is not text is a TypeError, as in the tokenizers library."""

    eos_token_ids = (EOS,)
    model_text = ModelText()
    all_special_ids = frozenset({EOS})
    pooling = PoolingConfig()
    settings = MappingProxyType({})

    def __init__(self, sampling_defaults=OPENAI_DEFAULTS):
        self.sampling_defaults = sampling_defaults
        self.chats = []

    def encode(self, text, *, special_tokens=True, wanted=None):
        try:
            token_ids = list(text.encode())
        except UnicodeEncodeError as error:
            raise TypeError from error
        if wanted is not None and not wanted.cut and len(token_ids) > wanted.most:
            raise TooManyTokensError(wanted.most, len(token_ids))
        return token_ids

    def encode_chat(self, conversation, wanted=None):
        self.chats.append(conversation)
        messages = conversation.messages
        if messages[0]["content"] == "no template":
            raise ValueError("the model has no chat template")
        text = "".join(f"{m['role']}:{m['content']}\n" for m in messages)
        return self.encode(text + ("" if conversation.continues else "end"), wanted=wanted)

    def is_special(self, text):
        return text == "<end>"

    def spell(self, token_ids):
        return bytes(token_ids).decode(errors="replace")

    def names(self, token_ids):
        return [chr(token_id) for token_id in token_ids]

    def detokenizer(self, prompt_token_ids, shown=frozenset()):
        return ByteDetokenizer(shown)

    def special_id(self, name):
        return None

    def special_ids(self, text):
        return frozenset()

    def token_bytes(self, token_id):
        return b"<end>" if token_id == EOS else bytes([token_id])


class ByteDetokenizer:
    """Bytes to text, like the real one for byte-level vocabularies."""

    def __init__(self, shown=frozenset()):
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._shown = shown

    def push(self, token_ids):
        spelled = (b"<end>" if token_id in self._shown else bytes([token_id]) for token_id in token_ids)
        return self._decoder.decode(b"".join(spelled))

    def flush(self):
        return self._decoder.decode(b"", final=True)


class FakeEngine(asyncio.Protocol):
    """`requests`, `cancels`, `configurations`, `costs` and `flushes` are what arrived; `report` sends one step.
    `prompts`: what came with a request, and not with the one before.

    `reads`: hashes of blocks that were to be read; `blocks` is the answer: checksums, path and length.
    `sleeps`: calls to sleep, of which it has done none where it is `busy`.
    `answering`: it answers what changes its configuration. `weights`: of service classes, in force.
    """

    def __init__(self):
        self.requests, self.cancels, self.configurations, self.costs, self.flushes = {}, [], [], [], 0
        self.prompts = []
        self.answering, self.weights = True, {}
        self.sleeps, self.busy = 0, False
        self.reads, self.blocks = [], (b"", "", 0)
        self._decoder = FrameDecoder.for_engine()
        self._arrived = asyncio.Condition()
        self._steps = 0

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        for message in self._decoder.feed(data):
            match message:
                case AddRequest():
                    if message.prompt_token_ids is not None:
                        self.prompts.append(message.prompt_token_ids)
                    self.requests[message.request_id] = structs.replace(message, prompt_token_ids=self.prompts[-1])
                case CancelRequest():
                    self.cancels.append(message)
                    self.report(finished=[(message.request_id, message.reason)])
                case Configure():
                    self.configurations.append((message.limits, message.class_weights))
                    self.weights |= message.class_weights
                    if self.answering:
                        self.send(Configured(message.call_id, message.limits, self.weights))
                case StepCost():
                    self.costs.append(message)
                case FlushRecord():
                    self.flushes += 1
                    self.send(RecordFlushed(message.call_id))
                case Sleep():
                    self.sleeps += 1
                    self.send(Slept(message.call_id, None if self.busy else NO_STATS))
                case ReadBlocks():
                    self.reads.append(message.hashes)
                    self.send(BlocksRead(message.call_id, *self.blocks))

    def send(self, message):
        self._transport.write(encode(message))

    def die(self):
        self._transport.close()

    def report(
        self, admitted=(), tokens=None, finished=(), logprobs=(), prompt_logprobs=(), preempted=(), pooled=(), **stats
    ):
        """`tokens`: by slot, or pairs of a slot and a token where a slot has several."""
        tokens = list((tokens or {}).items()) if isinstance(tokens, dict | None) else tokens
        self._steps += 1
        self.send(
            StepReport(
                self._steps,
                [Admission(*each) for each in admitted],
                np.array([slot for slot, _ in tokens], np.int32).tobytes(),
                np.array([token for _, token in tokens], np.int32).tobytes(),
                list(logprobs),
                [Finished(*each) for each in finished],
                StepStats(**{**dict.fromkeys(StepStats.__struct_fields__, 0), **stats}),
                list(prompt_logprobs),
                list(preempted),
                [Pooled(slot, np.array(vector, np.float32).tobytes()) for slot, vector in pooled],
            )
        )

    def answer(self, request_id, text, slot=0, reason=FinishReason.STOP):
        """Admit a request, sample the bytes of `text` one step after the other, end it."""
        self.report(admitted=[(request_id, slot)], num_running=1)
        for token in text.encode():
            self.report(tokens={slot: token}, num_running=1, num_decode_tokens=1, step_seconds=0.001)
        self.report(finished=[(request_id, reason)])


def server_config(**changes):
    values = {
        "engine": EngineConfig("fake"),
        "host": "127.0.0.1",
        "port": 0,
        "admin_port": None,
        "serving_metrics": True,
        "served_model_names": ("fake",),
        "generation_config": "auto",
        "trust_tenant_header": False,
        "tenant_key_file": None,
        "max_queued_requests": 8,
        "shed_after": None,
        "queue_timeout": 30.0,
        "request_timeout": 30.0,
        "drain_delay": 0.0,
        "drain_timeout": 1.0,
        "limits_file": None,
        "tracing": None,
    }
    return ServerConfig(**{**values, **changes})


async def connect_engine(service):
    """A fake engine at the other end of the service's link; it has not said that it is ready."""
    engine = FakeEngine()
    engine.weights = {each.name: each.weight for each in service.config.engine.classes}
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().create_connection(lambda: engine, sock=theirs)
    await service.session.link.connect(ours)
    return engine


async def connected(config, *, load=True, tokenizer=None):
    """A service with a fake engine behind it, its application, and that of its admin port where it has one."""
    service, responses = Service(config), OpenResponses()
    engine = await connect_engine(service)
    if load:
        engine.send(READY)
        await service.session.first_ready
        await service.open(tokenizer or ByteTokenizer(), LimitsInForce(CAPACITY))
    drains = []
    app = create_app(service, responses, lambda: drains.append(True), config.admin_port)
    app.state.drains = drains
    app.state.admin_app = create_admin_app(service, responses, lambda: drains.append(True))
    return service, engine, app


async def until(condition, seconds=60.0):
    """Wait until `condition()` is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (conditions of many kinds)
            await asyncio.sleep(0.002)
