"""The operator and the picker compute the same port for an InferencePool."""

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.ext_proc.guest_ports import only_services
from inflight_gateway.ext_proc.pool import POOL_PORTS, pool_port
from inflight_gateway.types import ServiceConfig, ServiceKey
from inflight_operator.render import inference_pool

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


@given(NAMES, NAMES)
def test_the_operator_points_the_picker_service_at_the_port_that_the_picker_listens_on(namespace, name):
    port = pool_port(ServiceKey(namespace, name))
    assert port in POOL_PORTS
    assert inference_pool.pool_port(namespace, name) == port


def test_the_port_of_a_pool_is_the_same_in_every_process_and_release():
    assert pool_port(ServiceKey("team", "chat")) == 20_030


def test_services_that_share_a_port_are_told_apart_by_their_requests():
    keys = [ServiceKey("team", f"s-{number}") for number in range(len(POOL_PORTS) + 1)]  # so two share one
    catalog = Catalog()
    catalog.update(services={key: ServiceConfig(key, "u", "m", inference_pool=True) for key in keys})
    found = only_services(catalog)
    assert set(found) == {pool_port(key) for key in keys}
    assert None in found.values()
    assert all(key is None or pool_port(key) == port for port, key in found.items())
    catalog.update(services={keys[0]: ServiceConfig(keys[0], "u", "m"), **dict.fromkeys(keys[1:])})
    assert only_services(catalog) == {}
