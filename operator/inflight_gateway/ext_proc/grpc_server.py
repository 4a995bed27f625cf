"""The gRPC servers: ADS and external processing for the Envoy of this pod; external processing for other gateways."""

from __future__ import annotations

from pathlib import Path

import grpc
from envoy.service.discovery.v3 import ads_pb2_grpc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc

from inflight_base.manifest.slices import address_of
from inflight_gateway.discovery.addresses import any_address
from inflight_gateway.ext_proc.certificate import Certificate
from inflight_gateway.ext_proc.guests import GuestProcessor
from inflight_gateway.ext_proc.server import Processor
from inflight_gateway.proxy.ads import Ads
from inflight_gateway.settings import MAX_BODY_BYTES

_OPTIONS = (
    # gRPC's default limit of 4 MiB is below the maximum size of a request body.
    ("grpc.max_receive_message_length", MAX_BODY_BYTES + 2**20),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)


async def serve(socket: Path, ads: Ads, processor: Processor) -> grpc.aio.Server:
    """Listens until stopped. `socket` must not exist."""
    server = grpc.aio.server(options=_OPTIONS)
    ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(ads, server)
    external_processor_pb2_grpc.add_ExternalProcessorServicer_to_server(processor, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server


async def serve_guests(port: int, processor: GuestProcessor, certificate: Certificate | None) -> grpc.aio.Server:
    """Listens on a TCP port of all addresses until stopped. Other gateways do not get ADS, which would configure them.

    Args:
        certificate: None: without TLS.

    Raises:
        OSError: the port is in use.
    """
    server = grpc.aio.server(options=_OPTIONS)
    external_processor_pb2_grpc.add_ExternalProcessorServicer_to_server(processor, server)
    address = address_of(any_address(), port)
    try:
        if certificate is None:
            server.add_insecure_port(address)
        else:
            pair = certificate.private_key.encode(), certificate.chain.encode()
            server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError as error:
        raise OSError(f"cannot listen on port {port} for other gateways: {error}") from error
    await server.start()
    return server
