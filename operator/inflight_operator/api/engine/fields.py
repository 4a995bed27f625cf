"""spec.model, spec.engine and spec.accelerator: model, start options and hardware of the engines."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field

from inflight_base.manifest.engines import EngineTypeName
from inflight_operator.api.base import SpecModel, rule, validation, validations
from inflight_operator.api.duration import Duration
from inflight_operator.api.engine.custom import CustomEngine
from inflight_operator.api.engine.observability import Logs, Tracing
from inflight_operator.api.pods.scheduling import BOUNDS, MOST_QUEUED, Scheduling
from inflight_operator.api.pods.template import INT_OR_STRING, readable_quantity
from inflight_operator.api.setting import setting_duration, setting_field, settings_in
from inflight_settings.engine import DType, KVCacheDType, Quantization
from inflight_settings.limits import DEFAULT_LIMITS, HIGHEST_LIMITS

BUCKETS = ("s3://", "gs://", "az://")
REMOTE = (*BUCKETS, "https://")
"""Sources that the engine reads by ranges, straight into memory."""

Name = Annotated[str, Field(min_length=1, max_length=253)]


def _starts_with(*schemes: str, source: str = "self") -> str:
    """Returns the CEL expression for a source of one of these schemes."""
    return " || ".join(f"{source}.startsWith('{scheme}')" for scheme in schemes)


_LABEL_NAME = "[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?"


class Prefetch(SpecModel):
    """Fetching the model before engines need it."""

    node_selector: dict[str, Annotated[str, Field(max_length=63)]] = Field(
        max_length=8,
        description="Labels of the nodes, at least one. Each such node whose taints template.tolerations tolerates gets"
        " the model; of a model cache that all nodes share, one of them fills it.",
        json_schema_extra=validation(
            f"self.size() > 0 && self.all(k, k.size() <= 317 && k.matches('^([-.a-z0-9]+/)?{_LABEL_NAME}$')"
            f" && self[k].matches('^({_LABEL_NAME})?$'))",
            "model.prefetch.nodeSelector must have at least one label of the nodes, such as"
            " node.kubernetes.io/instance-type: p5.48xlarge",
        ),
    )


class Model(SpecModel):
    """The model that the service serves."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule(
                "self.source.startsWith('hf://') || self.revision == 'main'",
                "model.revision is for hf:// sources only: the other sources have no revisions",
            ),
            rule(
                "self.source.startsWith('hf://') || self.?peers.orValue(false) || !has(self.storage)",
                "model.storage is for hf:// sources, and for others with model.peers: without it they are not copied to"
                " a disk",
            ),
            rule(
                "self.source.startsWith('oci://') || !has(self.path)",
                "model.path is for oci:// sources only: the others name the folder in model.source",
            ),
            rule(
                f"{_starts_with(*BUCKETS, source='self.source')} || !has(self.endpoint)",
                "model.endpoint is for s3://, gs:// and az:// sources only: an https:// source names its own server",
            ),
            rule(
                f"{_starts_with(*REMOTE, source='self.source')} || !has(self.caConfigMap)",
                "model.caConfigMap is for s3://, gs://, az:// and https:// sources only",
            ),
            rule(
                f"{_starts_with('hf://', *REMOTE, source='self.source')} || !has(self.credentialsSecret)",
                "model.credentialsSecret is for hf://, s3://, gs://, az:// and https:// sources only: the pod reads the"
                " others without credentials",
            ),
            rule(
                f"{_starts_with('hf://', 'oci://', *REMOTE, source='self.source')} || !has(self.prefetch)",
                "model.prefetch is for hf://, oci://, s3://, gs://, az:// and https:// sources only: the others are on"
                " the node, or on a claim, already",
            ),
            rule(
                f"{_starts_with(*REMOTE, source='self.source')} || !self.?peers.orValue(false)",
                "model.peers is for s3://, gs://, az:// and https:// sources only: models of hf:// are downloaded by a"
                " library, and the others are on the node, or on a claim, already",
            ),
        )
    )

    source: str = Field(
        max_length=512,
        description="Source of the model: builtin://NAME (in the engine image, such as builtin://smollm2),"
        " hf://ORGANIZATION/NAME (Hugging Face), pvc://CLAIM/FOLDER (a folder with a Hugging Face model on a"
        " PersistentVolumeClaim of this namespace, mounted read-only), oci://IMAGE (an image with such a folder, see"
        " path, mounted read-only as an image volume: Kubernetes 1.35 or newer), or such a folder in a store, whose"
        " weights are read into memory without a copy on a disk: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER,"
        " az://CONTAINER/FOLDER or https://HOST/FOLDER.",
        json_schema_extra=validations(
            rule(
                _starts_with("builtin://", "hf://", "pvc://", "oci://", *REMOTE),
                "model.source must begin with builtin://, hf://, pvc://, oci://, s3://, gs://, az:// or https://, such"
                " as builtin://smollm2",
            ),
            rule(
                "!self.startsWith('builtin://') || self.matches('^builtin://[a-zA-Z0-9][-_.a-zA-Z0-9]*$')",
                "model.source with builtin:// must name a model in the engine image, such as builtin://smollm2",
            ),
            rule(
                "!self.startsWith('hf://') || self.matches('^hf://[-_.a-zA-Z0-9]+(/[-_.a-zA-Z0-9]+)?$')",
                "model.source with hf:// must be hf://ORGANIZATION/NAME, such as hf://Qwen/Qwen3-8B",
            ),
            rule(
                "!self.startsWith('pvc://') || (self.matches('^pvc://[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[^/].*$')"
                " && !self.matches('(^|/)[.][.](/|$)'))",
                "model.source with pvc:// must be pvc://CLAIM/FOLDER with a folder inside the claim,"
                " such as pvc://models/qwen3-8b",
            ),
            rule(
                "!self.startsWith('oci://') ||"
                " self.matches('^oci://[a-zA-Z0-9][-._a-zA-Z0-9]*(:[0-9]+)?(/[-._a-zA-Z0-9]+)*(:[-._a-zA-Z0-9]+)?"
                "(@sha256:[a-f0-9]{64})?$')",
                "model.source with oci:// must be the reference of an image, such as"
                " oci://registry.example.com/models/qwen3-8b:1",
            ),
            rule(
                f"!({_starts_with(*REMOTE)}) || (self.matches('^[a-z0-9]+://[^/?#@[:space:]]+(/[^/?#[:space:]]+)*/?$')"
                " && !self.matches('/[.][.]?(/|$)'))",
                "model.source with s3://, gs:// or az:// must be a bucket and a folder, such as s3://models/qwen3-8b,"
                " and with https:// a server and a folder, without user, ? and #: credentials are in"
                " model.credentialsSecret",
            ),
        ),
    )
    revision: str = setting_field("revision", "Branch, tag or commit of an hf:// model.", min_length=1, max_length=255)
    storage: Annotated[str | int, AfterValidator(readable_quantity), Field(json_schema_extra=INT_OR_STRING)] | None = (
        Field(
            default=None,
            description="Maximum disk space in each pod for the download of an hf:// model, such as 100Gi, or for what"
            " peers read where the chart has no engine.modelCache. A pod that needs more for a download is evicted."
            " Default: 256Gi for each accelerator, 64Gi on CPU.",
            json_schema_extra=validation(
                "type(self) == int ? self > 0 : (isQuantity(self) && quantity(self).isGreaterThan(quantity('0')))",
                "model.storage must be a quantity above zero, such as 100Gi",
            ),
        )
    )
    path: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Folder of the model inside the image of an oci:// source. Default: the root of the image.",
        json_schema_extra=validation(
            "self.matches('^[^/].*$') && !self.matches('(^|/)[.][.](/|$)')",
            "model.path must be a folder inside the image, such as models",
        ),
    )
    credentials_secret: Name | None = Field(
        default=None,
        description="Secret of this namespace whose keys become environment variables of the engine: HF_TOKEN;"
        " AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION; GOOGLE_SERVICE_ACCOUNT_KEY (the key file's JSON);"
        " AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; INFLIGHT_MODEL_AUTHORIZATION (the Authorization"
        " header for https://). Default: the identity of template.serviceAccountName.",
    )
    endpoint: str | None = Field(
        default=None,
        max_length=512,
        description="URL of a private store, such as https://minio.storage.svc:9000. Default: the public service of the"
        " source's scheme.",
        json_schema_extra=validation(
            "self.matches('^https?://[^/?#@[:space:]]+(/[^?#[:space:]]*)?$')",
            "model.endpoint must be a URL such as https://minio.storage.svc:9000",
        ),
    )
    ca_config_map: Name | None = Field(
        default=None,
        description="ConfigMap of this namespace whose key ca.crt has certificates in PEM. The engine trusts the store"
        " with them as well as with the public ones.",
    )
    prefetch: Prefetch | None = Field(
        default=None,
        description="Nodes that get the model before engines need it, by short-lived pods: the image of an oci://"
        " source, or the models of the chart's engine.modelCache. status.prefetch shows how far that is. Default:"
        " engines are the first that fetch.",
    )
    peers: bool | None = Field(
        default=None,
        description="Engines of the service read weights from each other before they ask the store: many that start at"
        " once read the store about once together. Each keeps what it gives to others in the chart's engine.modelCache,"
        " or else on its own disk, see storage. A busy engine gives nothing while its steps take longer than the"
        " shortest TPOT target, of slo.tpotP95 (50ms where it is not set) and of the classes; another one rolls out new"
        " pods. Default: each pod reads the store.",
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="Name that clients give in `model`. Default: the name of the InferenceService.",
    )


class KVDisk(SpecModel):
    """Disk behind the host memory of kvCache.swap."""

    size: Annotated[str | int, AfterValidator(readable_quantity), Field(json_schema_extra=INT_OR_STRING)] = Field(
        description="Disk space in each pod, such as 200Gi. The least recently used blocks make room for others.",
        json_schema_extra=validation(
            "type(self) == int ? self >= 67108864 : (isQuantity(self) && !quantity(self).isLessThan(quantity('64Mi')))",
            "engine.kvCache.disk.size must be a quantity of at least 64Mi, such as 200Gi",
        ),
    )
    volume: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="Name of a volume of template.volumes that takes the blocks. Pods that share it have a file of this"
        " size each. Default: an emptyDir of this size, which a restarted container finds again and another pod does"
        " not.",
    )


class KVCache(SpecModel):
    """Memory for keys and values of requests."""

    memory: Annotated[str | int, AfterValidator(readable_quantity), Field(json_schema_extra=INT_OR_STRING)] | None = (
        setting_field(
            "kv_cache_memory",
            "Size of the KV cache, such as 4Gi. Default: a share of what the device has left after the weights.",
            ge=None,
            json_schema_extra=validation(
                "type(self) == int ? self > 0 : (isQuantity(self) && quantity(self).isGreaterThan(quantity('0')))",
                "engine.kvCache.memory must be a quantity above zero, such as 4Gi",
            ),
        )
    )
    memory_fraction: float = setting_field(
        "gpu_memory_utilization",
        "Share of an accelerator's memory, 0.05 to 1, for weights, activations and KV cache together. The"
        " KV cache takes the part that weights and activations leave, unless memory sets its size.",
    )
    dtype: KVCacheDType = setting_field(
        "kv_cache_dtype",
        "Number type of keys and values; auto is engine.dtype. fp8 halves the cache on accelerators that"
        " support it; on others the engine does not start and logs the reason.",
    )
    headroom: float = setting_field(
        "kv_headroom",
        "Share of the KV cache, 0 to 0.9, that new requests leave free for running ones to grow into. A"
        " larger share means fewer preemptions and fewer concurrent requests.",
    )
    swap: Annotated[str | int, AfterValidator(readable_quantity)] = setting_field(
        "swap_space",
        "Host memory in each pod for KV blocks that the prefix cache evicts, those of preempted requests too, such"
        " as 4Gi; with 0, or without prefixCaching, they are computed again. The operator adds it to its own memory"
        " request, and on CPU to its memory limit; where template.resources sets memory, leave room for it there.",
        ge=None,
        json_schema_extra={
            **INT_OR_STRING,
            **validation(
                "type(self) == int ? (self == 0 || self >= 1048576) : (isQuantity(self) &&"
                " (quantity(self).compareTo(quantity('0')) == 0 || !quantity(self).isLessThan(quantity('1Mi'))))",
                "engine.kvCache.swap must be 0 or a quantity of at least 1Mi, such as 4Gi",
            ),
        },
    )
    disk: KVDisk | None = Field(
        default=None,
        description="Disk for KV blocks that the host memory of swap gives up. Blocks are encrypted with a key that is"
        " derived from the service's admin token. Needs swap, and at most one accelerator.",
    )
    prefix_caching: bool = setting_field(
        "prefix_caching",
        "Keep the KV cache of finished requests while memory lasts, so that the common beginning of prompts"
        " of one tenant is computed once.",
    )


def _parser(name: str, description: str) -> Any:
    """Declares a field for the name of a parser: unlike the setting, it may be one that only vLLM has."""
    return setting_field(
        name, description, default=None, max_length=64, json_schema_extra={"pattern": "^[a-zA-Z0-9]([-_.a-zA-Z0-9]*)$"}
    )


class StartOptions(SpecModel):
    """Start options of the engine's own command."""

    dtype: DType = setting_field(
        "dtype",
        "Number type of weights and KV cache; auto takes bfloat16 where the device is faster in it, else float32.",
    )
    quantization: Quantization = setting_field(
        "quantization",
        "Quantization of weights to 8 or 4 bits, on CPU: several times as fast, slightly less accurate.",
    )
    max_model_len: int | None = setting_field(
        "max_model_len",
        "Longest prompt plus output, in tokens. Default: the maximum of the model.",
        le=16777216,
    )
    max_num_seqs: int = setting_field(
        "max_num_seqs",
        "Capacity: requests that an engine runs at once. Tuning sets the limit in force, up to this value.",
        le=HIGHEST_LIMITS.max_num_seqs,
    )
    max_num_batched_tokens: int = setting_field(
        "max_num_batched_tokens",
        "Capacity: tokens that an engine computes in one step. Tuning sets the limit in force, up to this value.",
        default=DEFAULT_LIMITS.max_num_batched_tokens,
        le=HIGHEST_LIMITS.max_num_batched_tokens,
    )
    kv_cache: KVCache = Field(default_factory=KVCache, description="Memory for keys and values of requests.")
    scheduling: Scheduling = Field(
        default_factory=Scheduling,
        description="Scheduling and preemption.",
    )
    tool_call_parser: str | None = _parser(
        "tool_call_parser",
        "Format of the model's tool calls, by vLLM's name, such as hermes. Default: type inflight reads it from the"
        " model's files, type vllm has none. Type inflight takes one that it knows, auto or none; type vllm any, with"
        " --enable-auto-tool-choice.",
    )
    reasoning_parser: str | None = _parser(
        "reasoning_parser", "Format of the model's reasoning, such as qwen3; the rest as with toolCallParser."
    )
    max_queued_requests: int = setting_field(
        "max_queued_requests",
        "Maximum number of requests that wait in an engine; further requests are answered 503 with Retry-After.",
        le=MOST_QUEUED,
    )
    queue_timeout: Duration = setting_duration(
        "queue_timeout",
        "engine.queueTimeout",
        "Time that a request may wait before it is answered 504.",
        BOUNDS,
    )
    request_timeout: Duration = setting_duration(
        "request_timeout",
        "engine.requestTimeout",
        "Time that a request may be without progress, from its arrival to its first token and from each token to the"
        " next, before it is ended with 504.",
        BOUNDS,
    )
    serving_metrics: bool = setting_field(
        "serving_metrics",
        "Serve /metrics on the serving port, which gateways and dashboards read, as well as on the admin"
        " port. With false, the PodMonitor scrapes the admin port: allow Prometheus in the chart's value"
        " engine.adminPeers.",
    )
    grpc: bool = Field(
        default=False,
        description="Serve vLLM's gRPC API (VllmEngine), which routers such as smg call, on port 50051 of pods and"
        " Services, for the same clients as the serving port. Requests do not go through the gateway, so gateway.auth"
        " excludes it.",
    )
    kv_events: bool = Field(
        default=False,
        description="Publish the KV cache events of vLLM on ports 5557 and 5558 (replays) of pods, for the gateway: its"
        " index of cached prefixes is then exact. Only gateway pods may connect: the events hold the tokens of all"
        " requests, without authentication.",
    )
    tracing: Tracing = Field(default_factory=Tracing, description="OpenTelemetry traces of requests.")
    logs: Logs = Field(default_factory=Logs, description="Logs of engines.")


OWN_FLAGS = (
    *"host port admin-port served-model-name device tensor-parallel-size ttft-target ttft-per-1k-tokens".split(),
    *"service-class drain-delay drain-timeout limits-file tenant-key-file grpc-port".split(),
    *(
        setting.flag
        for part in (Model, StartOptions, KVCache, Scheduling, Tracing, Logs)
        for _, setting in settings_in(part)
    ),
    "disk-space",
    "disk-path",
    "model-cache",
    "model-cache-size",
    "peers-file",
    "peers-tpot",
    "sleep-after",
)
"""Engine flags that the operator sets; extraArgs may not repeat them."""


class Engine(StartOptions):
    """Engine of each pod, and its start options. A change here rolls out new pods."""

    model_config = ConfigDict(
        json_schema_extra=validation(
            "!has(self.extraArgs) || !has(self.kvCache) || !has(self.kvCache.memory)"
            " || !self.extraArgs.exists(a, a.matches('^--num-kv-blocks(=.*)?$'))",
            "engine.kvCache.memory and --num-kv-blocks in engine.extraArgs exclude each other: keep one",
        )
    )

    type: EngineTypeName = Field(
        default="inflight",
        description="Type of the engine. inflight: Inflight's own. vllm: vLLM, started by the operator with the same"
        " fields, as far as vLLM has them. custom: any server of the OpenAI API, see custom. Fields that a type lacks"
        " are refused.",
    )
    plugin: bool = Field(
        default=True,
        description="With type vllm, add Inflight's plugin: limits that change while vLLM runs, drain, and metrics of"
        " the cost of steps. With false, tuning only recommends.",
    )
    custom: CustomEngine | None = Field(default=None, description="Container, paths and metrics of type custom.")
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Engine image. Default: the image of this type that the operator was installed with; type custom"
        " has none.",
    )
    extra_args: list[Annotated[str, Field(min_length=1, max_length=1024)]] = Field(
        default_factory=list,
        max_length=64,
        description="Further flags for `inflight-engine serve` or `vllm serve`, one argument per entry, such as"
        " --block-size=32.",
    )


class Accelerator(SpecModel):
    """The accelerator of each pod."""

    count: int = Field(
        default=1,
        ge=0,
        le=16,
        description="Accelerators of each pod; 0 runs the engine on CPU. With more than one, the engine divides every"
        " layer among them (tensor parallelism): their number must divide the model's attention heads.",
    )
    resource: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=317,
        description="Name of the node resource of which each accelerator is one unit.",
        json_schema_extra=validation(
            "self.matches('^[^/]+/[^/]+$')", "accelerator.resource must be a resource name such as nvidia.com/gpu"
        ),
    )
