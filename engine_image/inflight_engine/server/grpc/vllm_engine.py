"""vLLM's service VllmEngine, as smg-grpc-proto defines it: https://github.com/smg-project/smg, vllm_engine.proto."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TypeAlias

import msgspec
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from inflight_contract.errors import ApiError, bad_request
from inflight_engine.request import FinishReason
from inflight_engine.server.answers.pooling import vector_of
from inflight_engine.server.answers.writer import MANY_SCORED_TOKENS
from inflight_engine.server.grpc.bodies import embedding_body, generation_body
from inflight_engine.server.grpc.calls import Asked
from inflight_engine.server.grpc.kv_events import Subscription
from inflight_engine.server.grpc.messages import chunk, complete
from inflight_engine.server.grpc.tokenizer_files import archive, chunks
from inflight_engine.server.http import endpoint, pooling
from inflight_engine.server.http.health import unready
from inflight_engine.server.http.middleware import request_id
from inflight_engine.server.http.strict_json import converted
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.choice_text import NO_PIECE, Piece
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.requests.registry import RequestRegistry
from inflight_engine.server.service import Service

MAX_REQUEST_ID = 256

_INT32 = 2**31 - 1
_VERSION = version("inflight")

_Key: TypeAlias = tuple[str, str]
"""Tenant and id of a request: no tenant aborts requests of another."""


class VllmEngine:
    """Answers the calls. A call that ends early, by its client or its deadline, ends its generations."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._running: dict[_Key, _Running] = {}
        self._tokenizer: asyncio.Task[bytes] | None = None

    async def generate(self, message: pb.GenerateRequest, asked: Asked) -> None:
        """Stream the tokens of a generation, or the ends of its choices alone where `stream` is false."""
        with self._request(message.request_id, asked) as running:
            body = await converted(asked.http, partial(generation_body, message))
            call = running.begin(await endpoint.begin(self._service, asked.http, body))
            sent = [0] * len(call.choices)
            async for choice, done in _Updates(call):
                if not (call.streaming or done):
                    continue
                piece, begin = choice.take(), sent[choice.request.index]
                # Log-probabilities come with the text of their tokens.
                new = piece.num_tokens > begin or piece.num_scored > 0
                if call.streaming and new and not (choice.scored and piece.empty and not done):
                    await asked.write(await _made(partial(chunk, choice, piece, begin), piece))
                    sent[choice.request.index], piece = piece.num_tokens, NO_PIECE
                if done:
                    transfer = self._transfer_params(asked) if body.decoded_elsewhere else None
                    await asked.write(await _made(partial(complete, choice, piece, transfer), piece))

    async def embed(self, message: pb.EmbedRequest, asked: Asked) -> pb.EmbedResponse:
        """The vector of a prompt."""
        with self._request(message.request_id, asked) as running:
            body = await converted(asked.http, partial(embedding_body, message))
            call = running.begin(await pooling.begin(self._service, asked.http, body))
            async for choice, _ in _Updates(call):
                if choice.finish_reason is FinishReason.ABORT:
                    raise ApiError(499, "the request was aborted", code="aborted")
            vector = vector_of(call.choices[0], normalized=self._service.tokenizer.pooling.normalized)
            tokens = call.num_prompt_tokens
            return pb.EmbedResponse(embedding=vector.tolist(), prompt_tokens=tokens, embedding_dim=len(vector))

    async def abort(self, message: pb.AbortRequest, asked: Asked) -> pb.AbortResponse:
        """End requests of the same tenant; ids that are not known here are ignored, as they may have ended."""
        tenant = self._tenant(asked)
        for named in message.request_ids:
            running = self._running.get((tenant, named))
            if running is not None:
                running.end(FinishReason.ABORT)
        return pb.AbortResponse()

    def health(self, message: pb.HealthCheckRequest) -> pb.HealthCheckResponse:
        """Readiness for requests, as /ready has it."""
        found = unready(self._service)
        return pb.HealthCheckResponse(healthy=found is None, message="ready" if found is None else found[1])

    async def model_info(self, message: pb.GetModelInfoRequest, asked: Asked) -> pb.GetModelInfoResponse:
        """The model, and defaults of sampling parameters."""
        tokenizer, facts = self._service.model
        model = self._service.config.engine.model
        special = {name: self._special_id(f"{name}_token") for name in ("pad", "bos")}
        return pb.GetModelInfoResponse(
            model_path=model,
            is_generation=True,
            max_context_length=facts.max_total_tokens,
            vocab_size=facts.vocab_size,
            served_model_name=self._service.config.served_model_name,
            tokenizer_path=model,
            model_type=tokenizer.model_text.model_type,
            eos_token_ids=facts.eos_token_ids,
            pad_token_id=special["pad"],
            bos_token_id=special["bos"],
            max_req_input_len=facts.max_total_tokens - 1,
            default_sampling_params_json=msgspec.json.encode(asdict(facts.defaults)).decode(),
        )

    async def server_info(self, message: pb.GetServerInfoRequest, asked: Asked) -> pb.GetServerInfoResponse:
        """The server. A grammar binds an answer from its first token, reasoning or not."""
        _, ready = self._service.model, self._service.session.ready
        assert ready is not None
        moves, pod = {}, self._service.handover.pod
        if self._service.handover.readable:  # it takes and gives the parameters of this connector of vLLM
            moves = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_engine_id": pod}
        return pb.GetServerInfoResponse(
            active_requests=len(self._service.registry),
            uptime_seconds=time.monotonic() - self._service.started,
            server_type="inflight",
            data_parallel_size=1,
            kv_cache_dtype=self._service.config.engine.kv_cache_dtype,
            block_size=ready.runner.block_size,
            attention_backend=ready.runner.attention_backend,
            model_dtype=ready.runner.dtype,
            max_num_seqs=ready.capacity.max_num_seqs,
            constrained_decoding_start="first_token",
            **moves,
        )

    def loads(self, message: pb.GetLoadsRequest) -> pb.GetLoadsResponse:
        """Requests and KV cache of the engine; zeros while the model loads."""
        load, share = self._service.registry.load(), self._service.admission.demand.computed_share
        tokens = 0 if load.ready is None else min(load.ready.runner.num_cache_tokens, _INT32)
        core = pb.SchedulerLoad(
            num_running_reqs=load.stats.num_running,
            num_waiting_reqs=load.waiting,
            num_total_reqs=load.num_requests,
            num_used_tokens=round(load.stats.kv_usage * tokens),
            max_total_num_tokens=tokens,
            token_usage=load.stats.kv_usage,
            cache_hit_rate=1 - share,
            max_running_requests=0 if load.limits is None else load.limits.max_num_seqs,
            num_waiting_uncached_tokens=min(max(0, round(load.tokens_to_compute(share))), _INT32),
        )
        now = datetime.now(UTC).isoformat()
        return pb.GetLoadsResponse(timestamp=now, version=_VERSION, dp_rank_count=1, loads=[core])

    async def tokenizer(self, message: common_pb2.GetTokenizerRequest, asked: Asked) -> None:
        """Stream the files of the tokenizer."""
        tokenizer, _ = self._service.model
        if self._tokenizer is None:
            self._tokenizer = asyncio.create_task(asyncio.to_thread(archive, tokenizer))
        for each in chunks(await asyncio.shield(self._tokenizer)):
            await asked.write(each)

    async def kv_events(self, message: common_pb2.SubscribeKvEventsRequest, asked: Asked) -> None:
        """Stream the batches of KV cache events.

        Raises:
            ApiError: 501, there are no events; 403, they would tell a tenant of others.
        """
        publisher = self._service.session.kv_events
        if publisher is None:
            raise ApiError(
                501, "SubscribeKvEvents: there are no events without --kv-events-config", code="unimplemented"
            )
        if self._service.config.tenant_key_file is not None or self._service.config.trust_tenant_header:
            said = "SubscribeKvEvents: the events hold the tokens of all tenants"
            raise ApiError(403, said, code="events_of_all_tenants")
        subscription = Subscription(publisher, message.start_sequence_number)
        try:
            async for batch in subscription.messages():
                await asked.write(batch)
        finally:
            subscription.close()

    def _transfer_params(self, asked: Asked) -> str | None:
        client = asked.http.client
        params = None if client is None else self._service.handover.transfer_params(_reached_at(client.host))
        return None if params is None else msgspec.json.encode(params).decode()

    def _special_id(self, name: str) -> int | None:
        token = self._service.tokenizer.settings.get(name)
        return self._service.tokenizer.special_id(token) if isinstance(token, str) else None

    def _tenant(self, asked: Asked) -> str:
        return self._service.tenants.of(asked.http.headers, request_id(asked.http.scope))

    @contextmanager
    def _request(self, named: str, asked: Asked) -> Iterator[_Running]:
        """A request that can be aborted by the name that its client gave it, until the block ends, which ends it.

        Raises:
            ApiError: 400, the name is too long; 409, a request of this name runs; as `Tenants.of`.
        """
        if len(named) > MAX_REQUEST_ID:
            raise bad_request(f"request_id: has more than {MAX_REQUEST_ID} characters", "request_id")
        running, key = _Running(self._service.registry), (self._tenant(asked), named)
        if named and self._running.setdefault(key, running) is not running:
            raise ApiError(409, f"request_id: a request {named!r} runs already", "request_id", "request_id_in_use")
        try:
            yield running
        finally:
            if named:
                del self._running[key]
            running.end(FinishReason.TIMEOUT if asked.late else FinishReason.ABORT)


class _Running:
    """A request from its arrival to its end."""

    def __init__(self, registry: RequestRegistry) -> None:
        self._registry = registry
        self._call: Call | None = None
        self._reason: FinishReason | None = None

    def begin(self, call: Call) -> Call:
        """Keep its generations. Where the request was ended before, they end at once."""
        self._call = call
        if self._reason is not None:
            self.end(self._reason)
        return call

    def end(self, reason: FinishReason) -> None:
        """End the generations that have not ended."""
        self._reason = reason
        for choice in () if self._call is None else self._call.choices:
            self._registry.end(choice, reason)


class _Updates:
    """Choices of a call with updates. While a message waits for its client, updates gather."""

    def __init__(self, call: Call) -> None:
        self._changed: dict[Generation, None] = {}
        self._news = asyncio.Event()
        self._unfinished = {*call.choices}
        call.inbox.read(self._read)

    def __aiter__(self) -> _Updates:
        return self

    async def __anext__(self) -> tuple[Generation, bool]:
        """A choice with unsent output, and whether it is complete.

        Raises:
            ApiError: the choice failed.
        """
        while self._unfinished:
            while not self._changed:
                self._news.clear()
                await self._news.wait()
            choice = next(iter(self._changed))
            del self._changed[choice]
            if choice not in self._unfinished:
                continue
            if choice.error is not None:
                raise choice.error
            if choice.done:
                self._unfinished.remove(choice)
            return choice, choice.done
        raise StopAsyncIteration

    def _read(self, changed: Sequence[Generation]) -> None:
        self._changed.update(dict.fromkeys(changed))
        self._news.set()


def _reached_at(client: str) -> str:
    """The address of this machine that a client reaches, which gRPC does not tell: that of the way back. Nothing is
    sent. Empty: there is no way."""
    family = socket.AF_INET6 if ":" in client else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((client, 9))
        return str(probe.getsockname()[0])
    return ""


async def _made(message: Callable[[], pb.GenerateResponse], piece: Piece) -> pb.GenerateResponse:
    """A message, in a thread where its log-probabilities are many."""
    return message() if piece.num_scored < MANY_SCORED_TOKENS else await asyncio.to_thread(message)
