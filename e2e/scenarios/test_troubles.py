"""A service that cannot work says why, in a sentence a person can act on."""

import json

import pytest

from e2e.scenarios.conftest import apply, manifest
from inflight_base.manifest.pods import condition
from tools.localcluster import ClusterError, kubectl
from tools.testbed.service import is_ready

TROUBLES = {
    "no-gpu": ({"accelerator": {"count": 1}}, ["nvidia.com/gpu", "accelerator.count"]),
    "no-model": ({"model": {"source": "builtin://nonesuch"}}, ["builtin://nonesuch", "builtin://smollm2"]),
    "no-claim": ({"model": {"source": "pvc://nonesuch/model"}}, ["nonesuch", "not found"]),
    "no-secret": (
        {"model": {"source": "s3://models/tiny", "credentialsSecret": "nonesuch"}},
        ['secret "nonesuch" not found', "model.credentialsSecret"],
    ),
    "no-image": ({"engine": {"image": "localhost/nonesuch:1"}}, ["localhost/nonesuch:1"]),
    "no-memory": ({"template": {"resources": {"limits": {"memory": "200Mi"}}}}, ["200Mi", "memory"]),
}


@pytest.fixture(scope="module")
def services(namespace):
    """Applies all services at once: they wait beside each other."""
    return {name: apply(name, namespace, **spec) for name, (spec, _) in TROUBLES.items()}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_service_that_cannot_start_says_why(services, name):
    words = TROUBLES[name][1]

    def says(status):
        return not is_ready(status) and all(word in condition(status, "Ready").get("message", "") for word in words)

    status = services[name].wait(f"a message with {words}", says, seconds=120)
    assert condition(status, "Ready")["status"] == "False"
    assert len(condition(status, "Ready")["message"]) < 500


BAD_SPECS = {
    "spec.model.source": {"model": {"source": "ftp://somewhere/model"}},
    "maxReplicas": {"scaling": {"minReplicas": 5, "maxReplicas": 2}},
    "tuning.maxNumSeqs": {"tuning": {"maxNumSeqs": {"min": 10, "max": 2}}},
    "spec.slo.tpotP95": {"slo": {"tpotP95": "fast"}},
    "spec.engine.dtype": {"engine": {"dtype": "int3"}},
    "spec.scaling.targets.kvUtilization": {"scaling": {"targets": {"kvUtilization": 7}}},
    "--port": {"engine": {"extraArgs": ["--port=1"]}},
    "unknown field": {"scalling": {"maxReplicas": 2}},
}


@pytest.mark.parametrize("words", BAD_SPECS)
def test_a_wrong_spec_is_refused_at_apply_with_a_sentence_that_names_it(namespace, words):
    bad = json.dumps(manifest("bad", namespace, **BAD_SPECS[words]))
    with pytest.raises(ClusterError) as refusal:
        kubectl("apply", "--validate=strict", "-f", "-", input=bad)
    assert words in str(refusal.value)
