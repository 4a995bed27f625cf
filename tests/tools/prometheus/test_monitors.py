"""Access of Prometheus to a cluster, by its kubeconfig, and its targets there."""

import base64
from pathlib import Path

import pytest
import yaml

from tools.localcluster import ClusterError
from tools.prometheus.monitors import access


def kubeconfig(folder, user, **cluster):
    config = {
        "current-context": "here",
        "contexts": [{"name": "there", "context": {}}, {"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"} | cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def test_certificates_inside_a_kubeconfig_become_files_that_only_the_user_reads(tmp_path):
    def data(text):
        return base64.b64encode(text.encode()).decode()

    user = {"client-certificate-data": data("cert"), "client-key-data": data("key")}
    found = access(kubeconfig(tmp_path, user, **{"certificate-authority-data": data("ca")}), tmp_path)
    assert found.address == "10.0.0.1:6443"
    assert {name: Path(path).read_text() for name, path in found.tls.items()} == {
        "ca_file": "ca",
        "cert_file": "cert",
        "key_file": "key",
    }
    assert (tmp_path / "client-key.pem").stat().st_mode & 0o077 == 0


def test_files_and_tokens_of_a_kubeconfig_are_used(tmp_path):
    (tmp_path / "ca.crt").write_text("ca")
    config = kubeconfig(tmp_path, {"token": "secret"}, **{"certificate-authority": "ca.crt", "server": "https://k8s"})
    found = access(config, tmp_path)
    assert found.address == "k8s:443"
    assert {name: Path(path).read_text() for name, path in found.tls.items()} == {"ca_file": "ca"}
    assert Path(found.token_file).read_text() == "secret"


def test_a_user_without_certificate_and_token_is_an_error(tmp_path):
    with pytest.raises(ClusterError, match="neither a client certificate nor a token"):
        access(kubeconfig(tmp_path, {"exec": {"command": "login"}}), tmp_path)
