"""The certificate of the port for other gateways.

Gateways connect to an endpoint picker with TLS and do not verify its certificate: an InferencePool has no field for an
authority, and the reference endpoint picker of the Gateway API Inference Extension signs its own certificate at its
start, too (its flag --secure-serving, true by default).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

VALID_DAYS = 3650
"""As the reference endpoint picker's. The certificate is new with each start of the picker."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM. Attributes: private_key: not encrypted."""

    chain: str
    private_key: str = field(repr=False)


def self_signed(name: str) -> Certificate:
    """A new key and its certificate. Args: name: the subject."""
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
