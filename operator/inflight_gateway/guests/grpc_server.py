"""The gRPC server of external processing for other gateways, with a self-signed certificate.

Gateways connect to an endpoint picker with TLS and do not verify its certificate: an InferencePool has no field for an
authority, and the reference endpoint picker of the Gateway API Inference Extension signs its own certificate at its
start, too (its flag --secure-serving, true by default).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc

from inflight_base.manifest.slices import address_of
from inflight_gateway.guests.endpoint_picker import EndpointPickerProcessor
from inflight_gateway.settings import MAX_BODY_BYTES, any_address

VALID_DAYS = 3650
"""Validity of the certificate, equal to the reference endpoint picker's. Each start makes a new one."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate chain and its key, in PEM. Attributes: private_key: not encrypted."""

    chain: str
    private_key: str = field(repr=False)


def self_signed(name: str) -> Certificate:
    """Makes a key and its certificate. Args: name: subject of the certificate."""
    # Only a gateway that serves other gateways needs the library.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of other nodes may be behind.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private_key = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(certificate.public_bytes(encoding).decode(), private_key.decode())


_OPTIONS = (
    # gRPC's default limit of 4 MiB is below the maximum size of a request body.
    ("grpc.max_receive_message_length", MAX_BODY_BYTES + 2**20),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)


async def serve_endpoint_picker(
    port: int, processor: EndpointPickerProcessor, certificate: Certificate | None
) -> grpc.aio.Server:
    """Listens on a TCP port of all addresses until stopped.

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
