"""Wrong specs are refused by the API server itself, each with a sentence that names the field and what to do."""

from pathlib import Path

import pytest

from tests.contract.manifests import service_manifest

pytestmark = pytest.mark.contract

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
MODEL = {"source": "builtin://smollm2"}
NONE = {"count": 0}
"""No accelerator."""


def spec(**parts):
    return {"model": MODEL, **parts}


def template(**parts):
    return spec(template=parts)


def classes(*given):
    return spec(engine={"scheduling": {"classes": list(given)}})


def gateway(**parts):
    return spec(gateway={"enabled": True, **parts})


def apart(prefill=None, **parts):
    """Prompts on other engines."""
    swap = {"engine": {"kvCache": {"swap": "4Gi"}}}
    return {**gateway(), **swap, "disaggregation": {"mode": "Auto", "prefill": prefill or {}}, **parts}


BAD = {
    **{
        f"prompts on other engines {what}": (bad, sentence)
        for what, bad, sentence in (
            (
                "without the gateway",
                apart(gateway={}),
                "disaggregation.mode Auto and Fixed need the gateway, which sends prompts to prefill engines: set"
                " gateway.enabled true",
            ),
            (
                "behind another gateway",
                apart(gateway={"enabled": True, "inferencePool": {"enabled": True}}),
                "disaggregation.mode Auto and Fixed exclude gateway.inferencePool.enabled",
            ),
            (
                "of vLLM",
                apart(engine={"type": "vllm"}),
                "disaggregation.mode Auto and Fixed are for engine.type inflight only",
            ),
            (
                "without host memory",
                apart(engine={}),
                "disaggregation.mode Auto and Fixed need engine.kvCache.swap, such as 4Gi, and prefixCaching",
            ),
            (
                "that cache nothing",
                apart(engine={"kvCache": {"swap": "4Gi", "prefixCaching": False}}),
                "disaggregation.mode Auto and Fixed need engine.kvCache.swap, such as 4Gi, and prefixCaching",
            ),
            (
                "of several accelerators",
                apart({"accelerator": {"count": 2}}),
                "disaggregation.mode Auto and Fixed are for engines with one accelerator at most",
            ),
            (
                "for those of several accelerators",
                apart(accelerator={"count": 2}),
                "disaggregation.mode Auto and Fixed are for engines with one accelerator at most",
            ),
            (
                "while there are no others",
                apart(scaling={"minReplicas": 0}),
                "disaggregation.mode Auto and Fixed need scaling.minReplicas of 1 or more",
            ),
            (
                "that sleep",
                apart(scaling={"sleep": {"after": "5m"}}, accelerator=NONE),
                "disaggregation.mode Auto and Fixed exclude scaling.sleep",
            ),
            ("of which none need be", apart({"minReplicas": 0}), "spec.disaggregation.prefill.minReplicas"),
            (
                "of which more must be than may",
                apart({"minReplicas": 3}, scaling={"maxReplicas": 2}),
                "disaggregation.prefill.maxReplicas (default: scaling.maxReplicas) must be at least"
                " disaggregation.prefill.minReplicas",
            ),
            (
                "on CPUs for accelerators",
                apart({"accelerator": NONE}),
                "disaggregation.prefill.accelerator.count must be 0 where accelerator.count is, and above 0 where it is"
                " not",
            ),
            (
                "without the disk's volume",
                apart(
                    {"template": {}},
                    engine={"kvCache": {"swap": "4Gi", "disk": {"size": "100Gi", "volume": "nvme"}}},
                    template={"volumes": [{"name": "nvme", "emptyDir": {}}]},
                ),
                "disaggregation.prefill.template takes the place of template, so it needs the volume that"
                " engine.kvCache.disk.volume names",
            ),
        )
    },
    "an unknown source scheme": (
        {"model": {"source": "ftp://models/x"}},
        "model.source must begin with builtin://, hf://, pvc://, oci://, s3://, gs://, az:// or https://, such as",
    ),
    **{
        f"a store's URL with {what}": ({"model": {"source": url}}, "model.source with s3://, gs:// or az:// must be")
        for what, url in {
            "no bucket": "s3://",
            "a folder alone": "gs:///folder",
            "a signature": "https://host/folder?sig=abc",
            "a password": "https://me:secret@host/folder",
            "a fragment": "s3://bucket/folder#1",
            "an empty part": "s3://bucket//folder",
            "a step upwards": "az://container/../other",
            "a step upwards at its end": "az://container/a/..",
            "a space": "s3://bucket/my model",
        }.items()
    },
    **{
        f"an image {url}": ({"model": {"source": url}}, "model.source with oci:// must be the reference of an image")
        for url in ("oci://", "oci:///qwen", "oci://reg/a b", "oci://reg/a@sha256:12", "oci://reg//a", "oci://-reg/a")
    },
    **{
        f"a path {path} in an image": (
            spec(model={"source": "oci://registry/qwen", "path": path}),
            "model.path must be a folder inside the image",
        )
        for path in ("/models", "../models", "a/..")
    },
    "a prefetch of a model in the image": (
        spec(model={**MODEL, "prefetch": {"nodeSelector": {"disk": "fast"}}}),
        "model.prefetch is for hf://, oci://, s3://, gs://, az:// and https:// sources only",
    ),
    "a prefetch of a model in a claim": (
        spec(model={"source": "pvc://models/a", "prefetch": {"nodeSelector": {"disk": "fast"}}}),
        "model.prefetch is for hf://, oci://, s3://, gs://, az:// and https:// sources only",
    ),
    **{
        f"a prefetch to nodes with {what}": (
            spec(model={"source": "s3://models/a", "prefetch": {"nodeSelector": labels}}),
            "model.prefetch.nodeSelector must have at least one label of the nodes",
        )
        for what, labels in {
            "no label": {},
            "a label that has no name": {"example.com/": "fast"},
            "a value that no label has": {"disk": "very fast"},
            "a name that no label has": {"disk type": "fast"},
        }.items()
    },
    "a prefetch to no nodes": (
        spec(model={"source": "s3://models/a", "prefetch": {}}),
        "spec.model.prefetch.nodeSelector: Required value",
    ),
    "a path in a claim": (
        spec(model={"source": "pvc://models/a", "path": "b"}),
        "model.path is for oci:// sources only",
    ),
    "a file without TLS": ({"model": {"source": "http://host/folder"}}, "model.source must begin with builtin://"),
    "an endpoint of a source that names its server": (
        spec(model={"source": "https://host/folder", "endpoint": "https://minio:9000"}),
        "model.endpoint is for s3://, gs:// and az:// sources only",
    ),
    "an endpoint that is no URL": (
        spec(model={"source": "s3://models/a", "endpoint": "minio:9000"}),
        "model.endpoint must be a URL such as https://minio.storage.svc:9000",
    ),
    "certificates for a model that no store has": (
        spec(model={**MODEL, "caConfigMap": "ca"}),
        "model.caConfigMap is for s3://, gs://, az:// and https:// sources only",
    ),
    "credentials for a model in the image": (
        spec(model={**MODEL, "credentialsSecret": "s3"}),
        "model.credentialsSecret is for hf://, s3://, gs://, az:// and https:// sources only",
    ),
    "a model in a store for vLLM": (
        spec(model={"source": "s3://models/a"}, engine={"type": "vllm"}),
        "model.source s3://, gs://, az:// and https:// are for engine.type inflight only",
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
    "zero replicas without a gateway that holds requests": (
        spec(scaling={"minReplicas": 0}),
        "scaling.minReplicas 0 needs the gateway, which holds requests while no replica runs: set gateway.enabled true,"
        " or scaling.minReplicas to 1 or more",
    ),
    "no replica at most": (
        {**gateway(), "scaling": {"minReplicas": 0, "maxReplicas": 0}},
        "spec.scaling.maxReplicas in body should be greater than or equal to 1",
    ),
    "sleep at once": (
        {**gateway(), "scaling": {"minReplicas": 0, "idleTimeout": "1s"}},
        "scaling.idleTimeout must be between 10s and 168h",
    ),
    "sleep after no duration": (
        spec(scaling={"idleTimeout": "soon"}),
        "scaling.idleTimeout must be a duration above zero, such as 500ms, 2s or 1m30s",
    ),
    "API keys without a gateway that checks them": (
        spec(gateway={"auth": {"apiKeysSecret": "keys"}}),
        "gateway.auth needs gateway.enabled true: without the gateway, API keys are not checked",
    ),
    "API keys in a Secret that can have no such name": (
        gateway(auth={"apiKeysSecret": "My Keys"}),
        "gateway.auth.apiKeysSecret must be the name of a Secret, such as inflight-api-keys",
    ),
    "clients that no one names": (gateway(auth={}), "gateway.auth must have apiKeysSecret, jwtTenants or both"),
    "tokens of no tenant": (gateway(auth={"jwtTenants": []}), "spec.gateway.auth.jwtTenants"),
    "a tenant's name of tokens": (
        gateway(auth={"jwtTenants": ["acme", "a b"]}),
        "gateway.auth.jwtTenants must be names of tenants, such as acme, or *",
    ),
    "tenants that clients name beside those that the gateway signs": (
        {**gateway(), "engine": {"extraArgs": ["--trust-tenant-header"]}},
        "engine.extraArgs --trust-tenant-header and gateway.enabled exclude each other: engines behind the gateway"
        " believe the tenant that it signs",
    ),
    "API keys that engines check behind a gateway that removes them": (
        {**gateway(auth={"apiKeysSecret": "keys"}), "engine": {"extraArgs": ["--api-key=secret"]}},
        "engine.extraArgs --api-key and gateway.auth exclude each other: the gateway checks API keys, and removes them"
        " from requests",
    ),
    "gRPC beside a gateway that signs all requests": (
        {**gateway(auth={"apiKeysSecret": "keys"}), "engine": {"grpc": True}},
        "engine.grpc and gateway.auth exclude each other",
    ),
    "KV events by field and by flag": (
        spec(engine={"kvEvents": True, "extraArgs": ['--kv-events-config={"enable_kv_cache_events":true}']}),
        "engine.kvEvents and --kv-events-config in engine.extraArgs exclude each other: keep one",
    ),
    "no attempt": (
        gateway(maxAttempts=0),
        "spec.gateway.maxAttempts in body should be greater than or equal to 1",
    ),
    "two tenants of one name": (
        gateway(tenants=[{"name": "acme"}, {"name": "acme", "weight": 2}]),
        'spec.gateway.tenants[1]: Duplicate value: {"name":"acme"}',
    ),
    "a tenant of a name that no header can carry": (
        gateway(tenants=[{"name": "acme inc"}]),
        "gateway.tenants.name must be at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or"
        " digit, such as acme",
    ),
    "a tenant that starves": (
        gateway(tenants=[{"name": "acme", "weight": 0}]),
        "gateway.tenants.weight must be above 0, such as 2: a tenant of 0 would starve",
    ),
    "a tenant that may do nothing": (
        gateway(tenants=[{"name": "acme", "requestsPerMinute": 0}]),
        "spec.gateway.tenants[0].requestsPerMinute in body should be greater than or equal to 1",
    ),
    "a score that repels": (
        gateway(scores={"prefix": -1}),
        "spec.gateway.scores.prefix in body should be greater than or equal to 0",
    ),
    "no room for held requests": (
        gateway(hold={"maxBytes": "100Ki"}),
        "gateway.hold.maxBytes must be a quantity from 1Mi to 16Gi, such as 64Mi",
    ),
    "room for held requests that is no quantity": (
        gateway(hold={"maxBytes": "lots"}),
        "gateway.hold.maxBytes must be a quantity from 1Mi to 16Gi, such as 64Mi",
    ),
    "requests that are held for a day": (
        gateway(hold={"maxWait": "24h"}),
        "gateway.hold.maxWait must be between 1s and 1h",
    ),
    "limits by hand above the capacity": (
        spec(tuning={"override": {"maxNumSeqs": 1000, "until": "2030-01-31T12:00:00Z"}}),
        "tuning.override.maxNumSeqs must not exceed engine.maxNumSeqs, the capacity an engine starts with;"
        " `kubectl inflight limits SERVICE --clear` removes an override, also one that has ended",
    ),
    "limits by hand without an end": (
        spec(tuning={"override": {"maxNumSeqs": 8}}),
        "spec.tuning.override.until: Required value",
    ),
    "limits by hand with an end that is no time": (
        spec(tuning={"override": {"maxNumSeqs": 8, "until": "in ten minutes"}}),
        "spec.tuning.override.until in body must be of type date-time",
    ),
    "limits by hand that end after all calendars": (
        spec(tuning={"override": {"maxNumSeqs": 8, "until": "9999-12-31T23:59:59-12:00"}}),
        "tuning.override.until must be a time from 2000 to 8999",
    ),
    "limits by hand without a limit": (
        spec(tuning={"override": {"until": "2030-01-31T12:00:00Z"}}),
        "tuning.override needs a limit to set: maxNumSeqs, maxNumBatchedTokens, or both",
    ),
    "no replicas at least": (
        spec(scaling={"minReplicas": -1}),
        "spec.scaling.minReplicas in body should be greater than or equal to 0",
    ),
    "replicas set while the operator decides": (
        spec(replicas=4),
        "replicas is set by hand or by an autoscaler only when scaling.mode is External; in mode Operator set"
        " scaling.minReplicas and scaling.maxReplicas",
    ),
    "the replicas that were once the default, while the operator decides": (
        spec(replicas=1),
        "replicas is set by hand or by an autoscaler only when scaling.mode is External",
    ),
    "storage for something that is not downloaded": (
        spec(model={**MODEL, "storage": "1Gi"}),
        "model.storage is for hf:// sources, and for others with model.peers: without it they are not copied to a disk",
    ),
    "storage for weights that no peer reads": (
        spec(model={"source": "s3://models/a", "peers": False, "storage": "1Gi"}),
        "model.storage is for hf:// sources, and for others with model.peers",
    ),
    **{
        f"peers of a model of {source}": (
            spec(model={"source": source, "peers": True}),
            "model.peers is for s3://, gs://, az:// and https:// sources only",
        )
        for source in ("builtin://smollm2", "hf://a/b", "pvc://models/a", "oci://registry/qwen")
    },
    "peers of another engine": (
        spec(model={"source": "s3://models/a", "peers": True}, engine={"type": "vllm"}),
        "model.peers is for engine.type inflight only",
    ),
    "storage that is no quantity": (
        spec(model={"source": "hf://a/b", "storage": "much"}),
        "model.storage must be a quantity above zero, such as 100Gi",
    ),
    "no storage for a download": (
        spec(model={"source": "hf://a/b", "storage": 0}),
        "model.storage must be a quantity above zero, such as 100Gi",
    ),
    "less time to start than a pod needs at least": (
        spec(rollout={"startupTimeout": "5s"}),
        "rollout.startupTimeout must be between 10s and 24h",
    ),
    "the pod's uid of one's own": (
        template(env=[{"name": "INFLIGHT_POD_UID", "value": "x"}]),
        "template.env cannot set INFLIGHT_ADMIN_TOKEN, INFLIGHT_ADMIN_TOKEN_FILE, INFLIGHT_POD_UID",
    ),
    "a KV target above one": (
        spec(scaling={"targets": {"kvUtilization": 80}}),
        "scaling.targets.kvUtilization must be above 0 and at most 1, such as 0.8",
    ),
    "a KV target of zero": (
        spec(scaling={"targets": {"kvUtilization": 0}}),
        "scaling.targets.kvUtilization must be above 0 and at most 1, such as 0.8",
    ),
    "a concurrency target of zero": (
        spec(scaling={"targets": {"concurrency": 0}}),
        "spec.scaling.targets.concurrency: Invalid value: 0",
    ),
    "a replica that costs nothing": (
        spec(cost={"pricePerReplicaHour": "0"}),
        "cost.pricePerReplicaHour must be a number above zero and at most 1000000, such as '2.50'",
    ),
    "a price that is no number": (
        spec(cost={"pricePerReplicaHour": "cheap"}),
        "cost.pricePerReplicaHour must be a number above zero and at most 1000000, such as '2.50'",
    ),
    "a price in millions": (
        spec(cost={"pricePerReplicaHour": "2M"}),
        "cost.pricePerReplicaHour must be a number above zero and at most 1000000, such as '2.50'",
    ),
    "a cost without a price": (spec(cost={"currency": "USD"}), "spec.cost.pricePerReplicaHour: Required value"),
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
    "a time to first token that an engine would not take": (
        spec(slo={"ttftP95": "0.5ms"}),
        "slo.ttftP95 must be between 1ms and 240h",
    ),
    "a time for a thousand tokens without a unit": (
        spec(slo={"ttftPerThousandTokens": "60"}),
        "slo.ttftPerThousandTokens must be a duration, such as 0ms, 500ms or 2s",
    ),
    "a time for a thousand tokens below zero": (
        spec(slo={"ttftPerThousandTokens": "-1ms"}),
        "slo.ttftPerThousandTokens must be a duration, such as 0ms, 500ms or 2s",
    ),
    "a time for a thousand tokens that an engine would not take": (
        spec(slo={"ttftPerThousandTokens": "61s"}),
        "slo.ttftPerThousandTokens must be between 0s and 60s",
    ),
    "a latency of zero": (spec(slo={"tpotP95": "0ms"}), "slo.tpotP95 must be a duration above zero"),
    "a timeout that an engine would not take": (
        spec(engine={"queueTimeout": "0.5ms"}),
        "engine.queueTimeout must be between 1ms and 240h",
    ),
    "two sizes of the KV cache": (
        spec(engine={"kvCache": {"memory": "1Gi"}, "extraArgs": ["--num-kv-blocks=100"]}),
        "engine.kvCache.memory and --num-kv-blocks in engine.extraArgs exclude each other",
    ),
    "a negative timeout": (spec(engine={"queueTimeout": "-5s"}), "engine.queueTimeout must be a duration above zero"),
    "an unknown rollout strategy": (
        spec(rollout={"strategy": "Recreate"}),
        'spec.rollout.strategy: Unsupported value: "Recreate": supported values: "SurgeFirst", "ReleaseFirst"',
    ),
    "a surge in words": (
        spec(rollout={"maxSurge": "some"}),
        "rollout.maxSurge must be a number of pods from 0 to 10000, or a percentage of the replicas",
    ),
    "more than all replicas": (
        spec(rollout={"maxUnavailable": "101%"}),
        "rollout.maxUnavailable must be a number of pods from 0 to 10000, or a percentage of the replicas",
    ),
    "a negative surge": (spec(rollout={"maxSurge": -1}), "rollout.maxSurge must be a number of pods from 0 to 10000"),
    "no surge with SurgeFirst": (
        spec(rollout={"maxSurge": "0%", "maxUnavailable": 1}),
        "rollout.maxSurge 0 needs rollout.strategy ReleaseFirst",
    ),
    "no release with ReleaseFirst": (
        spec(rollout={"strategy": "ReleaseFirst", "maxUnavailable": 0, "maxSurge": 1}),
        "rollout.maxUnavailable 0 needs rollout.strategy SurgeFirst",
    ),
    "a release after a time with ReleaseFirst": (
        spec(rollout={"strategy": "ReleaseFirst", "releaseAfter": "5m"}),
        "rollout.releaseAfter needs rollout.strategy SurgeFirst",
    ),
    "clients beside API keys": (
        spec(networkPolicy={"from": []}, gateway={"enabled": True, "auth": {"apiKeysSecret": "keys"}}),
        "networkPolicy.from and gateway.auth exclude each other",
    ),
    "a client that is both pods and addresses": (
        spec(networkPolicy={"from": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}),
        "networkPolicy.from needs podSelector, namespaceSelector or both, or else ipBlock alone",
    ),
    "addresses that are none": (
        spec(networkPolicy={"from": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}),
        "spec.networkPolicy.from[0].ipBlock.cidr",
    ),
    "an address without a length": (
        spec(networkPolicy={"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.1"]}}]}),
        "spec.networkPolicy.from[0].ipBlock.except[0]",
    ),
    "an exception as wide as the addresses": (
        spec(networkPolicy={"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}}]}),
        "networkPolicy.from ipBlock.except must have parts of ipBlock.cidr",
    ),
    "an exception of the other family": (
        spec(networkPolicy={"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["fd00::/64"]}}]}),
        "networkPolicy.from ipBlock.except must have parts of ipBlock.cidr",
    ),
    "a claim of devices that is two": (
        template(resourceClaims=[{"name": "a", "resourceClaimName": "b", "resourceClaimTemplateName": "c"}]),
        "template.resourceClaims needs exactly one of resourceClaimName and resourceClaimTemplateName",
    ),
    "a class of another form": (spec(className="Team A"), "spec.className: Invalid value"),
    "float16 on CPU": (
        spec(engine={"dtype": "float16"}, accelerator={"count": 0}),
        "engine.dtype float16 needs an accelerator: with accelerator.count 0 use auto, float32 or bfloat16",
    ),
    "too many accelerators": (
        spec(accelerator={"count": 17}),
        "spec.accelerator.count: Invalid value: 17: spec.accelerator.count in body should be less than or equal to 16",
    ),
    "quantized weights on an accelerator": (
        spec(engine={"quantization": "int8"}, accelerator={"count": 1}),
        "engine.quantization int8 and int4 run on CPU: set accelerator.count 0, or leave it none",
    ),
    "an fp8 cache on CPU": (
        spec(engine={"kvCache": {"dtype": "fp8"}}, accelerator={"count": 0}),
        "engine.kvCache.dtype fp8 needs an accelerator: with accelerator.count 0 leave it auto",
    ),
    "a share of an accelerator's memory on CPU": (
        spec(engine={"kvCache": {"memoryFraction": 0.5}}, accelerator={"count": 0}),
        "engine.kvCache.memoryFraction is a share of an accelerator's memory: with accelerator.count 0 set",
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
    "more headroom than would leave a cache": (
        spec(engine={"kvCache": {"headroom": 0.95}}),
        "spec.engine.kvCache.headroom in body should be less than or equal to 0.9",
    ),
    "negative headroom": (
        spec(engine={"kvCache": {"headroom": -0.1}}),
        "spec.engine.kvCache.headroom in body should be greater than or equal to 0",
    ),
    "swap memory that is no quantity": (
        spec(engine={"kvCache": {"swap": "4 GB"}}),
        "engine.kvCache.swap must be 0 or a quantity of at least 1Mi, such as 4Gi",
    ),
    "negative swap memory": (
        spec(engine={"kvCache": {"swap": "-1Gi"}}),
        "engine.kvCache.swap must be 0 or a quantity of at least 1Mi, such as 4Gi",
    ),
    "swap memory without its unit": (
        spec(engine={"kvCache": {"swap": 4}}),
        "engine.kvCache.swap must be 0 or a quantity of at least 1Mi, such as 4Gi",
    ),
    "sleep on an accelerator": (
        spec(scaling={"sleep": {"after": "5m"}}, accelerator={"count": 1}),
        "scaling.sleep is for engines on CPUs: with accelerator.count above 0, scaling.minReplicas 0 frees"
        " accelerators",
    ),
    "sleep without a time": (spec(scaling={"sleep": {}}), "spec.scaling.sleep.after: Required value"),
    "sleep after no time": (
        spec(scaling={"sleep": {"after": "0s"}}),
        "scaling.sleep.after must be a duration above zero, such as 500ms, 2s or 1m30s",
    ),
    "sleep after less than a second": (
        spec(scaling={"sleep": {"after": "500ms"}}),
        "scaling.sleep.after must be between 1s and 168h",
    ),
    "sleep after nobody knows how long": (
        spec(scaling={"sleep": {"after": "soon"}}),
        "scaling.sleep.after must be a duration above zero, such as 500ms, 2s or 1m30s",
    ),
    "sleep when no replica is left": (
        {**gateway(), "scaling": {"minReplicas": 0, "idleTimeout": "5m", "sleep": {"after": "300s"}}},
        "scaling.sleep.after must be below scaling.idleTimeout, after which a service with minReplicas 0 has no replica"
        " that could sleep",
    ),
    "a disk without host memory before it": (
        spec(engine={"kvCache": {"disk": {"size": "100Gi"}}}),
        "engine.kvCache.disk is behind host memory: it needs engine.kvCache.swap, prefixCaching, and another"
        " scheduling.preemption than recompute",
    ),
    "a disk of nothing": (
        spec(engine={"kvCache": {"swap": "1Gi", "disk": {"size": "0"}}}),
        "engine.kvCache.disk.size must be a quantity of at least 64Mi, such as 200Gi",
    ),
    "a disk for several accelerators": (
        spec(engine={"kvCache": {"swap": "1Gi", "disk": {"size": "100Gi"}}}, accelerator={"count": 2}),
        "engine.kvCache.disk is for engines of at most one accelerator",
    ),
    "a disk on a volume that is not there": (
        spec(engine={"kvCache": {"swap": "1Gi", "disk": {"size": "100Gi", "volume": "nvme"}}}),
        "engine.kvCache.disk.volume must be the name of a volume of template.volumes",
    ),
    "swapping without memory for it": (
        spec(engine={"scheduling": {"preemption": "swap"}}),
        "engine.scheduling.preemption swap needs host memory: set engine.kvCache.swap, such as 4Gi",
    ),
    "swapping with no memory for it, in other words": (
        spec(engine={"kvCache": {"swap": "0Gi"}, "scheduling": {"preemption": "swap"}}),
        "engine.scheduling.preemption swap needs host memory: set engine.kvCache.swap, such as 4Gi",
    ),
    "an unknown policy": (
        spec(engine={"scheduling": {"policy": "lifo"}}),
        'spec.engine.scheduling.policy: Unsupported value: "lifo": supported values: "fcfs", "sjf", "priority", "fair",'
        ' "deadline"',
    ),
    "an order by a target that there is not": (
        spec(engine={"scheduling": {"policy": "deadline", "classes": [{"name": "chat", "slo": {"tpotP95": "1s"}}]}}),
        "engine.scheduling.policy deadline needs a target: set slo.ttftP95, or slo.ttftP95 of a class",
    ),
    "shedding at once": (
        spec(engine={"scheduling": {"shedAfter": "0s"}}),
        "engine.scheduling.shedAfter must be a duration above zero, such as 500ms, 2s or 1m30s",
    ),
    "shedding sooner than an engine takes": (
        classes({"name": "chat", "shedAfter": "0.5ms"}),
        "engine.scheduling.classes.shedAfter must be between 1ms and 240h",
    ),
    "a class without any time for its requests": (
        classes({"name": "chat", "requestTimeout": "0s"}),
        "engine.scheduling.classes.requestTimeout must be a duration above zero, such as 500ms, 2s or 1m30s",
    ),
    "an unknown way to preempt": (
        spec(engine={"scheduling": {"preemption": "drop"}}),
        'Unsupported value: "drop": supported values: "auto", "recompute", "swap"',
    ),
    "the engine's spelling of a victim": (
        spec(engine={"scheduling": {"preemptionVictim": "last_arrived"}}),
        'Unsupported value: "last_arrived": supported values: "lastArrived", "longestFirst", "mostPreemptedLast"',
    ),
    "aging that never waits": (
        spec(engine={"scheduling": {"priorityAging": "0s"}}),
        "engine.scheduling.priorityAging must be a duration above zero, such as 500ms, 2s or 1m30s",
    ),
    "aging by less than an engine can count": (
        spec(engine={"scheduling": {"priorityAging": "0.5ms"}}),
        "engine.scheduling.priorityAging must be between 1ms and 240h",
    ),
    "aging so slow that it is none": (
        spec(engine={"scheduling": {"priorityAging": "300h"}}),
        "engine.scheduling.priorityAging must be between 1ms and 240h",
    ),
    "a class with a target of weeks": (
        classes({"name": "chat", "slo": {"ttftP95": "300h"}}),
        "engine.scheduling.classes.slo.ttftP95 must be between 1ms and 240h",
    ),
    "a class without a name": (classes({"weight": 2}), "spec.engine.scheduling.classes[0].name: Required value"),
    "two classes of one name": (
        classes({"name": "chat"}, {"name": "chat", "weight": 2}),
        'spec.engine.scheduling.classes[1]: Duplicate value: {"name":"chat"}',
    ),
    "a class name that a flag could not carry": (
        classes({"name": "chat:weight=9"}),
        "engine.scheduling.classes.name must be at most 63 characters of a-z, 0-9 and -, and begin and end with a"
        " letter or digit, such as interactive",
    ),
    "a class name that is too long": (classes({"name": "c" * 64}), "spec.engine.scheduling.classes[0].name: Too long"),
    "an empty class name": (classes({"name": ""}), "engine.scheduling.classes.name must be at most 63 characters"),
    "a class without weight": (
        classes({"name": "chat", "weight": 0}),
        "engine.scheduling.classes.weight must be above 0, such as 4: a class of 0 would starve",
    ),
    "a class with a priority that no request may have": (
        classes({"name": "chat", "priority": 101}),
        "spec.engine.scheduling.classes[0].priority in body should be less than or equal to 100",
    ),
    "a class with a target of zero": (
        classes({"name": "chat", "slo": {"ttftP95": "0s"}}),
        "engine.scheduling.classes.slo.ttftP95 must be a duration above zero, such as 500ms, 2s or 1m30s",
    ),
    "a class with a target without a unit": (
        classes({"name": "chat", "slo": {"tpotP95": "0.05"}}),
        "engine.scheduling.classes.slo.tpotP95 must be a duration above zero, such as 500ms, 2s or 1m30s",
    ),
    "a class whose queue takes no request": (
        classes({"name": "chat", "maxQueuedRequests": 0}),
        "spec.engine.scheduling.classes[0].maxQueuedRequests in body should be greater than or equal to 1",
    ),
    "a class with a longer queue than the engine": (
        classes({"name": "chat", "maxQueuedRequests": 513}),
        "engine.scheduling.classes.maxQueuedRequests must not exceed engine.maxQueuedRequests, which bounds all classes"
        " together",
    ),
    **{
        f"the field of {flag} as an argument": (
            spec(engine={"extraArgs": [flag]}),
            "engine.extraArgs cannot repeat a flag that the operator sets",
        )
        for flag in (
            "--kv-headroom=0.1",
            "--admin-port=9",
            "--no-serving-metrics",
            "--swap-space=1Gi",
            "--no-prefix-caching",
            "--scheduling-policy=sjf",
            "--priority-aging=5",
            "--preemption=swap",
            "--preemption-victim=longest_first",
            "--service-class=chat",
            "--otlp-traces-endpoint=http://collector:4318",
            "--traces-sampling-ratio=0.5",
            "--log-format=json",
            "--enable-access-log",
        )
    },
    **{
        f"traces to {endpoint}": (
            spec(engine={"tracing": {"endpoint": endpoint}}),
            "engine.tracing.endpoint must be a URL such as http://collector.observability.svc:4318",
        )
        for endpoint in (
            *("collector:4318", "grpc://collector:4317", "http://user:secret@collector", "http://a b"),
            *("http://c:0", "http://c:65536", "http://c:99999", "http://[::::]:4318", "http://c:4318?x=1"),
        )
    },
    "more traces than requests": (
        spec(engine={"tracing": {"endpoint": "http://[fd00::1]:4318/v1/traces", "samplingRatio": 2}}),
        "spec.engine.tracing.samplingRatio in body should be less than or equal to 1",
    ),
    "an unknown format of log lines": (
        spec(engine={"logs": {"format": "yaml"}}),
        'spec.engine.logs.format: Unsupported value: "yaml"',
    ),
    "a label the Service finds pods by": (
        template(labels={"inflight.dev/service": "other"}),
        "template.labels cannot set inflight.dev/... or app.kubernetes.io/name, instance and managed-by",
    ),
    "an admin token of one's own": (
        template(env=[{"name": "INFLIGHT_ADMIN_TOKEN", "value": "x"}]),
        "template.env cannot set INFLIGHT_ADMIN_TOKEN, INFLIGHT_ADMIN_TOKEN_FILE, INFLIGHT_POD_UID: the operator sets",
    ),
    "a variable with two values": (
        template(env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        "an environment variable has a value or a valueFrom, not both",
    ),
    "a volume with the operator's name": (
        template(volumes=[{"name": "inflight-limits", "emptyDir": {}}]),
        "template.volumes cannot have a name that begins with inflight-",
    ),
    "a spread over something that is no label": (
        template(topologySpreadConstraints=[{"topologyKey": "zone of the node"}]),
        "template.topologySpreadConstraints.topologyKey must be the key of a label, such as",
    ),
    "a spread over nothing": (
        template(topologySpreadConstraints=[{"maxSkew": 1}]),
        "spec.template.topologySpreadConstraints[0].topologyKey: Required value",
    ),
    "a spread that allows no pod": (
        template(topologySpreadConstraints=[{"topologyKey": "zone", "maxSkew": 0}]),
        "spec.template.topologySpreadConstraints[0].maxSkew in body should be greater than or equal to 1",
    ),
    "a spread of an unknown kind": (
        template(topologySpreadConstraints=[{"topologyKey": "zone", "whenUnsatisfiable": "Try"}]),
        'Unsupported value: "Try": supported values: "DoNotSchedule", "ScheduleAnyway"',
    ),
    "a number of zones where any spread will do": (
        template(topologySpreadConstraints=[{"topologyKey": "zone", "minDomains": 3}]),
        "template.topologySpreadConstraints.minDomains needs whenUnsatisfiable DoNotSchedule",
    ),
    "the same spread twice": (
        template(topologySpreadConstraints=[{"topologyKey": "zone"}, {"topologyKey": "zone", "maxSkew": 2}]),
        "template.topologySpreadConstraints has two entries of one topologyKey and whenUnsatisfiable",
    ),
    "a runtime class that can have no such name": (
        template(runtimeClassName="NVIDIA"),
        "template.runtimeClassName must be the name of a RuntimeClass, such as nvidia",
    ),
    "no scheduler": (template(schedulerName=""), "spec.template.schedulerName in body should be at least 1 chars long"),
    "more time to start than a day": (
        spec(rollout={"startupTimeout": "25h"}),
        "rollout.startupTimeout must be between 10s and 24h",
    ),
    "a mount over the operator's": (
        template(volumeMounts=[{"name": "x", "mountPath": "/etc/inflight/limits"}]),
        "template.volumeMounts cannot use /tmp, /dev/shm, /models, /etc/inflight, /opt/inflight/vllm,"
        " /var/lib/inflight/kv, /var/lib/inflight/models: the operator",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_spec_is_refused_with_its_sentence(api_server, case):
    bad, sentence = BAD[case]
    refused = api_server.post(service_manifest("default", bad), dry_run=True)
    assert refused.is_client_error, refused.text
    assert sentence in refused.json()["message"]


@pytest.mark.parametrize("name", ["1chat", "my.chat", "c" * 51])
def test_a_name_that_cannot_be_a_service_is_refused_with_a_sentence(kubectl, name):
    refused = kubectl.apply(service_manifest("default", spec(), name), dry_run=True)
    assert refused.returncode == 1
    assert "metadata.name must be at most 50 characters of a-z, 0-9 and -, and begin with a letter" in refused.stderr


def test_a_name_that_leaves_no_room_for_prefill_engines_is_refused_with_a_sentence(kubectl):
    refused = kubectl.apply(service_manifest("default", apart(), "c" * 43), dry_run=True)
    assert refused.returncode == 1
    assert "metadata.name must be at most 42 characters with spec.disaggregation.mode Auto or Fixed" in refused.stderr


def test_a_misspelt_field_is_refused_with_its_name(kubectl):
    refused = kubectl.apply(service_manifest("default", spec(scaling={"maxreplicas": 2})))
    assert refused.returncode == 1
    assert 'unknown field "spec.scaling.maxreplicas"' in refused.stderr


GOOD = {
    "the longest name": ("c" * 50, spec()),
    "the longest name of a service with prefill engines": ("c" * 42, apart()),
    "prefill engines on another accelerator": (
        "chat",
        apart({"accelerator": {"resource": "amd.com/gpu"}, "minReplicas": 2}),
    ),
    "a Hugging Face model at a revision": (
        "chat",
        {"model": {"source": "hf://Qwen/Qwen3-8B", "revision": "refs/pr/1"}},
    ),
    "a Hugging Face model without an organization": ("chat", {"model": {"source": "hf://gpt2"}}),
    "a claim": ("chat", {"model": {"source": "pvc://models.team/qwen3/8b"}}),
    **{
        f"a model at {url}": ("chat", {"model": {"source": url}})
        for url in (
            "s3://models",
            "s3://models/qwen3/8b/",
            "gs://my.models/q-3_8.b",
            "az://models/a",
            "https://h:8443/m",
        )
    },
    **{
        f"a model in {url}": ("chat", {"model": {"source": url, "path": "models/8b"}})
        for url in ("oci://qwen", "oci://reg.example.com:5000/a/b_c:v1.0-x", f"oci://reg/a:1@sha256:{'a' * 64}")
    },
    "a model in a private store": (
        "chat",
        spec(
            model={
                "source": "s3://models/a",
                "endpoint": "http://minio.storage.svc:9000",
                "credentialsSecret": "s3",
                "caConfigMap": "ca",
            }
        ),
    ),
    "a token for Hugging Face and vLLM": (
        "chat",
        spec(model={"source": "hf://a/b", "credentialsSecret": "hub"}, engine={"type": "vllm"}),
    ),
    "a budget below the default tuning floor": ("chat", spec(engine={"maxNumBatchedTokens": 16})),
    "a bound on the download": ("chat", {"model": {"source": "hf://Qwen/Qwen3-8B", "storage": "40Gi"}}),
    "a day to start": ("chat", spec(rollout={"startupTimeout": "24h"})),
    "replicas of an autoscaler": ("chat", spec(replicas=4, scaling={"mode": "External"})),
    "bytes for the KV cache": ("chat", spec(engine={"kvCache": {"memory": 1073741824}})),
    "a compound duration": ("chat", spec(rollout={"drainTimeout": "1m30.5s"})),
    "a flag that only begins like a field": ("chat", spec(engine={"extraArgs": ["--port-range=1"]})),
    "a recording": ("chat", spec(engine={"extraArgs": ["--record=steps"]})),
    "memory for swapping in bytes": (
        "chat",
        spec(engine={"kvCache": {"swap": 1610612736}, "scheduling": {"preemption": "swap"}}),
    ),
    "memory for swapping where the cheaper way is chosen": ("chat", spec(engine={"kvCache": {"swap": "1.5Gi"}})),
    "no memory for swapping, as a number": (
        "chat",
        spec(engine={"kvCache": {"swap": 0}, "scheduling": {"preemption": "recompute"}}),
    ),
    "memory for swapping set aside while everything is recomputed": (
        "chat",
        spec(engine={"kvCache": {"swap": "4Gi"}, "scheduling": {"preemption": "recompute"}}),
    ),
    "headroom at its bounds": ("chat", spec(engine={"kvCache": {"headroom": 0}})),
    "the longest class name and the least weight": ("chat", classes({"name": "c" * 63, "weight": 0.001})),
    "aging and targets at their bounds": (
        "chat",
        spec(
            engine={
                "scheduling": {
                    "priorityAging": "240h",
                    "classes": [{"name": "chat", "slo": {"ttftP95": "240h", "tpotP95": "1ms"}}],
                }
            }
        ),
    ),
    "traces to an address of version 6 and the highest port": (
        "chat",
        spec(engine={"tracing": {"endpoint": "https://[fd00::1]:65535/v1/traces?x=1"}}),
    ),
    "limits by hand until the last moment": (
        "chat",
        spec(tuning={"override": {"maxNumSeqs": 8, "until": "8999-12-31T23:59:59Z"}}),
    ),
    "no time for a thousand tokens": ("chat", spec(slo={"ttftPerThousandTokens": "0s"})),
    "the most time for a thousand tokens": ("chat", spec(slo={"ttftPerThousandTokens": "1m"})),
    "a class with as long a queue as the engine": ("chat", classes({"name": "chat", "maxQueuedRequests": 512})),
    "an order by the target of the service": ("chat", spec(slo={}, engine={"scheduling": {"policy": "deadline"}})),
    "an order by the target of a class": (
        "chat",
        spec(engine={"scheduling": {"policy": "deadline", "classes": [{"name": "chat", "slo": {"ttftP95": "1s"}}]}}),
    ),
    "a spread over zones and one over nodes": (
        "chat",
        template(
            topologySpreadConstraints=[
                {"topologyKey": "topology.kubernetes.io/zone", "minDomains": 3, "whenUnsatisfiable": "DoNotSchedule"},
                {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2},
                {"topologyKey": "kubernetes.io/hostname"},
            ]
        ),
    ),
    "a runtime class and a scheduler": ("chat", template(runtimeClassName="nvidia", schedulerName="volcano")),
    "zero replicas behind the gateway": (
        "chat",
        {**gateway(), "scaling": {"minReplicas": 0, "maxReplicas": 1, "idleTimeout": "10s"}},
    ),
    "sleep": ("chat", spec(scaling={"sleep": {"after": "5m"}}, accelerator=NONE)),
    "sleep, then zero replicas": (
        "chat",
        {
            **gateway(),
            "accelerator": NONE,
            "scaling": {"minReplicas": 0, "idleTimeout": "1h", "sleep": {"after": "59m59s"}},
        },
    ),
    "sleep that is longer than a time-out that does not count": (
        "chat",
        spec(scaling={"minReplicas": 1, "idleTimeout": "1m", "sleep": {"after": "2m"}}, accelerator=NONE),
    ),
    "zero replicas of another scaler": ("chat", spec(replicas=0, scaling={"mode": "External", "minReplicas": 0})),
    "everything of the gateway": (
        "chat",
        gateway(
            continuation=False,
            maxAttempts=10,
            hold={"maxRequests": 1, "maxBytes": 1048576, "maxWait": "1h"},
            auth={"apiKeysSecret": "chat-keys", "jwtTenants": ["*", "acme"]},
            tenants=[{"name": "acme", "weight": 0.5, "requestsPerMinute": 60}, {"name": "a.b_c-D"}],
            defaultLimits={"requestsPerMinute": 1, "tokensPerMinute": 1, "concurrentRequests": 1},
            scores={"pendingTokens": 0, "running": 0, "kvCache": 0, "predictedTtft": 0, "prefix": 1000},
        ),
    ),
    "scaling down disabled": ("chat", spec(scaling={"behavior": {"scaleDown": {"selectPolicy": "Disabled"}}})),
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_accepted(kubectl, example):
    accepted = kubectl.run("create", "--dry-run=server", "--validate=strict", "-n", "default", "-f", str(example))
    assert accepted.returncode == 0, accepted.stderr
    assert "inferenceservice.inflight.dev" in accepted.stdout


@pytest.mark.parametrize("case", GOOD)
def test_a_good_spec_is_accepted(api_server, case):
    name, good = GOOD[case]
    accepted = api_server.post(service_manifest("default", good, name), dry_run=True)
    assert accepted.status_code == 201, accepted.text
