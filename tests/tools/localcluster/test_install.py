"""An installation that was killed goes on when it is started again."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.localcluster import ClusterError, apiserver_only, kubeconfig_path, kubectl
from tools.localcluster.programs.kubectl_program import environment
from tools.testbed import install
from tools.testbed.helm import CHART, OPERATOR_NAMESPACE, RELEASE, helm

UPGRADE = ("upgrade", "--install", RELEASE, str(CHART))
UPGRADE += ("--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--set", "image.repository=localhost/x")


@pytest.mark.contract
def test_helm_killed_in_the_middle_does_not_stop_the_next_install(tmp_path, monkeypatch):
    with apiserver_only(tmp_path) as kubeconfig:
        monkeypatch.setenv("INFLIGHT_KUBECONFIG", str(kubeconfig))
        install.forget_cut_release()  # on a new cluster there is nothing to forget
        # Without a node the operator never gets ready, so that helm waits until it is killed.
        command = [str(Path(sys.executable).parent / "helm"), *UPGRADE, "--wait", "--timeout", "2m"]
        with subprocess.Popen(command, env=environment(kubeconfig_path()), stdout=subprocess.DEVNULL) as running:
            deadline = time.monotonic() + 60
            listing = ("-n", OPERATOR_NAMESPACE, "get", "deployments", "-o", "name")
            while not kubectl(*listing):
                assert time.monotonic() < deadline
                time.sleep(0.2)
            running.kill()
        with pytest.raises(ClusterError, match="in progress"):
            helm(*UPGRADE)
        install.forget_cut_release()
        helm(*UPGRADE)
        assert "STATUS: deployed" in helm("status", RELEASE, "--namespace", OPERATOR_NAMESPACE)
