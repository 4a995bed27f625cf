"""Keys, certificates and kubeconfigs of a cluster: three authorities and the certificates they sign, generated once.

One authority for the cluster's clients and servers, one for etcd and one for the aggregation layer's front proxy,
so that a kubelet's certificate opens neither etcd nor the front proxy's right to speak for others
(https://kubernetes.io/docs/setup/best-practices/certificates/).
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tools.localcluster.files import write_json, write_whole

VALID_DAYS = 3650
AUTHORITIES = ("ca", "etcd-ca", "front-proxy-ca")
_KEY_USES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


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

    A stamp written last distinguishes a whole set from an incomplete one. True when new ones were made.
    """
    stamp = folder / "complete"
    wanted = repr(tuple(leaves))
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    issuers = {name: _write_authority(folder, name) for name in AUTHORITIES}
    accounts = _new_key(folder, "service-accounts").public_key()
    (folder / "service-accounts.pub").write_bytes(
        accounts.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    for leaf in leaves:
        _write_leaf(folder, leaf, *issuers[leaf.authority])
    stamp.write_text(wanted)
    return True


def _new_key(folder: Path, name: str) -> ec.EllipticCurvePrivateKey:
    """A new key, written as `NAME.key` for its owner alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_whole(folder / f"{name}.key", pem.decode(), mode=0o600)
    return key


def _write_authority(folder: Path, name: str) -> tuple[x509.Name, ec.EllipticCurvePrivateKey]:
    key = _new_key(folder, name)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"inflight-{name}")])
    extensions = (x509.SubjectKeyIdentifier.from_public_key(key.public_key()),)
    _sign(folder / f"{name}.crt", subject, key.public_key(), subject, key, extensions, is_authority=True)
    return subject, key


def _write_leaf(folder: Path, leaf: Leaf, issuer: x509.Name, issuer_key: ec.EllipticCurvePrivateKey) -> None:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, leaf.common_name)]
    if leaf.organization:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, leaf.organization))
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in leaf.dns_names]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in leaf.addresses]
    extensions: list[x509.ExtensionType] = [
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
    ]
    if names:
        extensions.append(x509.SubjectAlternativeName(names))
    public = _new_key(folder, leaf.name).public_key()
    _sign(folder / f"{leaf.name}.crt", x509.Name(attributes), public, issuer, issuer_key, extensions)


def _sign(
    path: Path,
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    extensions: Sequence[x509.ExtensionType],
    *,
    is_authority: bool = False,
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    usage = dict.fromkeys(_KEY_USES, False) | {"digital_signature": True}
    usage |= {"key_cert_sign": is_authority, "crl_sign": is_authority}
    builder = (
        x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA256())
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_kubeconfig(pki: Path, user: str, server: str) -> Path:
    """Write `USER.kubeconfig` beside the user's certificate; its path. Programs may be reading an earlier one."""

    def data(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": data("ca.crt")}
    credentials = {"client-certificate-data": data(f"{user}.crt"), "client-key-data": data(f"{user}.key")}
    path = pki / f"{user}.kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "inflight",
        "clusters": [{"name": "inflight", "cluster": cluster}],
        "users": [{"name": "inflight", "user": credentials}],
        "contexts": [{"name": "inflight", "context": {"cluster": "inflight", "user": "inflight"}}],
    }
    write_json(path, content, mode=0o600)
    return path
