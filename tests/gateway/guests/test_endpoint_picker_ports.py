"""Ports for other gateways that another program has."""

from __future__ import annotations

import asyncio
import secrets
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import POOL_PORTS, pool_port
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.guests import endpoint_picker_ports
from inflight_gateway.guests.endpoint_picker_ports import EndpointPickerPorts, only_services
from inflight_gateway.types import ServiceConfig
from tests.gateway.gateway_stack import until
from tests.gateway.guests.test_exchange import Guests
from tests.gateway.requests.world import CONFIG
from tools.measure.served import free_port


@pytest.fixture
def taken():
    """A service with an InferencePool, and the socket of another program at the port of the pool."""
    while True:
        key = ServiceKey("ns", f"pool-{secrets.token_hex(4)}")
        other = socket.socket(socket.AF_INET6)
        try:
            other.bind(("::", pool_port(key)))
        except OSError:
            other.close()
            continue
        other.listen()
        with other:
            yield key, other
        return


async def test_a_pools_port_that_is_in_use_is_opened_once_it_is_free(taken, monkeypatch, caplog):
    monkeypatch.setattr(endpoint_picker_ports, "AGAIN_S", 0.05)
    key, other = taken
    ports = EndpointPickerPorts(Guests(replace(CONFIG, key=key, inference_pool=True)).parts, free_port(), tls=False)
    await ports.open()
    running = asyncio.create_task(ports.run())
    await asyncio.sleep(0.3)
    said = [record.getMessage() for record in caplog.records if "InferencePool" in record.getMessage()]
    assert len(said) == 1
    assert f"port {pool_port(key)}" in said[0]
    assert "--ext-proc-port" not in said[0]
    other.close()
    await until(lambda: pool_port(key) in ports._servers, "the port is open", 60)
    running.cancel()
    await ports.close()


async def test_the_shared_port_in_use_is_an_error_that_names_the_flag(taken):
    _, other = taken
    ports = EndpointPickerPorts(Guests().parts, other.getsockname()[1], tls=False)
    with pytest.raises(OSError, match="--ext-proc-port"):
        await ports.open()


def test_a_picker_without_these_ports_does_not_import_grpc():
    """It takes 40 MiB and a second."""
    code = "import sys, inflight_gateway.runtime; sys.exit(bool({'grpc', 'envoy', 'google'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
