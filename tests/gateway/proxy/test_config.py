"""The configuration that the program prints, checked by Envoy itself."""

from __future__ import annotations

import json

import pytest

from tests.gateway.proxy import tokens
from tests.gateway.proxy.certificates import new_certificate

TLS = ("--tls-dir", "{folder}")
JWKS = ("--jwt-issuer", "https://issuer.example", "--jwt-audience", "a", "--jwt-audience", "b")


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--relays", "8", "--requests-per-second", "100", "--idle-timeout", "0.5"),
        TLS,
        (*TLS, "--port", "0"),
        (*JWKS, "--jwks-file", "{folder}/jwks.json", "--jwt-tenant-claim", "realm.team"),
        (*JWKS, "--jwks-uri", "https://issuer.example:8443/keys", "--jwks-ca", "{folder}/tls.crt"),
        (*TLS, *JWKS, "--jwks-uri", "https://127.0.0.1/keys", "--jwks-ca", "{folder}/tls.crt"),
    ],
)
def test_envoy_takes_the_whole_configuration_from_a_file(edge, tmp_path, flags):
    new_certificate(tmp_path, "first")
    (tmp_path / "jwks.json").write_text(tokens.Issuer().jwks)
    edge.validate(*(flag.format(folder=tmp_path) for flag in flags))
    config = json.loads((tmp_path / "envoy.json").read_text())
    assert "dynamic_resources" not in config


def test_a_port_is_served_with_tls_only_where_the_other_one_is_off(edge, tmp_path):
    def listeners(*flags):
        resources = json.loads(edge.configure(*flags).read_text())["static_resources"]["listeners"]
        return [one["name"] for one in resources]

    new_certificate(tmp_path, "first")
    assert listeners() == ["http"]
    assert listeners("--tls-dir", str(tmp_path)) == ["http", "https"]
    assert listeners("--tls-dir", str(tmp_path), "--port", "0") == ["https"]
