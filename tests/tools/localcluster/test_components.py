"""Command lines and configurations of the components agree with each other."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

from tools.localcluster.images import image_store
from tools.localcluster.node.addresses import CANDIDATES, Ports
from tools.localcluster.node.plane import ApiPlane
from tools.localcluster.node.settings import Settings
from tools.localcluster.programs import coredns, node_programs

NETWORK = CANDIDATES[0]
ROOT, BIN = Path("/c"), Path("/bin/x")
PLANE = ApiPlane(ROOT, Settings(NETWORK, Ports()), with_node=True)


def flags(program):
    return dict(argument.split("=", 1) for argument in program.argv[1:])


def api_flags(*, with_node=True):
    return flags(replace(PLANE, with_node=with_node).apiserver(BIN))


def test_etcd_listens_on_loopback_and_asks_for_certificates():
    seen = flags(PLANE.etcd(BIN))
    assert seen["--listen-client-urls"] == "https://127.0.0.1:2379"
    assert seen["--client-cert-auth"] == seen["--peer-client-cert-auth"] == "true"
    assert seen["--trusted-ca-file"] == "/c/pki/etcd-ca.crt"


def test_the_api_server_speaks_to_that_etcd_with_a_certificate_of_its_authority():
    seen = api_flags()
    assert seen["--etcd-servers"] == "https://127.0.0.1:2379"
    assert seen["--etcd-cafile"] == "/c/pki/etcd-ca.crt"
    assert seen["--authorization-mode"] == "Node,RBAC"
    assert seen["--anonymous-auth"] == "false"


def test_the_api_server_answers_only_at_the_nodes_address():
    assert api_flags()["--bind-address"] == api_flags()["--advertise-address"] == "10.244.0.1"


def test_without_a_node_the_api_server_knows_no_kubelet_and_publishes_no_endpoint():
    seen = api_flags(with_node=False)
    assert seen["--endpoint-reconciler-type"] == "none"
    assert not any(name.startswith("--kubelet") for name in seen)


def test_its_certificate_covers_every_address_it_is_spoken_to_at():
    assert set(PLANE.certificate_addresses) == {"127.0.0.1", "10.244.0.1", "10.96.0.1"}


def test_controller_manager_and_scheduler_stay_on_loopback_without_election():
    for program in (PLANE.controller_manager(BIN), PLANE.scheduler(BIN)):
        seen = flags(program)
        assert seen["--bind-address"] == "127.0.0.1"
        assert seen["--leader-elect"] == "false"


def test_service_account_keys_are_a_pair():
    signing = api_flags()["--service-account-signing-key-file"]
    assert signing == flags(PLANE.controller_manager(BIN))["--service-account-private-key-file"]


def test_the_kubelet_uses_the_clusters_dns_and_leaves_the_hosts_iptables_alone():
    seen = node_programs.kubelet_configuration(PLANE, Path("/run/c.sock"))
    assert seen["clusterDNS"] == ["10.96.0.10"]
    assert seen["containerRuntimeEndpoint"] == "unix:///run/c.sock"
    assert seen["makeIPTablesUtilChains"] is False
    assert seen["authentication"]["anonymous"]["enabled"] is False
    json.dumps(seen)


def test_pods_get_no_name_server_on_loopback():
    host = (
        "# comment\nnameserver 127.0.0.53\nnameserver 10.0.0.1\nnameserver ::1\nnameserver fe80::1%eth0\nsearch a b\n"
    )
    assert (
        node_programs.resolver_configuration(host)
        == "# comment\nnameserver 10.0.0.1\nnameserver fe80::1%eth0\nsearch a b\n"
    )
    assert node_programs.resolver_configuration("nameserver 127.0.0.1\n") == ""


def test_kube_proxy_uses_nftables_and_changes_no_conntrack_limit():
    seen = node_programs.kube_proxy_configuration(PLANE)
    assert seen["mode"] == "nftables"
    assert set(seen["conntrack"].values()) == {0, "0s"}
    assert seen["nodePortAddresses"] == ["10.244.0.1/32"]


def test_containerds_configuration_is_toml_with_own_folders():
    text = image_store.containerd_configuration(
        Path("/s"), Path("/run/i"), Path("/run/i/c.sock"), Path("/cni"), Path('/conf "d"')
    )
    seen = tomllib.loads(text)
    assert seen["version"] == 3
    assert (seen["root"], seen["state"]) == ("/s/containerd", "/run/i/containerd")
    runtime = seen["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["cni"] == {"bin_dirs": ["/cni"], "conf_dir": '/conf "d"'}
    assert runtime["netns_mounts_under_state_dir"] is True
    assert seen["plugins"]["io.containerd.cri.v1.images"]["pinned_images"]["sandbox"] == image_store.PAUSE_IMAGE


def test_containerd_finds_its_shim_beside_itself_first():
    program = image_store.containerd(Path("/b/containerd"), Path("/c.toml"), "/usr/bin")
    assert program.environment["PATH"] == "/b:/usr/bin"


def test_pods_get_addresses_of_the_pods_range_and_the_node_as_gateway():
    seen = image_store.network_configuration(NETWORK, Path("/leases"))
    ipam = seen["plugins"][0]["ipam"]
    assert ipam["ranges"] == [[{"subnet": "10.244.0.0/24", "gateway": "10.244.0.1"}]]
    assert ipam["dataDir"] == "/leases"


def test_coredns_forwards_only_to_a_server_that_is_there():
    assert "forward . /etc/resolv.conf" in coredns.corefile(upstream=True)
    assert "forward" not in coredns.corefile(upstream=False)


def test_the_dns_service_selects_the_dns_pods_at_the_fixed_address():
    objects = {item["kind"]: item for item in coredns.manifests(NETWORK, "localhost/coredns:x", True)}
    service, template = objects["Service"]["spec"], objects["Deployment"]["spec"]["template"]
    assert service["clusterIP"] == "10.96.0.10"
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert template["spec"]["containers"][0]["image"] == "localhost/coredns:x"


def test_buildkit_builds_into_kubernetes_namespace_and_bounds_its_cache():
    seen = tomllib.loads(
        image_store.buildkit_configuration(Path("/s"), Path("/b.sock"), Path("/o.sock"), Path("/c.sock"))
    )
    assert seen["worker"]["containerd"]["namespace"] == "k8s.io"
    assert seen["worker"]["containerd"]["maxUsedSpace"] == image_store.CACHE_LIMIT_BYTES
    assert seen["worker"]["oci"]["enabled"] is False


def test_a_build_goes_uncompressed_and_unpacked_into_the_store():
    command = image_store.build_command(
        ["buildctl"],
        Path("/repo"),
        Path("/repo/operator/Dockerfile"),
        image_store.into_store("localhost/i:dev"),
        {"BASE": "b:1"},
    )
    assert "--output=type=image,name=localhost/i:dev,unpack=true,compression=uncompressed" in command
    assert "--local=context=/repo" in command
    assert "--local=dockerfile=/repo/operator" in command
    assert "--opt=build-arg:BASE=b:1" in command
