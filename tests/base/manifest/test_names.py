from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import POOL_PORTS, pool_port

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


@given(NAMES, NAMES)
def test_the_port_of_a_pool_is_one_of_those_that_the_chart_opens(namespace, name):
    assert pool_port(ServiceKey(namespace, name)) in POOL_PORTS


def test_the_port_of_a_pool_is_the_same_in_every_process_and_release():
    assert pool_port(ServiceKey("team", "chat")) == 20_030
