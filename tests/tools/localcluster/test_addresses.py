"""Address ranges and ports meet nothing that the machine uses."""

from __future__ import annotations

import ipaddress
import itertools
import socket
from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from tools.localcluster.node import addresses, host, settings
from tools.localcluster.node.addresses import CANDIDATES, Network, Ports
from tools.localcluster.node.settings import Settings


def test_the_usual_ranges_are_taken_where_nothing_is_in_the_way():
    assert addresses.choose_network(["192.168.1.0/24"]) == Network("10.244.0.0/24", "10.96.0.0/16")


def test_a_route_over_the_usual_range_moves_the_cluster():
    chosen = addresses.choose_network(["10.244.3.0/16"])
    assert chosen == CANDIDATES[1]
    assert addresses.choose_network(["10.96.7.0/24"]).services != "10.96.0.0/16"


def test_no_free_range_gives_none():
    assert addresses.choose_network(["0.0.0.0/1", "128.0.0.0/1"]) is None


networks = st.builds(
    lambda address, prefix: str(ipaddress.ip_network((address, prefix), strict=False)),
    st.integers(0, 2**32 - 1),
    st.integers(8, 32),
)


@given(st.lists(networks, max_size=6))
def test_what_is_chosen_overlaps_no_route(routes):
    chosen = addresses.choose_network(routes)
    if chosen:
        for route, own in itertools.product(routes, (chosen.pods, chosen.services)):
            assert not ipaddress.ip_network(route).overlaps(ipaddress.ip_network(own))


def test_pods_and_services_of_a_candidate_are_apart():
    for candidate in CANDIDATES:
        assert not ipaddress.ip_network(candidate.pods).overlaps(ipaddress.ip_network(candidate.services))


def test_fixed_addresses_are_inside_their_ranges():
    network = CANDIDATES[0]
    assert (network.node_address, network.api_service, network.dns_service) == ("10.244.0.1", "10.96.0.1", "10.96.0.10")


def test_default_routes_and_the_nodes_own_are_no_obstacle():
    output = (
        '[{"dst":"default","dev":"eth0"},{"dst":"10.0.0.0/8","dev":"tun0"},{"dst":"10.244.0.2","dev":"inflight0"},'
        '{"dst":"192.168.1.5","dev":"eth0"}]'
    )
    assert host.parse_routes(output) == ["10.0.0.0/8", "192.168.1.5"]
    assert host.parse_routes("") == []


def test_usual_ports_are_kept_where_free_and_replaced_where_not():
    free = itertools.count(40000)
    chosen = addresses.choose_ports(lambda port: port not in (6443, 40000), lambda: next(free))
    assert chosen.etcd == Ports().etcd
    assert chosen.apiserver == 40001


@given(st.sets(st.sampled_from(astuple(Ports()))))
def test_chosen_ports_are_all_different_and_free(taken):
    free = itertools.chain(astuple(Ports()), itertools.count(40000))
    chosen = astuple(addresses.choose_ports(lambda port: port not in taken, lambda: next(free)))
    assert len(set(chosen)) == len(chosen)
    assert not taken & set(chosen)


def test_a_port_with_a_listener_is_not_free():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not addresses.port_is_free(listener.getsockname()[1])


def test_ports_for_a_throw_away_plane_are_different():
    ports = astuple(addresses.free_ports())
    assert len(set(ports)) == len(ports)


def test_settings_survive_being_written(tmp_path):
    kept = Settings(CANDIDATES[1], Ports(apiserver=7000))
    assert Settings.from_json(kept.to_json()) == kept
    assert settings.load(tmp_path) is None
    (tmp_path / "settings.json").write_text(kept.to_json())
    assert settings.load_or_choose(tmp_path) == kept
