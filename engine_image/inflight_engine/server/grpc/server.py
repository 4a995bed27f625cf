"""The gRPC server on a port of its own."""

from __future__ import annotations

from typing import Any

import grpc
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from inflight_contract.errors import ApiError
from inflight_engine.server.grpc.calls import Asked, Behaviour, call, probe
from inflight_engine.server.grpc.vllm_engine import VllmEngine
from inflight_engine.server.http.api_keys import ApiKeys
from inflight_engine.server.http.middleware import Edge, OpenResponses
from inflight_engine.server.service import Service

SERVICE = "vllm.grpc.engine.VllmEngine"

MAX_MESSAGE_BYTES = 8 * 2**20
"""Room for the longest prompts as token ids. Parsing takes up to 0.1 s for so many bytes, and holds up all streams."""

_CALLS_BESIDE = 64
"""Calls of a connection beside those that generate."""


async def serve_grpc(service: Service, responses: OpenResponses) -> tuple[grpc.aio.Server, int]:
    """Start the server. Returns it with its port.

    Raises:
        OSError: the port is in use, or the address not this machine's.
    """
    config = service.config
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", -1),
            # Two servers would share the port, each with half of the connections.
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", config.max_queued_requests + config.engine.max_num_seqs + _CALLS_BESIDE),
            # Requests of a client that vanished without a word end within a minute.
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            # Routers ping idle connections; by default that closes them.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        )
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _handlers(service, responses)),))
    host = f"[{config.host}]" if ":" in config.host else config.host
    try:
        port = server.add_insecure_port(f"{host}:{config.grpc_port}")
    except RuntimeError as error:
        raise OSError(f"cannot listen on {config.host} port {config.grpc_port} for gRPC: {error}") from error
    await server.start()
    return server, port


def _handlers(service: Service, responses: OpenResponses) -> dict[str, Any]:
    """Handlers by the names of calls. Messages come as bytes: they are parsed when the key of the call is known."""
    engine, edge, keys = VllmEngine(service), Edge(service, responses), ApiKeys(service.config.api_key)
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler

    def framed(name: str, kind: type[Any], answer: Any, *, counted: bool = False) -> Behaviour:
        return call(f"/{SERVICE}/{name}", kind, answer, edge, keys, counted=counted)

    def refused(name: str, kind: type[Any], why: str) -> Behaviour:
        async def refuse(message: Any, asked: Asked) -> None:
            raise ApiError(501, f"{name}: {why}", code="unimplemented")

        return framed(name, kind, refuse)

    no_profile = "this server has no profiler"
    return {
        "Generate": stream(framed("Generate", pb.GenerateRequest, engine.generate, counted=True)),
        "Embed": unary(framed("Embed", pb.EmbedRequest, engine.embed, counted=True)),
        "Abort": unary(framed("Abort", pb.AbortRequest, engine.abort)),
        "HealthCheck": unary(probe(pb.HealthCheckRequest, engine.health)),
        "GetLoads": unary(probe(pb.GetLoadsRequest, engine.loads)),
        "GetModelInfo": unary(framed("GetModelInfo", pb.GetModelInfoRequest, engine.model_info)),
        "GetServerInfo": unary(framed("GetServerInfo", pb.GetServerInfoRequest, engine.server_info)),
        "GetTokenizer": stream(framed("GetTokenizer", common_pb2.GetTokenizerRequest, engine.tokenizer)),
        "SubscribeKvEvents": stream(framed("SubscribeKvEvents", common_pb2.SubscribeKvEventsRequest, engine.kv_events)),
        "FlushCache": unary(
            refused("FlushCache", common_pb2.FlushCacheRequest, "the prefix cache is the engine's own")
        ),
        "StartProfile": unary(refused("StartProfile", common_pb2.StartProfileRequest, no_profile)),
        "StopProfile": unary(refused("StopProfile", common_pb2.StopProfileRequest, no_profile)),
    }
