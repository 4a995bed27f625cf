"""The command line: help, wrong usage, and a way to the cluster that is missing."""

import json
import socket

import pytest

from inflight_operator import cli
from inflight_operator.cli import main


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--help"])
    assert ended.value.code == 0
    assert "inflight-operator run --kubeconfig" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["run"],
        ["run", "--engine-image", "x", "--metrics-port", "70000"],
        ["run", "--engine-image", "x", "--interval", "0"],
        ["run", "--engine-image", "x", "--interval", "soon"],
        ["run", "--engine-image", "x", "--engine-upgrades-at-once", "0"],
        ["run", "--engine-image", "x", "--engine-upgrades-at-once", "0%"],
        ["run", "--engine-image", "x", "--engine-upgrade-stuck-services", "101%"],
        ["run", "--engine-image", "x", "--engine-upgrade-stuck-services", "-1"],
        ["run", "--engine-image", "x", "--class-name", "Team"],
        ["run", "--engine-image", "x", "--engine-traces-sampling-ratio", "nan"],
        ["run", "--engine-image", "x", "--gateway-service", "inflight-gateway"],
        ["run", "--engine-image", "x", "--gateway-service", "inflight-gateway.system.svc"],
        ["run", "--engine-image", "x", "--gateway-service", "http://g.system.svc.cluster.local"],
    ],
)
def test_wrong_usage_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "usage: inflight-operator" in said
    assert "invalid _" not in said


POD = {"podSelector": {"matchLabels": {"app": "web"}}}


@pytest.mark.parametrize("flag", ["--client-peers", "--admin-peers"])
@pytest.mark.parametrize(
    ("peers", "why"),
    [
        ({}, "it must be a JSON list of NetworkPolicyPeer objects"),
        ([1], "item 0: Input should be a valid dictionary"),
        ([POD, {}], "item 1: it needs podSelector, namespaceSelector or both, or else ipBlock alone"),
        ([{**POD, "ipBlock": {"cidr": "10.0.0.0/8"}}], "item 0: it needs podSelector"),
        ([{"podSelektor": {}}], "item 0: podSelektor: Extra inputs are not permitted"),
        ([{"pod_selector": {}}], "item 0: pod_selector: Extra inputs are not permitted"),
        ([{"ipBlock": {}}], "item 0: ipBlock.cidr: Field required"),
        ([{"ipBlock": {"cidr": "10.0.0.1"}}], "item 0: ipBlock: '10.0.0.1' is not a block of addresses"),
        ([{"ipBlock": {"cidr": "10.0.0.0/33"}}], "item 0: ipBlock: '10.0.0.0/33' is not a block of addresses"),
        ([{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}], "which is not a part of 10.0.0.0/8"),
        ([{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["fd00::/16"]}}], "which is not a part of 10.0.0.0/8"),
        ([{"podSelector": {"matchLabels": {"a b": "c"}}}], "item 0: podSelector: 'a b' is not the key of a label"),
        ([{"podSelector": {"matchLabels": {"a": "b c"}}}], "item 0: podSelector: 'b c' is not the value of a label"),
        ([{"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}], "In and NotIn need values"),
    ],
)
def test_peers_that_the_api_server_would_refuse_are_wrong_usage(flag, peers, why, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--engine-image", "x", flag, json.dumps(peers)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"argument {flag}: " in said
    assert why in said


@pytest.mark.parametrize(
    "wrong",
    [
        ["--model-cache-claim=A b"],
        ["--model-cache-host-path=cache"],
        ["--model-cache-host-path=/var/../etc"],
        ["--model-cache-claim=models", "--model-cache-size=0"],
        ["--model-cache-claim=models", "--model-cache-host-path=/var/cache"],
    ],
)
def test_caches_that_cannot_be_are_wrong_usage(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--engine-image", "x", *wrong])
    assert ended.value.code == 2
    assert f"argument {wrong[-1].split('=')[0]}: " in capsys.readouterr().err


def test_peers_arrive_as_they_were_given(monkeypatch):
    taken = []

    async def run(options):
        taken.append(options)
        return 0

    monkeypatch.setattr(cli, "run_operator", run)
    expressions = [
        {"key": "example.com/tier", "operator": "In", "values": ["a", ""]},
        {"key": "b", "operator": "Exists"},
    ]
    peers = [
        POD,
        {"podSelector": {}, "namespaceSelector": {"matchExpressions": expressions}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        {"ipBlock": {"cidr": "fd00::/8"}},
    ]
    assert main(["run", "--engine-image", "x", "--client-peers", json.dumps(peers)]) == 0
    assert taken[0].client_peers == tuple(peers)


def test_no_cluster_is_an_error_that_says_what_to_do(capsys, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["run", "--engine-image", "x", "--metrics-port", "0"]) == 1
    assert "give --kubeconfig FILE" in capsys.readouterr().err


def test_a_kubeconfig_that_does_not_exist_is_named(capsys, tmp_path):
    missing = tmp_path / "none.yaml"
    assert main(["run", "--engine-image", "x", "--metrics-port", "0", "--kubeconfig", str(missing)]) == 1
    assert f"cannot use kubeconfig {missing}: there is no such file" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(capsys, tmp_path):
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        "{current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {}}],"
        " clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]}"
    )
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["run", "--engine-image", "x", "--kubeconfig", str(kubeconfig), "--metrics-port", str(port)]
        assert main(arguments) == 1
    assert f"--metrics-port {port}: Address already in use" in capsys.readouterr().err


def test_namespaces_add_up_and_the_key_s_secret_has_a_name(monkeypatch):
    taken = []

    async def run(options):
        taken.append(options)
        return 0

    monkeypatch.setattr(cli, "run_operator", run)
    assert main(["run", "--engine-image", "x"]) == 0
    assert main(["run", "--engine-image", "x", "--namespace", "a", "--namespace=b", "--namespace=a"]) == 0
    assert [one.namespaces for one in taken] == [(), ("a", "b")]
    assert taken[0].key_secret == "inflight-operator-key"


def test_decisions_are_recorded_where_asked_for(monkeypatch, tmp_path, capsys):
    taken = []

    async def run(options):
        taken.append(options)
        return 0

    monkeypatch.setattr(cli, "run_operator", run)
    record = ["--record-decisions", str(tmp_path), "--record-service", "a/b", "--record-service=a/c", "--record-size=8"]
    assert main(["run", "--engine-image", "x"]) == 0
    assert main(["run", "--engine-image", "x", *record]) == 0
    assert [one.record_decisions for one in taken] == [None, tmp_path]
    assert (taken[1].record_services, taken[1].record_size) == (("a/b", "a/c"), 8)
    with pytest.raises(SystemExit):
        main(["run", "--engine-image", "x", "--record-service", "chat"])
    assert "'chat' is not NAMESPACE/NAME" in capsys.readouterr().err


def test_a_folder_for_the_recording_that_cannot_be_made_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "folder"
    assert main(["run", "--engine-image", "x", "--metrics-port", "0", "--record-decisions", str(folder)]) == 1
    assert str(folder) in capsys.readouterr().err
