"""ServiceConfig from an InferenceService, of this or another version of the CRD."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.service_config import ServiceConfigError, read_service
from inflight_gateway.types import HoldBounds, RateLimits, ScoreWeights, ServiceClass, ServiceConfig, TenantConfig

KEY = ServiceKey("team", "chat")


def manifest(spec: Any):
    return {"metadata": {"namespace": "team", "name": "chat", "uid": "u-1"}, "spec": spec}


def test_defaults_are_those_of_the_crd():
    config, notes = read_service(manifest({"model": {"source": "builtin://smollm2"}, "gateway": {"enabled": True}}))
    assert config == ServiceConfig(KEY, "u-1", "chat")
    assert notes == ()
    assert config.hold == HoldBounds(1000, 64 * 2**20, 60.0)
    assert (config.ttft_s, config.tpot_s, config.max_attempts, config.continuation) == (None, 0.05, 3, True)


@pytest.mark.parametrize(
    ("slo", "policy", "target"),
    [
        (None, None, None),
        ({}, None, 0.5),
        ({"tpotP95": "20ms"}, None, 0.5),
        ({"ttftP95": "1s"}, None, 1.0),
        ({"ttftP95": "1s"}, "deadline", 1.0),
        ({"ttftP95": "1s"}, "fcfs", None),
        ({"ttftP95": "1s"}, "fair", None),
    ],
)
def test_requests_wait_by_a_target_where_engines_order_by_it(slo, policy, target):
    """The engines' flags are in `tests/operator/render/test_engine_flags.py`."""
    spec = {"gateway": {"enabled": True}, "slo": slo, "engine": {"scheduling": {"policy": policy}}}
    config, notes = read_service(manifest(spec))
    assert config is not None
    assert (config.ttft_of(config.service_class(None)), notes) == (target, ())
    assert config.picks_ttft_s == (1.0 if slo == {"ttftP95": "1s"} else 0.5)


def test_every_field():
    spec = {
        "model": {"servedName": "llama"},
        "slo": {"ttftP95": "1s", "ttftPerThousandTokens": "60ms", "tpotP95": "20ms"},
        "engine": {
            "maxNumSeqs": 64,
            "scheduling": {
                "priorityAging": "2m30s",
                "classes": [
                    {"name": "interactive", "weight": 4, "slo": {"ttftP95": "200ms"}},
                    {"name": "batch", "priority": -5},
                ],
            },
        },
        "gateway": {
            "enabled": True,
            "continuation": False,
            "maxAttempts": 5,
            "hold": {"maxRequests": 10, "maxBytes": "1Mi", "maxWait": "1m30s"},
            "auth": {"apiKeysSecret": "keys"},
            "tenants": [{"name": "acme", "weight": 2.5, "tokensPerMinute": 1000, "concurrentRequests": 3}],
            "defaultLimits": {"requestsPerMinute": 6},
            "scores": {"pendingTokens": 2, "running": 0, "kvCache": 0.5, "predictedTtft": 3, "prefix": 4},
        },
    }
    assert read_service(manifest(spec)) == (
        ServiceConfig(
            key=KEY,
            uid="u-1",
            model="llama",
            ttft_s=1.0,
            ttft_per_token_s=0.06 / 1000,
            tpot_s=0.02,
            classes=(ServiceClass("interactive", 4.0, 0, 0.2), ServiceClass("batch", 1.0, -5, None)),
            priority_aging_s=150.0,
            max_num_seqs=64,
            hold=HoldBounds(10, 2**20, 90.0),
            continuation=False,
            max_attempts=5,
            weights=ScoreWeights(2, 0, 0.5, 3, 4),
            api_keys_secret="keys",
            tenants=(TenantConfig("acme", 2.5, RateLimits(None, 1000, 3)),),
            default_limits=RateLimits(6),
        ),
        (),
    )


@pytest.mark.parametrize("spec", [{}, {"gateway": {}}, {"gateway": {"enabled": False}}, {"gateway": None}, None])
def test_a_service_without_gateway_is_none(spec):
    assert read_service(manifest(spec)) == (None, ())


@pytest.mark.parametrize(("pool", "served"), [({"enabled": True}, True), ({"enabled": False}, False), ({}, False)])
def test_other_gateways_are_served_where_the_service_has_a_pool(pool, served):
    config, notes = read_service(manifest({"gateway": {"enabled": True, "inferencePool": pool}}))
    assert (config.inference_pool, notes) == (served, ())


def test_fields_that_cannot_be_read_have_their_default_and_a_note():
    spec = {
        "gateway": {"enabled": True, "maxAttempts": 0, "hold": {"maxWait": "soon"}, "tenants": [{"name": 5}, "acme"]},
        "slo": "fast",
    }
    config, notes = read_service(manifest(spec))
    assert config == ServiceConfig(KEY, "u-1", "chat", ttft_s=0.5)
    assert [note.split(" cannot")[0] for note in notes] == [
        "spec.slo",
        "spec.gateway.hold.maxWait",
        "spec.gateway.maxAttempts",
        "spec.gateway.tenants[1]",
        "spec.gateway.tenants[0].name",
    ]


@pytest.mark.parametrize(
    ("spec", "apart"),
    [({}, "Off"), ({"mode": "Auto"}, "Auto"), ({"mode": "Fixed", "prefill": {}}, "Fixed"), ({"mode": "Other"}, "Off")],
)
def test_prompts_are_computed_apart_where_the_service_says_so(spec, apart):
    config, _ = read_service(manifest({"gateway": {"enabled": True}, "disaggregation": spec}))
    assert config is not None
    assert config.apart == apart


@pytest.mark.parametrize(
    ("auth", "secret", "tenants"),
    [
        ({"jwtTenants": ["acme", "umbrella"]}, None, ("acme", "umbrella")),
        ({"jwtTenants": ["*"]}, None, ("*",)),
        ({"apiKeysSecret": "keys", "jwtTenants": ["acme"]}, "keys", ("acme",)),
        ({"apiKeysSecret": "keys"}, "keys", ()),
    ],
)
def test_keys_and_tokens_are_asked_for_each_alone_or_both(auth, secret, tenants):
    config, notes = read_service(manifest({"gateway": {"enabled": True, "auth": auth}}))
    assert (config.api_keys_secret, config.jwt_tenants, config.keyed, notes) == (secret, tenants, True, ())


UNREADABLE_AUTH = (
    {}, {"apiKeysSecret": ""}, {"apiKeysSecret": 5}, {"apiKeysFrom": "keys"}, "keys", {"jwtTenants": []},
    {"jwtTenants": "acme"}, {"jwtTenants": [""]}, {"jwtTenants": [5]}, {"apiKeysSecret": "keys", "jwtTenants": "acme"},
    {"apiKeysSecret": 5, "jwtTenants": ["acme"]},
)  # fmt: skip


@pytest.mark.parametrize("auth", UNREADABLE_AUTH)
def test_keys_that_are_asked_for_but_cannot_be_read_close_the_service(auth):
    with pytest.raises(ServiceConfigError, match="must name a Secret in apiKeysSecret"):
        read_service(manifest({"gateway": {"enabled": True, "auth": auth}}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        name: JSON | st.dictionaries(st.sampled_from(["name", "weight", "slo", "maxWait", "maxBytes", "classes"]), JSON)
        for name in ("hold", "tenants", "scores", "defaultLimits", "continuation", "maxAttempts")
    },
)


@given(FIELDS, JSON, JSON)
def test_no_spec_is_too_odd_to_be_read(gateway, slo, engine):
    spec = {"gateway": {**gateway, "enabled": True}, "slo": slo, "engine": engine, "scaling": {"minReplicas": slo}}
    config, _ = read_service(manifest(spec))
    assert config.key == KEY
    assert config.hold.max_bytes >= 0
