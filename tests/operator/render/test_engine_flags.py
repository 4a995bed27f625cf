"""Flags for computation and scheduling: only values that differ from the engine's defaults are set."""

import pytest

from inflight_operator.render.engine_flags import engine_flags
from tests.operator.render.services import CPU, engine, make


def flags_of(slo=None, **fields):
    return engine_flags(make(engine=fields, slo=slo).spec)


@pytest.mark.parametrize(
    "spelled_out",
    [
        {},
        {"kvCache": {"headroom": 0.03, "swap": 0, "prefixCaching": True}},
        {"kvCache": {"swap": "0Gi"}},
        {"scheduling": {"policy": "fcfs", "preemption": "auto", "preemptionVictim": "lastArrived", "classes": []}},
        {"scheduling": {"priorityAging": "10000ms"}},
    ],
)
def test_a_default_that_is_spelled_out_changes_no_pod(spelled_out):
    assert engine(make(**CPU, engine=spelled_out)) == engine(make(**CPU))


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"quantization": "int8"}, "--quantization=int8"),
        ({"kvCache": {"dtype": "fp8"}}, "--kv-cache-dtype=fp8"),
        ({"kvCache": {"memoryFraction": 0.75}}, "--gpu-memory-utilization=0.75"),
        ({"kvCache": {"headroom": 0}}, "--kv-headroom=0"),
        ({"kvCache": {"headroom": 0.25}}, "--kv-headroom=0.25"),
        ({"kvCache": {"swap": "1.5Gi"}}, "--swap-space=1610612736"),
        ({"kvCache": {"swap": 2097152}}, "--swap-space=2097152"),
        ({"kvCache": {"prefixCaching": False}}, "--no-prefix-caching"),
        ({"toolCallParser": "qwen3_coder"}, "--tool-call-parser=qwen3_coder"),
        ({"reasoningParser": "none"}, "--reasoning-parser=none"),
        ({"servingMetrics": False}, "--no-serving-metrics"),
        ({"scheduling": {"policy": "fair"}}, "--scheduling-policy=fair"),
        ({"scheduling": {"policy": "deadline"}}, "--scheduling-policy=deadline"),
        ({"scheduling": {"shedAfter": "2500ms"}}, "--shed-after=2.5"),
        ({"scheduling": {"priorityAging": "2m"}}, "--priority-aging=120"),
        ({"scheduling": {"priorityAging": "1500ms"}}, "--priority-aging=1.5"),
        ({"scheduling": {"preemption": "recompute"}}, "--preemption=recompute"),
        ({"scheduling": {"preemptionVictim": "longestFirst"}}, "--preemption-victim=longest_first"),
    ],
)
def test_one_field_is_one_flag(fields, flag):
    assert flags_of(**fields) == [flag]


def test_a_disk_behind_the_cache_is_a_size_and_a_folder():
    flags = flags_of(kvCache={"swap": "1Gi", "disk": {"size": "100Gi"}})
    assert flags == ["--swap-space=1073741824", "--disk-space=107374182400", "--disk-path=/var/lib/inflight/kv"]


def test_sleep_is_a_number_of_seconds():
    assert engine_flags(make(scaling={"sleep": {"after": "1m30s"}}).spec) == ["--sleep-after=90"]
    assert engine_flags(make().spec) == []


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({}, "--service-class=chat"),
        ({"weight": 1, "priority": 0, "slo": {}}, "--service-class=chat"),
        ({"weight": 2.5}, "--service-class=chat:weight=2.5"),
        ({"priority": 3}, "--service-class=chat:priority=3"),
        ({"maxQueuedRequests": 9, "weight": 4}, "--service-class=chat:weight=4,max_queued=9"),
        ({"shedAfter": "10s"}, "--service-class=chat:shed_after=10"),
        ({"requestTimeout": "20m"}, "--service-class=chat:request_timeout=1200"),
        ({"slo": {"tpotP95": "20ms"}}, "--service-class=chat:tpot=0.02"),
        ({"slo": {"tpotP95": "50ms", "ttftP95": "1m"}}, "--service-class=chat:ttft=60,tpot=0.05"),
    ],
)
def test_a_class_is_its_name_and_what_differs_from_a_class_of_defaults(given, flag):
    assert flags_of(scheduling={"classes": [{"name": "chat", **given}]}) == [flag]


@pytest.mark.parametrize(
    ("slo", "policy", "flags"),
    [
        (None, None, []),
        ({}, None, ["--ttft-target=0.5"]),
        ({"tpotP95": "20ms"}, None, ["--ttft-target=0.5"]),
        ({"ttftP95": "2s"}, None, ["--ttft-target=2"]),
        ({"ttftP95": "2s"}, "deadline", ["--scheduling-policy=deadline", "--ttft-target=2"]),
        ({"ttftPerThousandTokens": "60ms"}, None, ["--ttft-target=0.5", "--ttft-per-1k-tokens=0.06"]),
        ({"ttftPerThousandTokens": "0s"}, None, ["--ttft-target=0.5"]),
        ({"ttftPerThousandTokens": "60ms"}, "fcfs", []),
        ({"ttftP95": "2s"}, "fcfs", []),
        ({"ttftP95": "2s"}, "fair", ["--scheduling-policy=fair"]),
    ],
)
def test_engines_get_the_target_that_they_order_by_where_the_service_has_one_and_names_no_other_policy(
    slo, policy, flags
):
    assert flags_of(slo, scheduling={"policy": policy}) == flags


def test_what_prompts_add_to_their_target_is_said_where_classes_have_targets_that_are_counted():
    classes = [{"name": "chat", "slo": {"ttftP95": "1s"}}]
    slo, scheduling = {"ttftPerThousandTokens": "60ms"}, {"classes": classes, "policy": "fair"}
    expected = ["--scheduling-policy=fair", "--ttft-per-1k-tokens=0.06", "--service-class=chat:ttft=1"]
    assert flags_of(slo, scheduling=scheduling) == expected


def test_fcfs_is_said_where_the_target_of_a_class_would_make_it_deadline():
    classes = [{"name": "chat", "slo": {"ttftP95": "1s"}}]
    assert flags_of(scheduling={"classes": classes}) == ["--service-class=chat:ttft=1"]
    flags = flags_of({}, scheduling={"classes": classes, "policy": "fcfs"})
    assert flags == ["--scheduling-policy=fcfs", "--service-class=chat:ttft=1"]


def test_an_engine_shares_its_layers_over_all_accelerators_of_its_pod():
    def flags(count):
        return [flag for flag in engine(make(accelerator={"count": count}))["command"] if "parallel" in flag]

    assert flags(1) == []
    assert flags(4) == ["--tensor-parallel-size=4"]


def test_classes_keep_their_order_since_the_first_takes_requests_that_name_none():
    names = ["rest", "interactive", "batch"]
    assert flags_of(scheduling={"classes": [{"name": name} for name in names]}) == [
        f"--service-class={name}" for name in names
    ]
