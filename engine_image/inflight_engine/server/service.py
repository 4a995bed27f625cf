"""State of the API process: its parts, and what endpoints ask of them."""

from __future__ import annotations

import secrets
import time
from hashlib import blake2b
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from inflight_contract.tenants import Tenants
from inflight_engine.formats.choose import Chosen, choose
from inflight_engine.models.checkpoints.generation_config import SamplingDefaults
from inflight_engine.request import Thinking
from inflight_engine.server.admission.admission import QueueAdmission
from inflight_engine.server.admission.peer_reads import PeerReads
from inflight_engine.server.answers.channels import Channels
from inflight_engine.server.answers.respond import Heartbeats
from inflight_engine.server.engine.handover import Handover
from inflight_engine.server.engine.session import EngineSession
from inflight_engine.server.requests.counts import Counts
from inflight_engine.server.requests.grammar_checks import CheckedGrammars
from inflight_engine.server.requests.inbox import Deliveries
from inflight_engine.server.requests.prepare import ModelFacts
from inflight_engine.server.requests.registry import RequestRegistry
from inflight_engine.server.settings.config import ServerConfig
from inflight_engine.server.telemetry.page import DISK_TIER, HOST_TIER, EngineMetrics, Gauges
from inflight_settings.engine import EngineConfig
from inflight_settings.limits import LimitsInForce

if TYPE_CHECKING:
    from inflight_engine.models.remote.sharing import SharedBlocks  # has numpy, which takes long to import
    from inflight_engine.models.tokens.tokenizer import Tokenizer  # imports the tokenizers library
    from inflight_engine.server.telemetry.spans import Spans  # imports OpenTelemetry's SDK


class Service:
    """Parts of the API process; there is one instance.

    Attributes:
        created: when the process started, Unix seconds.
        draining: shutting down; responses close their connections, and /ready fails.
        deliveries: updates of generations, to the writers of their responses.
        fingerprint: OpenAI's `system_fingerprint`: equal where model, version, device and precision are.
        formats: of the model's tool calls and reasoning; none until it is loaded.
        shown_ids: special tokens that these formats are made of.
        thinking: marks of the model's reasoning; None: none is known.
        grammars: validates those of requests.
        handover: of the KV cache to engines that continue requests of this one.
        heartbeats: of open responses for relays.
        channels: of relays, for their streams.
        tenants: determines the tenant of a request.
        spans: creates the traces of requests; None: no tracing.
        shared_blocks: of the model's weights, for peers; None: none are shared, or the model is not resolved yet.
        peer_reads: those under way.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.seed = secrets.randbits(63) if config.engine.seed is None else config.engine.seed
        self.started = time.monotonic()
        self.created = int(time.time())
        self.draining = False
        self.session = EngineSession(config.engine)
        self.admission = QueueAdmission(config)
        self.counts = Counts(config.engine.classes, config.engine.ttft_per_token)
        self.registry = RequestRegistry(config, self.session, self.admission, self.counts)
        self.metrics = EngineMetrics(config.served_model_name, self.counts, self.admission.demand, self._gauges)
        self.metrics.tiers = _tiers(config.engine)
        self.deliveries = Deliveries()
        self.grammars = CheckedGrammars()
        self.channels = Channels(offered=not config.api_key)
        self.handover = Handover(self.session)
        self.heartbeats = Heartbeats(lambda: self.session.stalled, self.handover.source)
        self.fingerprint = ""
        self.tenants = Tenants(trusted=config.trust_tenant_header, key_file=config.tenant_key_file)
        self.spans: Spans | None = None
        self.shared_blocks: SharedBlocks | None = None
        engine = config.engine
        self.peer_reads = PeerReads(engine.peers_tpot, engine.classes, lambda: self.session.stats)
        if engine.peers_file is not None:
            self.metrics.peer_reads = self.peer_reads
        self.formats = Chosen()
        self.shown_ids: frozenset[int] = frozenset()
        self.thinking: Thinking | None = None
        self._tokenizer: Tokenizer | None = None

    @property
    def model(self) -> tuple[Tokenizer, ModelFacts]:
        """The loaded model.

        Raises:
            ApiError: 503 while it loads, while draining, or after the engine failed.
        """
        self.registry.check_admitting()
        assert self.session.ready is not None
        return self.tokenizer, ModelFacts.of(self.tokenizer, self.session.ready)

    @property
    def sampling_defaults(self) -> SamplingDefaults | None:
        """Defaults of requests; None while the model loads."""
        return None if self._tokenizer is None else self._tokenizer.sampling_defaults

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the loaded model."""
        assert self._tokenizer is not None
        return self._tokenizer

    async def open(self, tokenizer: Tokenizer, limits: LimitsInForce) -> None:
        """Start accepting requests: the model is loaded."""
        await self.session.open(limits)
        self.formats = choose(tokenizer.model_text, self.config.tool_call_parser, self.config.reasoning_parser)
        self.shown_ids = tokenizer.special_ids(self.formats.marks)
        self.thinking = _thinking(self.formats, tokenizer)
        self.fingerprint = self._fingerprint()
        self._tokenizer = tokenizer

    def _fingerprint(self) -> str:
        ready, engine = self.session.ready, self.config.engine
        assert ready is not None
        runner = ready.runner
        parts = (version("inflight"), engine.model, runner.digest, runner.device, runner.dtype)
        return f"fp_{blake2b(repr((*parts, runner.attention_backend)).encode(), digest_size=5).hexdigest()}"

    def _gauges(self) -> Gauges:
        self.registry.count_outputs()
        self.admission.demand.output_lengths.forget(time.monotonic())
        revision = self.session.runtime.revision
        return Gauges(
            self.registry.load(),
            self.admission.waiting.by_class,
            self.draining,
            revision,
            self.session.sleeping.asleep,
            self.session.loading,
        )


def _tiers(engine: EngineConfig) -> list[str]:
    """Return the labels of the tiers that an engine with this configuration has."""
    sizes = {HOST_TIER: engine.swap_space, DISK_TIER: engine.disk_space}
    return [tier for tier, size in sizes.items() if size and engine.keeps_evicted]


def _thinking(formats: Chosen, tokenizer: Tokenizer) -> Thinking | None:
    reasoning = formats.reasoning
    if reasoning is None:
        return None
    texts = (reasoning.open, reasoning.close, reasoning.then)
    opening, closing, then = (tuple(tokenizer.encode(text, special_tokens=False)) for text in texts)
    return Thinking(opening, closing, then=then)


async def _service(request: Request) -> Service:
    # async: FastAPI runs plain functions in a thread, which costs more than the call itself and loses the order of
    # requests.
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(_service)]
