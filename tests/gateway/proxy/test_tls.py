"""A real Envoy with TLS, its certificate in a folder as the kubelet mounts a Secret."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest
from cryptography import x509

from tests.gateway.gateway_stack import until
from tests.gateway.proxy.certificates import new_certificate


class Secret:
    """A mounted Secret: files are links to a link to a folder, which is replaced as a whole."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self._count = 0
        self.write("first")
        for name in ("tls.crt", "tls.key"):
            (folder / name).symlink_to(f"..data/{name}")

    def write(self, name):
        self._count += 1
        new = self.folder / f"..{self._count}"
        new.mkdir()
        new_certificate(new, name)
        link = self.folder / "..data_tmp"
        link.symlink_to(new.name)
        link.rename(self.folder / "..data")


def served_name(port, alpn="http/1.1"):
    """The name in the certificate, of a new connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([alpn])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain, context.wrap_socket(plain) as tls:
        assert tls.selected_alpn_protocol() == alpn
        (name,) = x509.load_der_x509_certificate(tls.getpeercert(True)).subject
        return name.value


async def test_a_renewed_certificate_is_served_without_a_restart(edge, tmp_path):
    secret = Secret(tmp_path / "tls")
    await edge.start("--tls-dir", str(secret.folder))
    assert await asyncio.to_thread(served_name, edge.tls_port) == "first"
    assert await asyncio.to_thread(served_name, edge.tls_port, "h2") == "first"
    trusted = ssl.create_default_context(cafile=secret.folder / "tls.crt")
    status, body, _ = await edge.ask(tls=trusted)
    assert (status, body) == (200, {"served": True})
    secret.write("second")

    async def renewed():
        return await asyncio.to_thread(served_name, edge.tls_port) == "second"

    await until(renewed, "new connections get the new certificate", 60)


@pytest.mark.parametrize("plain", [True, False])
async def test_the_port_without_tls_stays_unless_it_is_turned_off(edge, tmp_path, plain):
    secret = Secret(tmp_path / "tls")
    await edge.start("--tls-dir", str(secret.folder), *([] if plain else ["--port", "0"]))
    try:
        assert (await edge.ask())[0] == 200
        assert plain
    except OSError:
        assert not plain


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_old_versions_of_tls_are_refused(edge, tmp_path):
    secret = Secret(tmp_path / "tls")
    await edge.start("--tls-dir", str(secret.folder))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", edge.tls_port), timeout=5) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)
