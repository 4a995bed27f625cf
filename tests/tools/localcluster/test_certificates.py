"""The cluster's keys and certificates."""

from __future__ import annotations

import base64
import stat

import pytest
import yaml
from cryptography import x509

from tools.localcluster.node import certificates


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster") / "pki"
    leaves = (
        *certificates.control_plane_leaves(["127.0.0.1", "10.96.0.1"]),
        *certificates.node_leaves("node-a", "10.244.0.1"),
    )
    assert certificates.ensure(folder, leaves)
    return folder, leaves


def read(folder, name):
    return x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())


def test_every_leaf_is_signed_by_its_own_authority_and_no_other(pki):
    folder, leaves = pki
    for leaf in leaves:
        for authority in certificates.AUTHORITIES:
            if authority == leaf.authority:
                read(folder, leaf.name).verify_directly_issued_by(read(folder, authority))
            else:
                with pytest.raises(ValueError, match="does not match"):
                    read(folder, leaf.name).verify_directly_issued_by(read(folder, authority))


def test_the_api_servers_names_are_in_its_certificate(pki):
    names = read(pki[0], "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)
    assert {str(address) for address in names.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "10.96.0.1"}


def test_the_kubelet_is_who_the_node_authorizer_expects(pki):
    subject = read(pki[0], "kubelet").subject.rfc4514_string()
    assert "CN=system:node:node-a" in subject
    assert "O=system:nodes" in subject


def test_keys_are_readable_by_their_owner_alone(pki):
    keys = list(pki[0].glob("*.key"))
    assert len(keys) == len(pki[1]) + len(certificates.AUTHORITIES) + 1
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_a_whole_set_is_kept_and_a_cut_one_made_anew(tmp_path):
    leaves = certificates.control_plane_leaves(["127.0.0.1"])
    certificates.ensure(tmp_path / "pki", leaves)
    before = (tmp_path / "pki" / "admin.crt").read_bytes()
    assert not certificates.ensure(tmp_path / "pki", leaves)
    assert (tmp_path / "pki" / "admin.crt").read_bytes() == before
    (tmp_path / "pki" / "complete").unlink()
    assert certificates.ensure(tmp_path / "pki", leaves)
    assert (tmp_path / "pki" / "admin.crt").read_bytes() != before


def test_a_kubeconfig_holds_all_it_needs_and_is_private(pki):
    path = certificates.write_kubeconfig(pki[0], "admin", "https://127.0.0.1:6443")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    seen = yaml.safe_load(path.read_text())
    assert seen["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    certificate = base64.b64decode(seen["users"][0]["user"]["client-certificate-data"])
    assert certificate == (pki[0] / "admin.crt").read_bytes()
