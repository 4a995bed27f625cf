"""Keys and certificates of a cluster, generated once: three authorities and the certificates they sign.

One authority for the cluster's clients and servers, one for etcd and one for the aggregation layer's front proxy,
so that a kubelet's certificate opens neither etcd nor the front proxy's right to speak for others
(https://kubernetes.io/docs/setup/best-practices/certificates/).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 3650
AUTHORITIES = ("ca", "etcd-ca", "front-proxy-ca")


@dataclass(frozen=True)
class Leaf:
    """A certificate to sign: `NAME.crt` and `NAME.key`, by the authority `authority`."""

    name: str
    common_name: str
    organization: str | None = None
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    authority: str = "ca"


def control_plane_leaves(addresses: Sequence[str]) -> tuple[Leaf, ...]:
    """Certificates of etcd, the API server and an administrator; `addresses` are those the API server answers at."""
    service_names = tuple(
        f"kubernetes{suffix}" for suffix in ("", ".default", ".default.svc", ".default.svc.cluster.local")
    )
    return (
        Leaf("etcd", "etcd", dns_names=("localhost",), addresses=("127.0.0.1",), authority="etcd-ca"),
        Leaf("apiserver", "kube-apiserver", dns_names=("localhost", *service_names), addresses=tuple(addresses)),
        Leaf("apiserver-etcd", "kube-apiserver", authority="etcd-ca"),
        Leaf("front-proxy", "front-proxy-client", authority="front-proxy-ca"),
        # system:masters cannot be taken away: right for a throw-away cluster's administrator.
        Leaf("admin", "inflight-admin", organization="system:masters"),
    )


def node_leaves(node_name: str, address: str) -> tuple[Leaf, ...]:
    """Certificates of the other components of a single node, by the user names that Kubernetes' default roles bind."""
    return (
        Leaf("apiserver-kubelet", "kube-apiserver-kubelet-client", organization="system:masters"),
        Leaf("controller-manager", "system:kube-controller-manager"),
        Leaf("scheduler", "system:kube-scheduler"),
        Leaf("kube-proxy", "system:kube-proxy"),
        Leaf(
            "kubelet",
            f"system:node:{node_name}",
            organization="system:nodes",
            dns_names=(node_name,),
            addresses=(address,),
        ),
    )


def ensure(folder: Path, leaves: Sequence[Leaf]) -> bool:
    """Write authorities, the service accounts' key pair and `leaves` into `folder`, unless they are there.

    A stamp written last tells a whole set from one that was cut. True when new ones were made.
    """
    stamp = folder / "complete"
    wanted = repr(tuple(leaves))
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    authorities = {name: _authority(folder, name) for name in AUTHORITIES}
    accounts = ec.generate_private_key(ec.SECP256R1())
    _write_key(folder / "service-accounts.key", accounts)
    (folder / "service-accounts.pub").write_bytes(
        accounts.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    for leaf in leaves:
        key = ec.generate_private_key(ec.SECP256R1())
        _write_key(folder / f"{leaf.name}.key", key)
        certificate = _leaf_certificate(leaf, key, *authorities[leaf.authority])
        (folder / f"{leaf.name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    stamp.write_text(wanted)
    return True


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(folder: Path, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"inflight-{name}")])
    certificate = (
        _builder(subject, subject, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(folder / f"{name}.key", key)
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def _leaf_certificate(
    leaf: Leaf, key: ec.EllipticCurvePrivateKey, issuer: x509.Certificate, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, leaf.common_name)]
    if leaf.organization:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, leaf.organization))
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in leaf.dns_names]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in leaf.addresses]
    builder = (
        _builder(x509.Name(attributes), issuer.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
