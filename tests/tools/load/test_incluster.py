"""A pod's output comes as it was written. A script stands in for kubectl here."""

from tools.testbed import incluster
from tools.testbed.incluster import ScriptPod


def test_a_character_that_comes_in_two_pieces_is_whole(tmp_path, monkeypatch):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\nprintf 'caf\\303'; sleep 0.2; printf '\\251 au lait'\n")
    kubectl.chmod(0o755)
    monkeypatch.setattr(incluster, "binary", lambda: str(kubectl))
    monkeypatch.setattr(incluster, "kubeconfig_path", lambda: tmp_path / "config")
    monkeypatch.setattr(incluster, "environment", lambda kubeconfig: {})
    assert "".join(ScriptPod("default", "ask").follow()) == "café au lait"
