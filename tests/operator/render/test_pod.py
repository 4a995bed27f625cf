"""The engine's pod: restricted, self-contained, and ended only after it has drained."""

from dataclasses import replace

import pytest

from inflight_operator.render.deployment import template_inputs
from inflight_operator.render.plan import ModelCache
from inflight_operator.render.pod import grace_period_seconds
from tests.operator.render.services import CPU, EVERYTHING, SETTINGS, child, engine, make, pod


def flags(service):
    program, serve, model, *rest = engine(service)["command"]
    assert (program, serve) == ("inflight-engine", "serve")
    return model, dict(flag.removeprefix("--").split("=", 1) for flag in rest)


def test_the_command_of_a_service_of_four_lines():
    assert flags(make(**CPU)) == (
        "builtin://smollm2",
        {
            "host": "0.0.0.0",
            "port": "8000",
            "admin-port": "8001",
            "served-model-name": "chat",
            "device": "cpu",
            "dtype": "auto",
            "max-num-seqs": "256",
            "max-num-batched-tokens": "8192",
            "max-queued-requests": "512",
            "queue-timeout": "60",
            "request-timeout": "600",
            "drain-delay": "5",
            "drain-timeout": "120",
            "limits-file": "/etc/inflight/limits/limits.json",
        },
    )


@pytest.mark.parametrize("source", ["s3://models/a", "gs://models/a", "az://models/a", "https://files/a"])
def test_the_engine_reads_a_model_in_a_store_itself(source):
    container = engine(make(model={"source": source}, **CPU))
    assert container["command"][2] == source
    assert not any("inflight-model" in mount["name"] for mount in container["volumeMounts"])
    assert "envFrom" not in container


def test_the_engine_has_the_address_and_the_certificates_of_a_private_store():
    model = {"source": "s3://a/b", "endpoint": "https://minio:9000", "caConfigMap": "our-ca"}
    service = make(model=model, **CPU)
    environment = {each["name"]: each.get("value") for each in engine(service)["env"]}
    assert environment["INFLIGHT_MODEL_ENDPOINT"] == "https://minio:9000"
    (mount,) = (each for each in engine(service)["volumeMounts"] if each["name"] == "inflight-model-ca")
    assert environment["INFLIGHT_MODEL_CA_FILE"] == mount["mountPath"] + "/ca.crt"
    assert {"name": "inflight-model-ca", "configMap": {"name": "our-ca"}} in pod(service)["spec"]["volumes"]


CLAIM = ModelCache(claim="models", host_path="", size=1000)


def cache_of(service, cache):
    """Volume, mount and flags of the cache."""
    settings = replace(SETTINGS, model_cache=cache)
    container = engine(service, settings)
    return (
        [each for each in pod(service, settings)["spec"]["volumes"] if each["name"] == "inflight-model-cache"],
        [each for each in container["volumeMounts"] if each["name"] == "inflight-model-cache"],
        [each for each in container.get("command", ()) if each.startswith("--model-cache")],
    )


@pytest.mark.parametrize("source", ["hf://a/b", "s3://a/b", "gs://a/b", "az://a/b", "https://a/b"])
def test_engines_share_a_claim_of_their_namespace(source):
    volumes, mounts, flags = cache_of(make(model={"source": source}, **CPU), CLAIM)
    assert volumes == [{"name": "inflight-model-cache", "persistentVolumeClaim": {"claimName": "models"}}]
    assert mounts == [{"name": "inflight-model-cache", "mountPath": "/var/lib/inflight/models"}]
    assert flags == ["--model-cache=/var/lib/inflight/models", "--model-cache-size=1000"]


def test_each_namespace_has_its_own_folder_on_a_node():
    cache = ModelCache(claim="", host_path="/var/cache/inflight", size=1000)
    volumes, mounts, _ = cache_of(make(model={"source": "s3://a/b"}, **CPU), cache)
    assert volumes[0]["hostPath"] == {"path": "/var/cache/inflight", "type": "Directory"}
    assert mounts[0]["subPath"] == "team"


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"source": "builtin://smollm2"}},
        {"model": {"source": "pvc://a/b"}},
        {"model": {"source": "oci://a/b"}},
        {"model": {"source": "hf://a/b"}, "engine": {"type": "vllm"}},
        {"model": {"source": "hf://a/b"}, "engine": {"type": "custom", "image": "server:1"}},
    ],
)
def test_pods_without_use_for_the_cache_do_not_have_it(spec):
    assert cache_of(make(**CPU, **spec), CLAIM) == ([], [], [])


def test_other_namespaces_do_not_have_it():
    service = make(model={"source": "s3://a/b"}, **CPU)
    assert cache_of(service, replace(CLAIM, namespaces=frozenset({"other"}))) == ([], [], [])
    assert cache_of(service, replace(CLAIM, namespaces=frozenset({"team", "other"}))) == cache_of(service, CLAIM)


@pytest.mark.parametrize("engine_type", ["inflight", "vllm"])
def test_credentials_are_variables_before_those_of_the_template(engine_type):
    more = {"configMapRef": {"name": "more"}}
    service = make(
        model={"source": "hf://a/b", "credentialsSecret": "hub"},
        engine={"type": engine_type},
        template={"envFrom": [more]},
    )
    assert engine(service)["envFrom"] == [{"secretRef": {"name": "hub"}}, more]


@pytest.mark.parametrize("engine_type", ["inflight", "vllm", "custom"])
def test_an_image_with_a_model_is_a_volume(engine_type):
    own = {"type": engine_type} | ({"image": "server:1"} if engine_type == "custom" else {})
    service = make(model={"source": "oci://registry:5000/qwen@sha256:1", "path": "m"}, engine=own, **CPU)
    volume = {"name": "inflight-model", "image": {"reference": "registry:5000/qwen@sha256:1"}}
    assert volume in pod(service)["spec"]["volumes"]
    container = engine(service)
    assert {"name": "inflight-model", "mountPath": "/models", "readOnly": True} in container["volumeMounts"]
    assert "/models/m" in [*container.get("command", []), *(each.get("value") for each in container["env"])]


def test_every_field_of_the_engine_reaches_the_command():
    assert engine(make(**EVERYTHING))["command"] == [
        "inflight-engine",
        "serve",
        "hf://Qwen/Qwen3-8B",
        "--host=0.0.0.0",
        "--port=8000",
        "--admin-port=8001",
        "--served-model-name=qwen",
        "--device=cuda",
        "--dtype=bfloat16",
        "--max-num-seqs=64",
        "--max-num-batched-tokens=2048",
        "--max-queued-requests=10",
        "--queue-timeout=0.5",
        "--request-timeout=90",
        "--drain-delay=5",
        "--drain-timeout=30",
        "--limits-file=/etc/inflight/limits/limits.json",
        "--revision=v1",
        "--max-model-len=4096",
        f"--kv-cache-memory={3 * 2**29}",
        "--tensor-parallel-size=2",
        "--quantization=int8",
        "--kv-cache-dtype=fp8",
        "--gpu-memory-utilization=0.8",
        "--kv-headroom=0.1",
        "--scheduling-policy=deadline",
        "--priority-aging=60.5",
        "--shed-after=20",
        "--preemption=swap",
        "--preemption-victim=most_preempted_last",
        f"--swap-space={2**31}",
        "--ttft-target=1.5",
        "--ttft-per-1k-tokens=0.06",
        "--no-prefix-caching",
        "--no-serving-metrics",
        "--tool-call-parser=qwen3_coder",
        "--reasoning-parser=qwen3",
        f"--disk-space={20 * 2**30}",
        "--disk-path=/var/lib/inflight/kv",
        "--service-class=interactive:weight=4,priority=-1,ttft=0.5,tpot=0.05,max_queued=8,shed_after=4,request_timeout=1200",
        "--service-class=batch:weight=0.5",
        "--service-class=rest",
        "--otlp-traces-endpoint=http://collector.observability.svc:4318",
        "--traces-sampling-ratio=0.1",
        "--log-format=json",
        "--enable-access-log",
        "--grpc-port=50051",
        '--kv-events-config={"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",'
        '"replay_endpoint":"tcp://*:5558"}',
        "--block-size=32",
    ]


def test_the_image_is_the_services_or_the_one_the_operator_was_installed_with():
    assert engine(make())["image"] == "example.com/engine:1"
    assert engine(make(engine={"image": "mine"}))["image"] == "mine"


def test_a_claim_is_mounted_read_only_and_its_folder_served():
    service = make(model={"source": "pvc://models/qwen3/8b"})
    assert flags(service)[0] == "/models/qwen3/8b"
    volumes = {volume["name"]: volume for volume in pod(service)["spec"]["volumes"]}
    assert volumes["inflight-model"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    mounts = {mount["name"]: mount for mount in engine(service)["volumeMounts"]}
    assert mounts["inflight-model"] == {"name": "inflight-model", "mountPath": "/models", "readOnly": True}


def test_a_pod_on_cpu_has_memory_bounds_and_no_accelerator():
    assert engine(make(**CPU))["resources"] == {
        "requests": {"cpu": "250m", "memory": "1Gi"},
        "limits": {"memory": "4Gi"},
    }
    assert "inflight-shm" not in str(pod(make(**CPU)))


def test_memory_for_swapped_requests_comes_on_top_of_what_a_pod_on_cpu_has():
    swapping = make(**CPU, engine={"kvCache": {"swap": "1.5Gi"}})
    assert engine(swapping)["resources"] == {
        "requests": {"cpu": "250m", "memory": str(5 * 2**29)},
        "limits": {"memory": str(11 * 2**29)},
    }
    none = make(**CPU, engine={"kvCache": {"swap": "0Gi"}})
    assert engine(none)["resources"] == engine(make(**CPU))["resources"]


def test_a_disk_behind_the_cache_is_a_volume_of_its_size_and_a_margin():
    service = make(**CPU, engine={"kvCache": {"swap": "1Gi", "disk": {"size": "100Gi"}}})
    (volume,) = [each for each in pod(service)["spec"]["volumes"] if each["name"] == "inflight-kv"]
    assert volume["emptyDir"] == {"sizeLimit": str(100 * 2**30 + 64 * 2**20)}
    mount = {"name": "inflight-kv", "mountPath": "/var/lib/inflight/kv"}
    assert mount in engine(service)["volumeMounts"]


def test_a_disk_behind_the_cache_may_be_a_volume_of_the_template():
    own = {"name": "nvme", "hostPath": {"path": "/mnt/nvme", "type": "Directory"}}
    disk = {"size": "100Gi", "volume": "nvme"}
    service = make(**CPU, engine={"kvCache": {"swap": "1Gi", "disk": disk}}, template={"volumes": [own]})
    assert [each for each in pod(service)["spec"]["volumes"] if each["name"] in ("nvme", "inflight-kv")] == [own]
    assert {"name": "nvme", "mountPath": "/var/lib/inflight/kv"} in engine(service)["volumeMounts"]


@pytest.mark.parametrize(("count", "swap", "memory"), [(1, 0, "4Gi"), (4, 0, "16Gi"), (2, "1.5Gi", str(19 * 2**29))])
def test_a_pod_with_accelerators_requests_cpu_and_memory_for_each_so_that_it_is_not_the_first_to_be_evicted(
    count, swap, memory
):
    service = make(accelerator={"count": count}, engine={"kvCache": {"swap": swap}})
    resources = engine(service)["resources"]
    assert resources["requests"] == {"cpu": str(count), "memory": memory, "nvidia.com/gpu": str(count)}
    assert resources["limits"] == {"nvidia.com/gpu": str(count)}


def test_requests_of_the_user_take_the_place_of_the_operators():
    service = make(template={"resources": {"requests": {"cpu": "3"}, "limits": {"memory": "2Gi"}}})
    assert engine(service)["resources"] == {
        "requests": {"cpu": "3", "nvidia.com/gpu": "1"},
        "limits": {"memory": "2Gi", "nvidia.com/gpu": "1"},
    }


def empty_dirs(service):
    return {
        volume["name"]: volume["emptyDir"]["sizeLimit"]
        for volume in pod(service)["spec"]["volumes"]
        if "emptyDir" in volume
    }


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ({**CPU}, {"inflight-scratch": "4Gi"}),
        ({}, {"inflight-scratch": "4Gi", "inflight-shm": "1Gi"}),
        ({"model": {"source": "pvc://a/b"}, **CPU}, {"inflight-scratch": "4Gi"}),
        ({"model": {"source": "s3://a/b"}, **CPU}, {"inflight-scratch": "4Gi"}),
        ({"model": {"source": "hf://a/b"}, **CPU}, {"inflight-scratch": "4Gi", "inflight-model": "64Gi"}),
        (
            {"model": {"source": "hf://a/b"}, "accelerator": {"count": 2}},
            {"inflight-scratch": "4Gi", "inflight-shm": "1Gi", "inflight-model": "512Gi"},
        ),
        (
            {"model": {"source": "hf://a/b", "storage": "9Gi"}, **CPU},
            {"inflight-scratch": "4Gi", "inflight-model": "9Gi"},
        ),
    ],
)
def test_every_volume_on_the_nodes_disk_is_bounded_and_a_download_has_one_of_its_own(spec, sizes):
    assert empty_dirs(make(**spec)) == sizes


def test_a_downloaded_model_goes_to_its_own_volume_and_caches_of_other_models_to_the_scratch_space():
    def home(source):
        container = engine(make(model={"source": source}))
        (variable,) = (each for each in container["env"] if each["name"] == "HF_HOME")
        return variable["value"], {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}

    folder, mounts = home("hf://a/b")
    assert folder == "/models/huggingface"
    assert mounts["/models"] == "inflight-model"
    assert home("builtin://smollm2")[0] == "/tmp/huggingface"


def test_a_pod_on_a_gpu_has_shared_memory():
    service = make(accelerator={"resource": "amd.com/gpu"})
    mounts = {mount["name"]: mount["mountPath"] for mount in engine(service)["volumeMounts"]}
    assert mounts["inflight-shm"] == "/dev/shm"


def test_every_mount_has_its_volume_and_every_volume_its_mount():
    for service in (make(), make(**CPU), make(model={"source": "pvc://a/b"}), make(model={"source": "hf://a/b"})):
        assert {mount["name"] for mount in engine(service)["volumeMounts"]} == {
            volume["name"] for volume in pod(service)["spec"]["volumes"]
        }


def seconds_until_failed(probe):
    """The longest from the moment a pod stops answering until the probe counts as failed: up to one period until the
    next probe begins, and for each the longer of its timeout and the period."""
    each = max(probe["periodSeconds"], probe["timeoutSeconds"])
    return probe["periodSeconds"] + probe["failureThreshold"] * each


def test_a_pod_that_hangs_is_out_of_the_endpoints_within_four_seconds_and_killed_within_fifteen():
    container = engine(make())
    readiness, liveness = container["readinessProbe"], container["livenessProbe"]
    assert readiness["httpGet"] == {"path": "/ready", "port": "http"}
    assert liveness["httpGet"] == {"path": "/health", "port": "http"}
    assert seconds_until_failed(readiness) <= 4
    assert seconds_until_failed(liveness) + liveness["terminationGracePeriodSeconds"] <= 12


def test_an_api_process_that_needs_a_second_or_two_is_neither_restarted_nor_taken_out():
    container = engine(make())
    readiness, liveness = container["readinessProbe"], container["livenessProbe"]
    assert min(readiness["timeoutSeconds"], liveness["timeoutSeconds"]) >= 2
    assert liveness["failureThreshold"] * liveness["timeoutSeconds"] >= 8


def test_a_hung_container_is_not_given_the_time_that_a_drain_takes():
    container = engine(make(rollout={"drainTimeout": "1h"}))
    assert container["livenessProbe"]["terminationGracePeriodSeconds"] == 2
    assert container["startupProbe"]["terminationGracePeriodSeconds"] == 2
    assert "terminationGracePeriodSeconds" not in container["readinessProbe"], "the API server refuses it there"


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 1800), ("45s", 46), ("24h", 86400), ("10.5s", 12)])
def test_the_start_up_time_limit_is_the_probes_and_a_rollout_waits_longer(timeout, seconds):
    service = make(rollout={"startupTimeout": timeout} if timeout else {})
    startup = engine(service)["startupProbe"]
    assert startup["httpGet"] == {"path": "/ready", "port": "http"}
    assert startup["periodSeconds"] * startup["failureThreshold"] == seconds
    assert child("Deployment", service)["spec"]["progressDeadlineSeconds"] > seconds


def test_a_pod_has_a_port_for_users_and_one_for_the_operator_and_knows_its_uid():
    container = engine(make())
    assert [(port["name"], port["containerPort"]) for port in container["ports"]] == [("http", 8000), ("admin", 8001)]
    (uid,) = (variable for variable in container["env"] if variable["name"] == "INFLIGHT_POD_UID")
    assert uid["valueFrom"] == {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}


def test_the_token_is_read_from_a_file_and_in_no_environment():
    env = {variable["name"]: variable.get("value") for variable in engine(make())["env"]}
    assert env["INFLIGHT_ADMIN_TOKEN_FILE"] == "/etc/inflight/admin/token"
    assert "secret" not in str(engine(make())["env"])


def test_only_pods_that_download_their_model_ask_the_hub():
    for source, offline in (("builtin://smollm2", True), ("pvc://a/b", True), ("hf://a/b", False)):
        env = {variable["name"] for variable in engine(make(model={"source": source}))["env"]}
        assert ("HF_HUB_OFFLINE" in env) is offline, source


def test_everything_the_engine_writes_goes_to_its_scratch_space():
    env = {variable["name"]: variable.get("value") for variable in engine(make())["env"]}
    assert engine(make())["securityContext"]["readOnlyRootFilesystem"] is True
    assert env["HOME"] == "/tmp"
    assert env["HF_HOME"].startswith("/tmp/")


@pytest.mark.parametrize(("drain", "grace"), [("120s", 145), ("1s", 26), ("1500ms", 27), ("1m30s", 115)])
def test_the_grace_period_is_propagation_plus_drain_plus_margin(drain, grace):
    assert grace_period_seconds(drain) == grace


def test_kubernetes_waits_longer_than_the_engine_drains():
    service = make(rollout={"drainTimeout": "45s"})
    _, given = flags(service)
    drained = float(given["drain-delay"]) + float(given["drain-timeout"])
    assert pod(service)["spec"]["terminationGracePeriodSeconds"] >= drained + 10


def test_the_template_is_merged_last():
    service = make(
        template={
            "labels": {"team": "search"},
            "annotations": {"a": "b"},
            "nodeSelector": {"pool": "llm"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"x": 1}},
            "resources": {"requests": {"cpu": 2}, "limits": {"memory": "8Gi"}},
            "env": [{"name": "HF_HOME", "value": "/cache"}, {"name": "X", "value": "1"}],
            "envFrom": [{"secretRef": {"name": "s"}}],
            "volumes": [{"name": "cache", "emptyDir": {}}],
            "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
            "serviceAccountName": "runner",
            "imagePullSecrets": [{"name": "registry"}],
            "priorityClassName": "high",
        },
        **CPU,
    )
    template, container = pod(service), engine(service)
    assert template["metadata"]["labels"]["team"] == "search"
    assert template["metadata"]["annotations"] == {"a": "b"}
    spec = template["spec"]
    assert spec["nodeSelector"] == {"pool": "llm"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert spec["affinity"] == {"nodeAffinity": {"x": 1}}
    assert spec["serviceAccountName"] == "runner"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["priorityClassName"] == "high"
    assert container["resources"] == {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"memory": "8Gi"}}
    assert [(variable["name"], variable.get("value")) for variable in container["env"]] == [
        ("HOME", "/tmp"),
        ("INFLIGHT_ADMIN_TOKEN_FILE", "/etc/inflight/admin/token"),
        ("INFLIGHT_POD_UID", None),
        ("HF_HOME", "/cache"),
        ("HF_HUB_OFFLINE", "1"),
        ("X", "1"),
    ]
    assert container["envFrom"] == [{"secretRef": {"name": "s"}}]
    assert container["volumeMounts"][-1] == {"name": "cache", "mountPath": "/cache"}
    assert spec["volumes"][-1] == {"name": "cache", "emptyDir": {}}


def test_labels_that_find_pods_stay_the_operators_even_past_an_older_schema():
    service = make(template={"labels": {"inflight.dev/service": "other"}})
    assert pod(service)["metadata"]["labels"]["inflight.dev/service"] == "chat"


def test_a_limit_below_the_default_request_and_a_request_above_the_default_limit_make_a_valid_pod():
    small = make(**CPU, template={"resources": {"limits": {"memory": "200Mi"}}})
    assert engine(small)["resources"] == {"requests": {"cpu": "250m"}, "limits": {"memory": "200Mi"}}
    large = make(**CPU, template={"resources": {"requests": {"memory": "16Gi"}}})
    assert engine(large)["resources"] == {"requests": {"cpu": "250m", "memory": "16Gi"}}


def test_pods_are_spread_counting_those_of_the_service():
    zones = {"topologyKey": "topology.kubernetes.io/zone"}
    nodes = {
        "topologyKey": "kubernetes.io/hostname",
        "maxSkew": 2,
        "whenUnsatisfiable": "DoNotSchedule",
        "minDomains": 3,
        "nodeAffinityPolicy": "Ignore",
        "nodeTaintsPolicy": "Honor",
        "matchLabelKeys": ["pod-template-hash"],
    }
    service = make(template={"topologySpreadConstraints": [zones, nodes]})
    selector = {"matchLabels": {"app.kubernetes.io/name": "inflight-engine", "inflight.dev/service": "chat"}}
    assert pod(service)["spec"]["topologySpreadConstraints"] == [
        {**zones, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector},
        {**nodes, "labelSelector": selector},
    ]
    assert selector["matchLabels"].items() <= pod(service)["metadata"]["labels"].items()
    assert "topologySpreadConstraints" not in pod(make())["spec"]


def test_runtime_class_and_scheduler_are_the_services():
    spec = pod(make(template={"runtimeClassName": "nvidia", "schedulerName": "volcano"}))["spec"]
    assert (spec["runtimeClassName"], spec["schedulerName"]) == ("nvidia", "volcano")
    assert not {"runtimeClassName", "schedulerName"} & set(pod(make())["spec"])


def test_the_pull_policy_of_the_installation_holds_for_every_engine_image():
    always = replace(SETTINGS, engine_pull_policy="Always")
    assert engine(make(), always)["imagePullPolicy"] == "Always"
    assert engine(make(engine={"image": "mine"}), always)["imagePullPolicy"] == "Always"
    assert "imagePullPolicy" not in engine(make())


def test_pods_of_a_service_with_a_queue_have_its_label_and_are_replaced_when_it_changes():
    label = "kueue.x-k8s.io/queue-name"
    queued = make(queueName="team-gpus", template={"labels": {label: "other"}})
    assert pod(queued)["metadata"]["labels"][label] == "team-gpus"
    assert pod(make(template={"labels": {label: "other"}}))["metadata"]["labels"][label] == "other"
    assert label not in child("Deployment", queued)["spec"]["selector"]["matchLabels"]
    digests = {template_inputs(make(**spec).spec) for spec in ({}, {"queueName": "a"}, {"queueName": "b"})}
    assert len(digests) == 3


@pytest.mark.parametrize("kind", [{}, {"type": "vllm"}])
def test_claimed_devices_take_the_place_of_the_accelerators_in_the_requests(kind):
    claims = [
        {"name": "gpus", "resourceClaimTemplateName": "two-of-one-node"},
        {"name": "nic", "resourceClaimName": "shared"},
    ]
    service = make(accelerator={"count": 2}, engine=kind, template={"resourceClaims": claims})
    assert pod(service)["spec"]["resourceClaims"] == claims
    resources = engine(service)["resources"]
    assert resources["claims"] == [{"name": "gpus"}, {"name": "nic"}]
    assert not [name for part in ("requests", "limits") for name in resources.get(part, {}) if "/" in name]
    assert resources["requests"]["cpu"]
    assert engine(service)["command"] == engine(make(accelerator={"count": 2}, engine=kind))["command"]
