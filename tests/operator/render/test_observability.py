"""Traces and logs of engines: settings of the service, else of the installation."""

import re
from dataclasses import replace

import pytest
from pydantic import ValidationError

from inflight_operator.api.engine.observability import ENDPOINT_PATTERN
from inflight_operator.render.deployment import TEMPLATE_DIGEST, template_inputs
from inflight_operator.render.plan import EngineObservability
from inflight_operator.render.service_children import render
from tests.operator.render.services import CPU, PLAN, SETTINGS, make

COLLECTOR = "http://collector.observability.svc:4318"
DNS = {"ports": [{"port": port, "protocol": protocol} for port in (53, 5353) for protocol in ("UDP", "TCP")]}


def children(service, **observability):
    settings = replace(SETTINGS, observability=EngineObservability(**observability))
    return {child["kind"]: child for child in render(service, PLAN, settings)}


def container(service, **observability):
    return children(service, **observability)["Deployment"]["spec"]["template"]["spec"]["containers"][0]


def environment(container):
    return {each["name"]: each for each in container["env"]}


@pytest.mark.parametrize(
    ("engine", "default", "flags"),
    [
        ({}, {}, []),
        ({}, {"sampling_ratio": 0.5}, []),
        ({}, {"traces_endpoint": COLLECTOR}, [f"--otlp-traces-endpoint={COLLECTOR}"]),
        (
            {},
            {"traces_endpoint": COLLECTOR, "sampling_ratio": 0.1, "log_format": "json", "access_log": True},
            [
                f"--otlp-traces-endpoint={COLLECTOR}",
                "--traces-sampling-ratio=0.1",
                "--log-format=json",
                "--enable-access-log",
            ],
        ),
        (
            {"tracing": {"endpoint": "https://other/v1/traces", "samplingRatio": 0}},
            {"traces_endpoint": COLLECTOR, "sampling_ratio": 0.1},
            ["--otlp-traces-endpoint=https://other/v1/traces", "--traces-sampling-ratio=0"],
        ),
        ({"logs": {"format": "text", "accessLog": False}}, {"log_format": "json", "access_log": True}, []),
        ({"logs": {"format": "json", "accessLog": True}}, {}, ["--log-format=json", "--enable-access-log"]),
    ],
)
def test_flags_of_a_service_and_of_the_installation(engine, default, flags):
    plain = container(make(**CPU))["command"]
    assert [each for each in container(make(**CPU, engine=engine), **default)["command"] if each not in plain] == flags


def test_spans_say_which_service_and_pod_they_come_from():
    variables = environment(container(make(**CPU), traces_endpoint=COLLECTOR))
    assert variables["OTEL_SERVICE_NAME"]["value"] == "chat"
    assert "k8s.pod.name=$(INFLIGHT_POD_NAME)" in variables["OTEL_RESOURCE_ATTRIBUTES"]["value"]
    names = list(variables)  # a reference works only to a variable before it
    assert names.index("INFLIGHT_POD_NAME") < names.index("OTEL_RESOURCE_ATTRIBUTES")
    assert names.index("INFLIGHT_POD_UID") < names.index("OTEL_RESOURCE_ATTRIBUTES")
    assert not {name for name in environment(container(make(**CPU))) if name.startswith("OTEL_")}


VLLM = {"type": "vllm"}


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (COLLECTOR, f"{COLLECTOR}/v1/traces"),
        (f"{COLLECTOR}/", f"{COLLECTOR}/v1/traces"),
        ("https://other/in/v2", "https://other/in/v2"),
    ],
)
@pytest.mark.parametrize("plugin", [True, False])
def test_vllm_sends_traces_to_the_same_url_by_the_same_protocol(endpoint, url, plugin):
    service = make(**CPU, engine={**VLLM, "plugin": plugin, "tracing": {"endpoint": endpoint}})
    one = container(service, log_format="json", access_log=True)
    plain = container(make(**CPU, engine={**VLLM, "plugin": plugin}))["command"]
    assert [each for each in one["command"] if each not in plain] == [f"--otlp-traces-endpoint={url}"]
    variables = environment(one)
    assert variables["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"]["value"] == "http/protobuf"
    assert "OTEL_TRACES_SAMPLER" not in variables
    names = list(variables)
    assert names.index("INFLIGHT_POD_UID") < names.index("OTEL_RESOURCE_ATTRIBUTES")


def test_vllm_traces_a_share_of_the_requests_that_the_caller_did_not_decide():
    variables = environment(container(make(**CPU, engine=VLLM), traces_endpoint=COLLECTOR, sampling_ratio=0.1))
    assert variables["OTEL_TRACES_SAMPLER"]["value"] == "parentbased_traceidratio"
    assert variables["OTEL_TRACES_SAMPLER_ARG"]["value"] == "0.1"


def test_vllm_may_reach_the_collector():
    found = children(make(**CPU, engine={**VLLM, "tracing": {"endpoint": "http://10.0.0.7:4318"}}))
    reached = {"to": [{"ipBlock": {"cidr": "10.0.0.7/32"}}], "ports": [{"port": 4318, "protocol": "TCP"}]}
    assert found["NetworkPolicy"]["spec"]["egress"] == [DNS, reached]


def test_a_custom_engine_has_no_traces_of_the_installation():
    service = make(model={"source": "hf://a/b"}, engine={"type": "custom", "image": "example.com/server:1"})
    assert children(service, traces_endpoint=COLLECTOR) == children(service)


def test_a_user_s_variable_wins():
    mine = {"env": [{"name": "OTEL_SERVICE_NAME", "value": "mine"}]}
    variables = environment(container(make(**CPU, template=mine), traces_endpoint=COLLECTOR))
    assert variables["OTEL_SERVICE_NAME"]["value"] == "mine"


@pytest.mark.parametrize(
    ("endpoint", "rule"),
    [
        (COLLECTOR, {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}]}),
        (
            "http://c.o.svc.cluster.local:4318",
            {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "o"}}}]},
        ),
        (
            "http://10.1.2.3:4318/v1/traces",
            {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"port": 4318, "protocol": "TCP"}]},
        ),
        (
            "http://[fd00::1]:4318",
            {"to": [{"ipBlock": {"cidr": "fd00::1/128"}}], "ports": [{"port": 4318, "protocol": "TCP"}]},
        ),
        ("https://otel.example.com", {"ports": [{"port": 443, "protocol": "TCP"}]}),
        ("http://collector", {"ports": [{"port": 80, "protocol": "TCP"}]}),
    ],
)
def test_the_network_policy_lets_engines_reach_dns_and_the_collector_and_nothing_else(endpoint, rule):
    spec = children(make(**CPU), traces_endpoint=endpoint)["NetworkPolicy"]["spec"]
    assert spec["egress"] == [DNS, rule]
    assert spec["policyTypes"] == ["Ingress", "Egress"]


@pytest.mark.parametrize(
    "endpoint",
    ["http://c:99999", "http://c:0", "http://c:abc", "http://[::::]:4318", "http://[1::2::3]", "http://", "c:4318"],
)
def test_a_url_that_reaches_nothing_gets_no_way_out_but_dns(endpoint):
    assert re.fullmatch(ENDPOINT_PATTERN, endpoint) is None
    spec = children(make(**CPU), traces_endpoint=endpoint)["NetworkPolicy"]["spec"]
    if endpoint in ("http://[::::]:4318", "http://[1::2::3]"):
        assert spec["egress"][0] == DNS  # Python versions differ in which of these hosts they refuse
    else:
        assert spec["egress"] == [DNS]


@pytest.mark.parametrize("port", [1, 9, 80, 4318, 9999, 10000, 59999, 60000, 64999, 65000, 65499, 65529, 65535])
@pytest.mark.parametrize("host", ["c", "10.0.0.1", "[::]", "[::1]", "[fd00::1]", "[fe80:1::a:2]", "[1:2:3:4:5:6:7:8]"])
def test_every_port_and_kind_of_host_can_be_named(host, port):
    assert re.fullmatch(ENDPOINT_PATTERN, f"http://{host}:{port}/v1/traces")


@pytest.mark.parametrize("port", ["0", "00", "65536", "65540", "65600", "66000", "70000", "99999", "100000", ""])
def test_other_ports_are_none(port):
    assert re.fullmatch(ENDPOINT_PATTERN, f"http://c:{port}") is None


def test_without_traces_nothing_gets_out_and_where_models_are_downloaded_everything_does():
    assert "egress" not in children(make(**CPU))["NetworkPolicy"]["spec"]
    downloading = make(model={"source": "hf://Qwen/Qwen3-8B"})
    spec = children(downloading, traces_endpoint=COLLECTOR)["NetworkPolicy"]["spec"]
    assert (spec["policyTypes"], "egress" in spec) == (["Ingress"], False)


def test_a_change_of_the_installation_is_one_of_the_release_and_a_change_of_the_spec_one_of_the_user():
    def digests(service, **observability):
        return children(service, **observability)["Deployment"]["metadata"]["annotations"]

    plain = digests(make(**CPU))
    release = digests(make(**CPU), traces_endpoint=COLLECTOR)
    traced = make(**CPU, engine={"tracing": {"endpoint": COLLECTOR}})
    user = digests(traced)
    assert release[TEMPLATE_DIGEST] != plain[TEMPLATE_DIGEST]
    assert template_inputs(traced.spec) != template_inputs(make(**CPU).spec)
    assert user[TEMPLATE_DIGEST] == release[TEMPLATE_DIGEST]


@pytest.mark.parametrize("tracing", [{"samplingRatio": 1.5}, {"endpoint": ""}, {"endpoints": "x"}])
def test_wrong_fields_are_refused(tracing):
    with pytest.raises(ValidationError):
        make(**CPU, engine={"tracing": tracing})
