"""The gateway's discovery against a real API server, with the rights that the chart gives it and no others."""

import asyncio
import json
import socket
import sys
from contextlib import asynccontextmanager

import aiohttp
import pytest
from kubernetes.aio import client

from inflight_base.kube import reflector as reflector_module
from inflight_base.kube.client import KubeApi
from inflight_base.kube.connect import load_configuration
from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.discovery.kube import KubeDiscovery
from inflight_gateway.types import Endpoint, HoldBounds, RateLimits, ServiceConfig, TenantConfig
from tests.contract.cable import account_over_cable
from tests.contract.manifests import service_manifest
from tests.gateway.waiting import until

pytestmark = pytest.mark.contract

MODEL = {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}}

CLUSTER_RULES = [
    {"apiGroups": ["inflight.dev"], "resources": ["inferenceservices"], "verbs": ["list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
]
"""Rights of the gateway in every namespace."""


def secret_rules(*names):
    return [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": list(names), "verbs": ["list", "watch"]}]


def rbac(kind, name, namespace, body):
    metadata = {"name": name, **({} if kind.startswith("Cluster") else {"namespace": namespace})}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, **body}


def grant(kind, namespace, rules):
    """A role with these rules and its binding to the account `default` of the namespace."""
    name = f"gateway-{namespace}"
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    return [
        rbac(kind, name, namespace, {"rules": rules}),
        rbac(f"{kind}Binding", name, namespace, {"roleRef": ref, "subjects": [subject]}),
    ]


def engines_slice(namespace, *ips, draining=()):
    labels = {
        "inflight.dev/service": "chat",
        "kubernetes.io/service-name": "chat-engines",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    owner = {"apiVersion": "v1", "kind": "Service", "name": "chat-engines", "uid": "no-such-service"}
    metadata = {"namespace": namespace, "name": "chat-engines-x", "labels": labels, "ownerReferences": [owner]}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [ip],
                "conditions": {"ready": ip not in draining, "serving": True, "terminating": ip in draining},
                "targetRef": {"kind": "Pod", "name": f"chat-{ip}", "namespace": namespace},
            }
            for ip in ips
        ],
    }


def secret(namespace, name, **data):
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


@asynccontextmanager
async def discovering(kubectl, namespace, tmp_path, *, namespaces=()):
    path, cable = await account_over_cable(kubectl, namespace, tmp_path)
    catalog = Catalog()
    async with client.ApiClient(await load_configuration(str(path))) as api_client:
        discovery = KubeDiscovery(KubeApi(api_client), catalog, namespaces)
        task = asyncio.create_task(discovery.run())
        yield catalog, discovery, cable
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await cable.cut()


async def in_thread(function, *arguments):
    return await asyncio.to_thread(function, *arguments)


async def test_services_engines_and_keys_with_the_least_rights(kubectl, namespace, tmp_path):
    key, ref = ServiceKey(namespace, "chat"), ObjectKey(namespace, "keys")
    gateway = {
        "enabled": True,
        "hold": {"maxBytes": "1Mi"},
        "auth": {"apiKeysSecret": "keys"},
        "tenants": [{"name": "acme", "tokensPerMinute": 1000}],
    }
    kubectl.create(
        *grant("ClusterRole", namespace, CLUSTER_RULES),
        *grant("Role", namespace, secret_rules("keys")),
        service_manifest(namespace, {**MODEL, "gateway": gateway}),
        service_manifest(namespace, MODEL, "plain"),
        engines_slice(namespace, "10.1.0.1", "10.1.0.2", draining=["10.1.0.2"]),
        secret(namespace, "keys", one="1"),
    )
    async with discovering(kubectl, namespace, tmp_path) as (catalog, discovery, _):
        await until(lambda: not discovery.unready() and catalog.secret(ref))
        uid = kubectl.json("get", "ifsvc", "chat", "-n", namespace)["metadata"]["uid"]
        assert catalog.services[key] == ServiceConfig(
            key,
            uid,
            "chat",
            hold=HoldBounds(max_bytes=2**20),
            api_keys_secret="keys",
            tenants=(TenantConfig("acme", limits=RateLimits(tokens_per_minute=1000)),),
        )
        assert ServiceKey(namespace, "plain") not in catalog.services
        assert catalog.endpoints_of(key) == (Endpoint("10.1.0.1:8000", "chat-10.1.0.1"),)
        assert catalog.secret(ref) == {"one": b"1"}
        await in_thread(kubectl.create, secret(namespace, "keys", two="2"))
        await until(lambda: catalog.secret(ref) == {"one": b"1", "two": b"2"})
        # A Secret that it may not read: its service has no keys, and the others are served.
        patch = json.dumps({"spec": {"gateway": {"auth": {"apiKeysSecret": "other"}}}})
        await in_thread(kubectl.ok, "patch", "ifsvc", "chat", "-n", namespace, "--type=merge", "-p", patch)
        # Services of other tests stand in other namespaces, and this account may not read their Secrets either.
        await until(lambda: any(f"/{namespace}/secrets" in problem for problem in discovery.problems()))
        assert "HTTP 403" in " ".join(discovery.problems())
        assert catalog.secret(ref) is None
        assert discovery.unready() == []


async def test_a_cut_connection_and_a_version_that_is_too_old(kubectl, namespace, tmp_path, monkeypatch):
    monkeypatch.setattr(reflector_module, "LONGEST_BACK_OFF", 0.5)
    key = ServiceKey(namespace, "chat")
    kubectl.create(
        *grant("ClusterRole", namespace, CLUSTER_RULES),
        service_manifest(namespace, {**MODEL, "gateway": {"enabled": True}}),
        service_manifest(namespace, {**MODEL, "gateway": {"enabled": True}}, "code"),
        engines_slice(namespace, "10.1.0.1"),
    )
    async with discovering(kubectl, namespace, tmp_path, namespaces=[namespace]) as (catalog, discovery, cable):
        await until(lambda: not discovery.unready())
        assert set(catalog.services) == {key, ServiceKey(namespace, "code")}
        await cable.cut()
        await until(lambda: len(discovery.problems()) == 2)
        assert len(catalog.services) == 2
        await in_thread(kubectl.create, engines_slice(namespace, "10.1.0.1", "10.1.0.7"))
        await in_thread(kubectl.ok, "delete", "ifsvc", "code", "-n", namespace)
        assert len(catalog.endpoints_of(key)) == 1
        await cable.mend()
        await until(lambda: len(catalog.endpoints_of(key)) == 2 and set(catalog.services) == {key})
        assert discovery.problems() == []

        # As after hours without the API server: what was deleted meanwhile comes with the new list.
        await cable.cut()
        await until(lambda: len(discovery.problems()) == 2)
        for reflector in (*discovery._services, *discovery._engines):
            reflector._version = "1"
        await in_thread(kubectl.ok, "delete", "endpointslice", "chat-engines-x", "-n", namespace)
        await cable.mend()
        await until(lambda: not catalog.endpoints_of(key))
        await until(lambda: not discovery.problems())
        assert set(catalog.services) == {key}


async def test_a_picker_that_starts_without_the_api_server_says_why_and_knows_its_services_after(
    kubectl, namespace, tmp_path
):
    kubectl.create(
        *grant("ClusterRole", namespace, CLUSTER_RULES),
        service_manifest(namespace, {**MODEL, "gateway": {"enabled": True}}),
    )
    kubeconfig, cable = await account_over_cable(kubectl, namespace, tmp_path)
    await cable.cut()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    picker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "inflight_gateway.cli", "picker",
        "--kubeconfig", str(kubeconfig), "--namespace", namespace,
        "--http-port", "0", "--local-port", str(port), "--run-dir", str(tmp_path / "run"),
        "--drain-min", "0", "--drain-max", "1",
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:

            async def says(path, text):
                """Waits until the answer has this text in it, and returns its status."""
                async with asyncio.timeout(60):
                    while True:
                        try:
                            async with http.get(path) as answer:
                                if text in await answer.text():
                                    return answer.status
                        except aiohttp.ClientConnectionError:
                            assert picker.returncode is None, "the picker has ended"
                        await asyncio.sleep(0.1)

            assert await says("/readyz", "inferenceservices") == 503
            assert await says("/readyz", "the API server does not answer") == 503
            assert await says("/healthz", "ok") == 200
            await cable.mend()
            assert await says("/v1/state", f'"namespace":"{namespace}","name":"chat"') == 200
            assert await says("/readyz", "Envoy") == 503
            assert await says("/metrics", "inflight_gateway_kubernetes_watches_failing 0.0") == 200
            await cable.cut()
            assert await says("/metrics", "inflight_gateway_kubernetes_watches_failing 2.0") == 200
            assert await says("/v1/state", f'"namespace":"{namespace}","name":"chat"') == 200
    finally:
        picker.terminate()
        await picker.wait()
