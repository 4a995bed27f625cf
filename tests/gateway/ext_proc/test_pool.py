"""The operator and the picker compute the same port for an InferencePool."""

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.ext_proc.pool import POOL_PORTS, pool_port
from inflight_gateway.types import ServiceKey
from inflight_operator.render import inference_pool

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


@given(NAMES, NAMES)
def test_the_operator_points_the_picker_service_at_the_port_that_the_picker_listens_on(namespace, name):
    port = pool_port(ServiceKey(namespace, name))
    assert port in POOL_PORTS
    assert inference_pool.pool_port(namespace, name) == port


def test_the_port_of_a_pool_is_the_same_in_every_process_and_release():
    assert pool_port(ServiceKey("team", "chat")) == 20_030
