"""API servers of other versions: their go.mod, and the table of what passed on them."""

from tools import kubernetes_versions
from tools.kubernetes_versions import main, module_of
from tools.localcluster import ClusterError
from tools.localcluster.programs import goparts
from tools.localcluster.programs.goparts import Part

GO_MOD = """module k8s.io/kubernetes

go 1.25.0

godebug default=go1.25

require (
\tk8s.io/api v0.0.0
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/apimachinery => ./staging/src/k8s.io/apimachinery
)
"""


def test_the_staged_modules_are_replaced_by_their_published_versions():
    text = module_of("v1.35.4", GO_MOD)
    assert "require k8s.io/kubernetes v1.35.4\n" in text
    assert "replace k8s.io/api => k8s.io/api v0.35.4\n" in text
    assert "replace k8s.io/apimachinery => k8s.io/apimachinery v0.35.4\n" in text
    assert "go 1.25.0\n" in text
    assert text.count("replace") == 2


def test_the_server_of_a_version_says_that_version():
    part = Part("kube-apiserver", "/cache/kubernetes-v1.35.4", (kubernetes_versions.COMMAND,))
    flags = goparts.linker_flags(part, module_of("v1.35.4", GO_MOD))
    assert "gitVersion=v1.35.4" in flags
    assert "gitMinor=35" in flags


def test_each_version_has_a_row_and_one_failure_fails_the_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path))
    ended = {"1.35": (0, "7 passed in 1.0s"), "1.34": (1, "1 failed, 6 passed in 1.0s")}
    monkeypatch.setattr(kubernetes_versions, "apiserver", lambda version, *_: (f"v{version}.9", version))
    monkeypatch.setattr(kubernetes_versions, "tested", lambda binary, _: ended[binary])
    assert main(["1.35"]) == 0
    assert main(["1.34", "1.35"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "| 1.34.9 | 1 failed, 6 passed in 1.0s |",
        "| 1.35.9 | 7 passed in 1.0s |",
    ]


def test_the_rows_so_far_are_shown_when_a_version_cannot_be_built(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path))

    def apiserver(version, *_):
        if version == "1.34":
            raise ClusterError("there is no module of Kubernetes 1.34")
        return f"v{version}.9", version

    monkeypatch.setattr(kubernetes_versions, "apiserver", apiserver)
    monkeypatch.setattr(kubernetes_versions, "tested", lambda *_: (0, "7 passed in 1.0s"))
    assert main(["1.35", "1.34"]) == 1
    shown = capsys.readouterr()
    assert "| 1.35.9 | 7 passed in 1.0s |" in shown.out
    assert "error: there is no module of Kubernetes 1.34" in shown.err
