"""Pods of each engine type: a command that the type has, no field lost, and Pod Security restricted."""

import itertools
import json
import re
from dataclasses import replace

import pytest

from inflight_base.manifest.engines import engine_type_of_pod
from inflight_base.manifest.names import ENGINE_ANNOTATION
from inflight_base.manifest.units import parse_quantity
from inflight_operator.api.pods.template import OWN_MOUNTS
from inflight_operator.api.resolve import engine_type
from inflight_operator.render.engines.vllm import PLUGIN_FOLDER
from inflight_vllm.requests import RequestRules
from inflight_vllm.settings import read_settings
from tests.operator.render.services import CPU, SETTINGS, child, make, pod

ALL = replace(
    SETTINGS,
    plugin_image="example.com/operator:1",
    vllm_image="example.com/vllm:1",
    gateway_service="gateway.inflight-system.svc.cluster.local",
)
SERVER = {"type": "custom", "image": "example.com/server:1"}


def vllm(**engine):
    return {"type": "vllm", **engine}


def container(**spec):
    return pod(make(**spec), ALL)["spec"]["containers"][0]


def environment(**spec):
    return {one["name"]: one.get("value") for one in container(**spec)["env"]}


def mounts(one):
    return {mount["mountPath"]: (mount["name"], mount.get("readOnly", False)) for mount in one["volumeMounts"]}


def init_containers(**spec):
    return {one["name"]: one for one in pod(make(**spec), ALL)["spec"].get("initContainers", [])}


def test_the_command_of_vllm_for_a_service_of_four_lines():
    assert container(model={"source": "hf://Qwen/Qwen3-8B"}, engine=vllm())["command"] == [
        "vllm",
        "serve",
        "Qwen/Qwen3-8B",
        "--host=0.0.0.0",
        "--port=8000",
        "--served-model-name=chat",
        "--dtype=auto",
        "--max-num-seqs=256",
        "--max-num-batched-tokens=8192",
        "--revision=main",
        "--gpu-memory-utilization=0.9",
        "--enable-prompt-tokens-details",
        "--shutdown-timeout=120",
        "--scheduler-cls=inflight_vllm.scheduler.LiveScheduler",
        "--middleware=inflight_vllm.middleware.Inflight",
    ]


def test_on_a_cpu_the_plugin_has_a_worker_too():
    worker = "--worker-cls=inflight_vllm.cpu_worker.SeededWorker"
    assert worker in container(engine=vllm(), accelerator={"count": 0})["command"]
    assert worker not in container(engine=vllm(plugin=False), accelerator={"count": 0})["command"]


def test_every_field_that_vllm_has_reaches_its_command():
    engine = vllm(
        plugin=False,
        dtype="bfloat16",
        maxModelLen=4096,
        maxNumSeqs=64,
        maxNumBatchedTokens=2048,
        kvCache={"memory": "2Gi", "memoryFraction": 0.8, "dtype": "fp8", "prefixCaching": False},
        scheduling={"policy": "priority"},
        toolCallParser="step3",
        reasoningParser="olmo3",
        extraArgs=["--enable-sleep-mode"],
    )
    spec = {"model": {"source": "pvc://models/qwen"}, "accelerator": {"count": 2}, "rollout": {"drainTimeout": "90s"}}
    assert container(engine=engine, **spec)["command"][2:] == [
        "/models/qwen",
        "--host=0.0.0.0",
        "--port=8000",
        "--served-model-name=chat",
        "--dtype=bfloat16",
        "--max-num-seqs=64",
        "--max-num-batched-tokens=2048",
        "--max-model-len=4096",
        "--tensor-parallel-size=2",
        f"--kv-cache-memory-bytes={2**31}",
        "--gpu-memory-utilization=0.8",
        "--kv-cache-dtype=fp8",
        "--scheduling-policy=priority",
        "--tool-call-parser=step3",
        "--reasoning-parser=olmo3",
        "--enable-auto-tool-choice",
        "--no-enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--shutdown-timeout=90",
        "--enable-sleep-mode",
    ]


@pytest.mark.parametrize(
    ("spec", "by_number"),
    [
        ({"engine": vllm()}, False),
        ({"engine": vllm(), "slo": {"ttftP95": "1s"}}, True),
        ({"engine": vllm(scheduling={"policy": "fcfs"}), "slo": {"ttftP95": "1s"}}, False),
        ({"engine": vllm(plugin=False), "slo": {"ttftP95": "1s"}}, False),
        ({"engine": vllm(scheduling={"classes": [{"name": "chat", "slo": {"ttftP95": "1s"}}]})}, True),
    ],
)
def test_vllm_orders_by_number_where_the_plugin_sets_deadlines(spec, by_number):
    assert ("--scheduling-policy=priority" in container(**spec)["command"]) is by_number


def test_vllm_on_cpu_gets_a_cache_of_its_own_size_and_no_share_of_the_nodes_memory():
    command = container(engine=vllm(), accelerator={"count": 0})["command"]
    assert f"--kv-cache-memory-bytes={2**30}" in command
    assert not any("gpu-memory-utilization" in flag for flag in command)


def test_vllm_on_cpu_requests_the_memory_of_its_cache():
    def requested(**cache):
        spec = {"engine": vllm(kvCache=cache), "accelerator": {"count": 0}}
        return parse_quantity(container(**spec)["resources"]["requests"]["memory"])

    assert requested(memory="40Gi") == requested() + 39 * 2**30


def test_classes_order_requests_of_vllm_by_priority_where_the_policy_says_so_whatever_their_targets():
    classes = [{"name": "chat", "priority": -1, "slo": {"ttftP95": "500ms"}}, {"name": "batch"}]
    found = environment(engine=vllm(scheduling={"policy": "priority", "classes": classes}), slo={"ttftP95": "1s"})
    settings = read_settings({name: value for name, value in found.items() if value is not None})
    rules = RequestRules(settings, ordered=True, clock=lambda: 1000.0)
    assert json.loads(rules.body(b"{}", ""))["priority"] == -1
    assert json.loads(rules.body(b'{"priority": 7}', ""))["priority"] == 7


def test_the_processes_of_vllm_have_shared_memory_on_cpu_too():
    spec = {"engine": vllm(), "accelerator": {"count": 0}}
    assert mounts(container(**spec))["/dev/shm"] == ("inflight-shm", False)


def test_the_plugin_comes_from_the_operators_image_into_a_folder_that_vllm_can_only_read():
    spec = {"model": {"source": "hf://Qwen/Qwen3-8B"}, "engine": vllm()}
    plugin = init_containers(**spec)["inflight-plugin"]
    assert plugin["image"] == "example.com/operator:1"
    assert plugin["command"] == ["inflight-operator", "export-vllm-plugin", PLUGIN_FOLDER]
    assert mounts(plugin)[PLUGIN_FOLDER] == ("inflight-plugin", False)
    assert mounts(container(**spec))[PLUGIN_FOLDER] == ("inflight-plugin", True)
    assert environment(**spec)["PYTHONPATH"] == PLUGIN_FOLDER
    assert container(**spec)["image"] == "example.com/vllm:1"


def test_mounts_of_users_may_not_be_where_the_plugin_is():
    assert PLUGIN_FOLDER in OWN_MOUNTS


def test_the_plugin_reads_the_admin_token_the_limits_and_the_order_of_requests():
    classes = [{"name": "chat", "weight": 4, "slo": {"ttftP95": "500ms"}}, {"name": "batch", "priority": 10}]
    read = environment(
        engine=vllm(scheduling={"classes": classes}),
        slo={"ttftP95": "2s"},
        rollout={"drainTimeout": "30s"},
        gateway={"enabled": True},
    )
    assert {name: value for name, value in read.items() if name.startswith("INFLIGHT_")} == {
        "INFLIGHT_ADMIN_TOKEN_FILE": "/etc/inflight/admin/token",
        "INFLIGHT_POD_UID": None,
        "INFLIGHT_ADMIN_PORT": "8001",
        "INFLIGHT_LIMITS_FILE": "/etc/inflight/limits/limits.json",
        "INFLIGHT_DRAIN_DELAY": "5",
        "INFLIGHT_DRAIN_TIMEOUT": "30",
        "INFLIGHT_TENANT_KEY_FILE": "/etc/inflight/admin/tenant-key",
        "INFLIGHT_TTFT_TARGET": "2",
        "INFLIGHT_CLASSES": "chat:weight=4,ttft=0.5;batch:priority=10",
    }
    settings = read_settings({name: value for name, value in read.items() if value is not None})
    assert (settings.admin_port, settings.drain_delay, settings.drain_timeout, settings.ttft_target) == (8001, 5, 30, 2)
    assert [(one.name, one.weight, one.ttft_target) for one in settings.classes.values()] == [
        ("chat", 4, 0.5),
        ("batch", 1, None),
    ]


def test_vllm_without_the_plugin_has_no_admin_port_no_token_and_keeps_serving_before_it_is_ended():
    spec = {"model": {"source": "hf://Qwen/Qwen3-8B"}, "engine": vllm(plugin=False)}
    one = container(**spec)
    assert [port["name"] for port in one["ports"]] == ["http"]
    assert not init_containers(**spec)
    assert not any(name.startswith(("INFLIGHT_", "PYTHON")) for name in environment(**spec))
    assert not any(path.startswith("/etc/inflight") for path in mounts(one))
    assert one["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert one["readinessProbe"]["httpGet"]["path"] == "/health"


def test_a_builtin_model_is_written_for_vllm_by_the_engine_image():
    spec = {"engine": vllm(), "accelerator": {"count": 0}}
    model = init_containers(**spec)["inflight-model"]
    assert model["image"] == SETTINGS.engine_image
    assert model["command"] == ["inflight-engine", "export", "builtin://smollm2", "/models/smollm2"]
    assert container(**spec)["command"][2] == "/models/smollm2"
    assert mounts(container(**spec))["/models"] == ("inflight-model", True)


CUSTOM = {
    "command": ["/app/llama-server"],
    "args": ["--model", "$(INFLIGHT_MODEL)/model.gguf", "--alias", "$(INFLIGHT_SERVED_NAME)", "--metrics"],
    "port": 8080,
    "metricsPort": 9000,
    "metricsPath": "/prometheus",
    "readyPath": "/ready",
}


def test_a_custom_engine_runs_as_its_spec_says():
    spec = {"model": {"source": "pvc://models/llama"}, "engine": {**SERVER, "custom": CUSTOM}}
    one = container(**spec)
    assert (one["command"], one["args"]) == (CUSTOM["command"], CUSTOM["args"])
    assert [(port["name"], port["containerPort"]) for port in one["ports"]] == [("http", 8080), ("metrics", 9000)]
    assert [one[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")] == [
        {"path": "/ready", "port": "http"}
    ] * 3
    assert environment(**spec)["INFLIGHT_MODEL"] == "/models/llama"
    assert environment(**spec)["INFLIGHT_SERVED_NAME"] == "chat"


def test_a_custom_engine_serves_for_the_drain_timeout_before_it_is_ended_and_then_has_time_to_exit():
    """llama.cpp's server breaks answers off after SIGTERM."""
    for timeout, seconds in (("120s", 125), ("1m0.5s", 66)):
        spec = pod(make(engine=SERVER, rollout={"drainTimeout": timeout}), ALL)["spec"]
        assert spec["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": seconds}}}
        assert spec["terminationGracePeriodSeconds"] == seconds + 20


def test_the_image_of_a_custom_engine_starts_what_it_starts_unless_the_spec_says():
    one = container(model={"source": "hf://Qwen/Qwen3-8B"}, engine=SERVER)
    assert not {"command", "args"} & one.keys()
    assert environment(model={"source": "hf://Qwen/Qwen3-8B"}, engine=SERVER)["INFLIGHT_MODEL"] == "Qwen/Qwen3-8B"


def metrics_path(endpoint, pod):
    """The path by which Prometheus scrapes a pod: that of the endpoint, after its relabellings."""
    path, (annotation,) = endpoint.get("path", "/metrics"), (pod["metadata"].get("annotations") or {"": ""}).values()
    for one in endpoint["relabelings"]:
        if one["targetLabel"] == "__metrics_path__":
            assert one["sourceLabels"] == ["__meta_kubernetes_pod_annotation_inflight_dev_engine"]
            found = re.fullmatch(one["regex"], annotation)
            path = path if found is None else found.expand(one["replacement"].replace("$", "\\"))
    return path


def test_prometheus_scrapes_each_pod_by_the_path_that_it_was_made_with_while_the_service_changes_its_type():
    monitored = replace(ALL, available_apis=frozenset({"monitoring.coreos.com/v1/PodMonitor"}))
    services = {
        "/metrics": [make(**CPU), make(engine=vllm()), make(engine=vllm(plugin=False)), make(engine=SERVER)],
        "/prometheus": [make(engine={**SERVER, "custom": {"metricsPath": "/prometheus"}})],
    }
    for of_monitor in itertools.chain(*services.values()):
        (endpoint,) = child("PodMonitor", of_monitor, settings=monitored)["spec"]["podMetricsEndpoints"]
        for path, made in services.items():
            assert [metrics_path(endpoint, pod(one, ALL)) for one in made] == [path] * len(made)


def test_prometheus_and_the_gateway_find_the_metrics_of_a_custom_engine():
    service = make(engine={**SERVER, "custom": CUSTOM}, gateway={"enabled": True})
    monitored = replace(ALL, available_apis=frozenset({"monitoring.coreos.com/v1/PodMonitor"}))
    (endpoint,) = child("PodMonitor", service, settings=monitored)["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "metrics"
    assert metrics_path(endpoint, pod(service, ALL)) == "/prometheus"
    rules = child("NetworkPolicy", service, settings=ALL)["spec"]["ingress"]
    (metrics,) = [rule for rule in rules if rule["ports"][0]["port"] == "metrics"]
    names = [peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for peer in metrics["from"]]
    assert names == ["inflight-operator", "inflight-gateway"]


@pytest.mark.parametrize("engine", [vllm(plugin=False), SERVER])
def test_the_operator_reaches_metrics_on_the_serving_port_of_a_service_with_api_keys(engine):
    service = make(engine=engine, gateway={"enabled": True, "auth": {"apiKeysSecret": "keys"}})
    rules = child("NetworkPolicy", service, settings=ALL)["spec"]["ingress"]
    (serving,) = [rule for rule in rules if rule["ports"][0]["port"] == "http"]
    names = [peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for peer in serving["from"]]
    assert names == ["inflight-gateway", "inflight-operator"]


SPECS = {
    "vllm": {"model": {"source": "hf://Qwen/Qwen3-8B"}, "engine": vllm()},
    "vllm without the plugin": {"model": {"source": "pvc://models/qwen"}, "engine": vllm(plugin=False)},
    "vllm with a builtin model on CPU": {"engine": vllm(), "accelerator": {"count": 0}},
    "custom": {"model": {"source": "pvc://models/llama"}, "engine": {**SERVER, "custom": CUSTOM}},
}


@pytest.mark.parametrize("name", SPECS)
def test_all_containers_of_a_pod_are_restricted_and_mount_volumes_that_it_has(name):
    spec = pod(make(**SPECS[name]), ALL)["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    volumes = [volume["name"] for volume in spec["volumes"]]
    assert len(set(volumes)) == len(volumes)
    for one in [*spec.get("initContainers", []), *spec["containers"]]:
        assert one["securityContext"]["readOnlyRootFilesystem"]
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not one["securityContext"]["allowPrivilegeEscalation"]
        assert {mount["name"] for mount in one["volumeMounts"]} <= set(volumes)
        assert len(mounts(one)) == len(one["volumeMounts"])
        assert one["resources"]["requests"]["memory"]


@pytest.mark.parametrize(
    "engine", [{}, vllm(), vllm(plugin=False), {**SERVER, "custom": {"port": 8080, "metricsPath": "/m"}}], ids=str
)
def test_a_pod_names_the_type_that_it_was_made_with_whatever_annotations_the_service_has(engine):
    service = make(
        model={"source": "hf://Qwen/Qwen3-8B"},
        engine=engine,
        template={"annotations": {"a": "b", ENGINE_ANNOTATION: '{"type": "vllm"}'}},
    )
    metadata = pod(service, ALL)["metadata"]
    assert metadata["annotations"]["a"] == "b"
    assert engine_type_of_pod(metadata) == engine_type(service.spec)
