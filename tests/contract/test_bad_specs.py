"""Wrong specs are refused by the API server itself, each with a sentence that names the field and what to do."""

from pathlib import Path

import pytest

from tests.contract.manifests import service_manifest

pytestmark = pytest.mark.contract

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
MODEL = {"source": "builtin://smollm2"}


def spec(**parts):
    return {"model": MODEL, **parts}


def template(**parts):
    return spec(template=parts)


BAD = {
    "an unknown source scheme": (
        {"model": {"source": "ftp://models/x"}},
        "model.source must begin with builtin://, hf:// or pvc://, such as builtin://smollm2",
    ),
    "a claim without a folder": (
        {"model": {"source": "pvc://models"}},
        "model.source with pvc:// must be pvc://CLAIM/FOLDER with a folder inside the claim, such as pvc://models/",
    ),
    "a folder that leaves the claim": (
        {"model": {"source": "pvc://models/../secrets"}},
        "model.source with pvc:// must be pvc://CLAIM/FOLDER with a folder inside the claim",
    ),
    "a Hugging Face address in place of a name": (
        {"model": {"source": "hf://a/b/c"}},
        "model.source with hf:// must be hf://ORGANIZATION/NAME, such as hf://Qwen/Qwen3-8B",
    ),
    "a built-in model without a name": (
        {"model": {"source": "builtin://"}},
        "model.source with builtin:// must name a model in the engine image, such as builtin://smollm2",
    ),
    "a revision of something without revisions": (
        {"model": {**MODEL, "revision": "v2"}},
        "model.revision is for hf:// sources only: the other sources have no revisions",
    ),
    "no model": ({}, "spec.model: Required value"),
    "fewer replicas at most than at least": (
        spec(scaling={"minReplicas": 9}),
        "scaling.maxReplicas must be at least scaling.minReplicas",
    ),
    "no replicas at least": (
        spec(scaling={"minReplicas": 0}),
        "spec.scaling.minReplicas in body should be greater than or equal to 1",
    ),
    "replicas set while the operator decides": (
        spec(replicas=4),
        "replicas is set by hand or by an autoscaler only when scaling.mode is External; in mode Operator set"
        " scaling.minReplicas and scaling.maxReplicas",
    ),
    "a KV target above one": (
        spec(scaling={"targets": {"kvUtilization": 80}}),
        "scaling.targets.kvUtilization must be above 0 and at most 1, such as 0.8",
    ),
    "a KV target of zero": (
        spec(scaling={"targets": {"kvUtilization": 0}}),
        "scaling.targets.kvUtilization must be above 0 and at most 1, such as 0.8",
    ),
    "an unknown scaling mode": (
        spec(scaling={"mode": "HPA"}),
        'spec.scaling.mode: Unsupported value: "HPA": supported values: "Operator", "External"',
    ),
    "tuning above the sequence capacity": (
        spec(engine={"maxNumSeqs": 64}, tuning={"maxNumSeqs": {"max": 128}}),
        "tuning.maxNumSeqs.max must not exceed engine.maxNumSeqs, the capacity an engine starts with",
    ),
    "tuning bounds the wrong way round": (
        spec(tuning={"maxNumSeqs": {"min": 64, "max": 32}}),
        "tuning.maxNumSeqs.min must not exceed tuning.maxNumSeqs.max (default: engine.maxNumSeqs)",
    ),
    "a lower tuning bound above capacity": (
        spec(tuning={"maxNumSeqs": {"min": 300}}),
        "tuning.maxNumSeqs.min must not exceed tuning.maxNumSeqs.max (default: engine.maxNumSeqs)",
    ),
    "tuning above the token capacity": (
        spec(tuning={"maxNumBatchedTokens": {"max": 10000}}),
        "tuning.maxNumBatchedTokens.max must not exceed engine.maxNumBatchedTokens",
    ),
    "token bounds the wrong way round": (
        spec(tuning={"maxNumBatchedTokens": {"min": 512, "max": 256}}),
        "tuning.maxNumBatchedTokens.min must not exceed tuning.maxNumBatchedTokens.max",
    ),
    "a latency without a unit": (
        spec(slo={"ttftP95": "500"}),
        "slo.ttftP95 must be a duration above zero, such as 500ms, 2s or 1m30s",
    ),
    "a latency of zero": (spec(slo={"tpotP95": "0ms"}), "slo.tpotP95 must be a duration above zero"),
    "a negative timeout": (spec(engine={"queueTimeout": "-5s"}), "engine.queueTimeout must be a duration above zero"),
    "an unknown rollout strategy": (
        spec(rollout={"strategy": "Recreate"}),
        'spec.rollout.strategy: Unsupported value: "Recreate": supported values: "SurgeFirst", "ReleaseFirst"',
    ),
    "float16 on CPU": (
        spec(engine={"dtype": "float16"}, accelerator={"count": 0}),
        "engine.dtype float16 needs an accelerator: with accelerator.count 0 use auto, float32 or bfloat16",
    ),
    "several accelerators": (
        spec(accelerator={"count": 2}),
        "accelerator.count must be 1, or 0 for CPU: a replica runs on one accelerator",
    ),
    "an accelerator that is no resource name": (
        spec(accelerator={"resource": "gpu"}),
        "accelerator.resource must be a resource name such as nvidia.com/gpu",
    ),
    "a KV cache size that is no quantity": (
        spec(engine={"kvCache": {"memory": "4 GB"}}),
        "engine.kvCache.memory must be a quantity above zero, such as 4Gi",
    ),
    "an empty KV cache": (
        spec(engine={"kvCache": {"memory": 0}}),
        "engine.kvCache.memory must be a quantity above zero, such as 4Gi",
    ),
    "a flag that is a field": (
        spec(engine={"extraArgs": ["--block-size=32", "--max-num-seqs=512"]}),
        "engine.extraArgs cannot repeat a flag that the operator sets",
    ),
    "a flag that is a field, in two words": (
        spec(engine={"extraArgs": ["--port", "9000"]}),
        "engine.extraArgs cannot repeat a flag that the operator sets",
    ),
    "a label the Service finds pods by": (
        template(labels={"inflight.dev/service": "other"}),
        "template.labels cannot set inflight.dev/... or app.kubernetes.io/name, instance and managed-by",
    ),
    "an admin token of one's own": (
        template(env=[{"name": "INFLIGHT_ADMIN_TOKEN", "value": "x"}]),
        "template.env cannot set INFLIGHT_ADMIN_TOKEN or INFLIGHT_ADMIN_TOKEN_FILE",
    ),
    "a variable with two values": (
        template(env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        "an environment variable has a value or a valueFrom, not both",
    ),
    "a volume with the operator's name": (
        template(volumes=[{"name": "inflight-limits", "emptyDir": {}}]),
        "template.volumes cannot have a name that begins with inflight-",
    ),
    "a mount over the operator's": (
        template(volumeMounts=[{"name": "x", "mountPath": "/etc/inflight/limits"}]),
        "template.volumeMounts cannot use /tmp, /dev/shm, /models, /etc/inflight: the operator mounts them",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_spec_is_refused_with_its_sentence(kubectl, case):
    bad, sentence = BAD[case]
    refused = kubectl.apply(service_manifest("default", bad), dry_run=True)
    assert refused.returncode == 1, refused.stdout
    assert sentence in refused.stderr


@pytest.mark.parametrize("name", ["1chat", "my.chat", "c" * 51])
def test_a_name_that_cannot_be_a_service_is_refused_with_a_sentence(kubectl, name):
    refused = kubectl.apply(service_manifest("default", spec(), name), dry_run=True)
    assert refused.returncode == 1
    assert "metadata.name must be at most 50 characters of a-z, 0-9 and -, and begin with a letter" in refused.stderr


def test_a_misspelt_field_is_refused_with_its_name(kubectl):
    refused = kubectl.apply(service_manifest("default", spec(scaling={"maxreplicas": 2})))
    assert refused.returncode == 1
    assert 'unknown field "spec.scaling.maxreplicas"' in refused.stderr


GOOD = {
    "the longest name": ("c" * 50, spec()),
    "a Hugging Face model at a revision": (
        "chat",
        {"model": {"source": "hf://Qwen/Qwen3-8B", "revision": "refs/pr/1"}},
    ),
    "a Hugging Face model without an organization": ("chat", {"model": {"source": "hf://gpt2"}}),
    "a claim": ("chat", {"model": {"source": "pvc://models.team/qwen3/8b"}}),
    "a budget below the default tuning floor": ("chat", spec(engine={"maxNumBatchedTokens": 16})),
    "bytes for the KV cache": ("chat", spec(engine={"kvCache": {"memory": 1073741824}})),
    "a compound duration": ("chat", spec(rollout={"drainTimeout": "1m30.5s"})),
    "a flag that only begins like a field": ("chat", spec(engine={"extraArgs": ["--port-range=1"]})),
    "scaling down disabled": ("chat", spec(scaling={"behavior": {"scaleDown": {"selectPolicy": "Disabled"}}})),
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_accepted(kubectl, example):
    accepted = kubectl.run("create", "--dry-run=server", "--validate=strict", "-n", "default", "-f", str(example))
    assert accepted.returncode == 0, accepted.stderr
    assert "inferenceservice.inflight.dev" in accepted.stdout


@pytest.mark.parametrize("case", GOOD)
def test_a_good_spec_is_accepted(kubectl, case):
    name, good = GOOD[case]
    accepted = kubectl.apply(service_manifest("default", good, name), dry_run=True)
    assert accepted.returncode == 0, accepted.stderr
