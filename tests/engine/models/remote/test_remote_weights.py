"""A remote model is loaded as the same model from a folder is, bit for bit."""

import json
import random
import struct

import pytest
import torch
from safetensors.torch import save_file

from inflight_engine.execution.load import load_model
from inflight_engine.models.checkpoints.config import load_model_config
from inflight_engine.models.checkpoints.kv_scales import load_kv_scales
from inflight_engine.models.checkpoints.shape import ModelShape
from inflight_engine.models.checkpoints.source import ModelSourceError, resolve
from inflight_engine.models.checkpoints.transformers_config import TransformersConfig
from inflight_engine.models.checkpoints.weights import SafetensorsWeights, open_stored, open_weights
from inflight_engine.models.parallel import ALONE
from inflight_engine.models.reading_progress import READING
from inflight_engine.models.remote import reading
from inflight_engine.models.remote import stream as streams
from inflight_engine.request import SamplingParams
from inflight_settings.engine import EngineConfig
from tests.engine.execution.driver import Driver
from tests.engine.execution.tiny_model import prompts_for, tiny_runner

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
SHAPES = {
    "model.embed_tokens.weight": (97, 48),
    **{
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(3)
        for name, shape in {
            "input_layernorm": (48,),
            "self_attn.q_proj": (48, 48),
            "self_attn.k_proj": (16, 48),
            "self_attn.v_proj": (16, 48),
            "self_attn.o_proj": (48, 48),
            "post_attention_layernorm": (48,),
            "mlp.gate_proj": (80, 48),
            "mlp.up_proj": (80, 48),
            "mlp.down_proj": (48, 80),
        }.items()
    },
    "model.norm.weight": (48,),
    "lm_head.weight": (97, 48),
}
SCHEMES = ("http", "s3", "gs", "az")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small Llama of random numbers in three shards, each with tensors of all layers."""
    path = tmp_path_factory.mktemp("model")
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) * 0.5 for name, shape in SHAPES.items()}
    weight_map = {name: f"model-{at % 3 + 1:05}-of-00003.safetensors" for at, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == shard}, path / shard)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def model(server, folder):
    server.add_folder(folder, "tiny")
    return server


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ahead", [False, True])
def test_tensors_are_those_of_the_files(model, folder, source, scheme, ahead, monkeypatch):
    monkeypatch.setattr(streams, "PIECE", 1000)
    model.cuts = {path: [500, 999] for path in model.files if path.endswith(".safetensors")}
    remote, local = open_stored(resolve(source(scheme, "tiny")), ahead=ahead), SafetensorsWeights(folder)
    for name in local._shard_of:
        assert name in remote
        assert remote.shape(name) == local.shape(name)
        assert same_bits(remote.get(name), local.get(name))
        assert same_bits(remote.get(name), local.get(name)), "a second time"


@pytest.mark.parametrize("scheme", ["folder", "s3"])
def test_what_is_read_of_the_weights_is_counted(model, folder, source, scheme):
    where = str(folder) if scheme == "folder" else source(scheme, "tiny")
    weights, names = open_stored(resolve(where), ahead=True), list(SafetensorsWeights(folder)._shard_of)
    for name in names[:-1]:
        weights.get(name)
    read, total, _ = READING.now
    of_tensors = sum(SafetensorsWeights(folder).get(name).nbytes for name in names)
    assert 0 < read <= total
    assert of_tensors <= total
    weights.get(names[-1])
    assert READING.now[:2] == (of_tensors, total)


@pytest.mark.parametrize("whole", [False, True])
def test_parts_are_those_of_the_files(model, folder, source, whole):
    files = resolve(source("s3", "tiny"))
    weights, local = open_weights(files, load_model_config(files), whole=whole), SafetensorsWeights(folder)
    name = "model.layers.1.mlp.up_proj.weight"
    model.num_bytes = 0
    for dim, part in ((0, range(16, 40)), (1, range(8, 24))):
        assert same_bits(weights.get(name, dim, part).contiguous(), local.get(name, dim, part).contiguous())
    if not whole:
        assert model.num_bytes == (24 * 48 + 80 * 48) * 4, "of rows only those asked for"


@pytest.mark.parametrize("backend", ["auto", "torch-sdpa"])
def test_answers_are_the_same(model, folder, source, backend):
    """`auto`: weights are packed for the CPU kernels where there are some; `torch-sdpa`: they are torch's."""
    prompts = prompts_for(random.Random(0))
    answers = [
        Driver(tiny_runner(where, attention_backend=backend)).run(prompts, SamplingParams(max_tokens=8))
        for where in (source("s3", "tiny"), folder)
    ]
    assert answers[0] == answers[1]


def test_engines_of_a_node_read_the_source_once_and_answer_the_same(model, folder, source, tmp_path):
    prompts, cache = prompts_for(random.Random(0)), {"model_cache": str(tmp_path / "cache"), "model_cache_size": 2**30}
    small = model.num_bytes
    answers = [
        Driver(tiny_runner(source("s3", "tiny"), **cache)).run(prompts, SamplingParams(max_tokens=8)) for _ in range(2)
    ]
    assert answers[0] == answers[1] == Driver(tiny_runner(folder)).run(prompts, SamplingParams(max_tokens=8))
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    settings = sum(path.stat().st_size for path in folder.glob("*.json"))
    assert weights < model.num_bytes - small < weights + settings + 10_000, "with listings"


def test_the_weights_are_read_once_beside_their_headers_and_not_written(model, folder, source):
    files = resolve(source("s3", "tiny"))
    model.num_bytes = 0
    weights = open_weights(files, load_model_config(files))
    for name in SafetensorsWeights(folder)._shard_of:
        weights.get(name)
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    # The header is read with what follows it, up to 256 KiB.
    assert model.num_bytes <= 2 * sum(sizes)
    assert not list(files.folder.rglob("*.safetensors"))


def test_weights_read_early_are_those_that_are_loaded(model, folder, source):
    url = source("s3", "tiny")
    reading.read_early(resolve(url).remote)
    files = resolve(url)
    before = model.requests.copy()
    weights = open_weights(files, load_model_config(files))
    for name in SafetensorsWeights(folder)._shard_of:
        weights.get(name)
    assert not reading._begun
    listed = sum(count for (method, path), count in before.items() if path == "")
    assert sum(count for (method, path), count in model.requests.items() if path == "") == listed


def test_scales_of_the_cache_are_looked_for(model, source):
    assert load_kv_scales(resolve(source("s3", "tiny")), 3, 2) is None


def test_a_changed_shard_ends_the_loading(model, source):
    files = resolve(source("s3", "tiny"))
    path = "tiny/" + files.remote.shards[1].name
    model.files[path] = model.files[path][:-1] + b"x"
    with pytest.raises(ModelSourceError, match="has changed since"):
        open_weights(files, load_model_config(files))


def test_a_missing_tensor_is_named(model, source):
    files = resolve(source("s3", "tiny"))
    with pytest.raises(ValueError, match=r"model source s3://bucket/tiny has no tensor nonesuch"):
        open_weights(files, load_model_config(files)).get("nonesuch")


def with_header(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        struct.pack("<Q", 1 << 40) + b"{}",
        with_header(b"no json"),
        with_header(b"[1]"),
        with_header({"a": TENSOR}, bytes(7)),
        with_header({"a": TENSOR | {"shape": [3]}}, bytes(8)),
        with_header({"a": TENSOR | {"shape": [-1, -2]}}, bytes(8)),
        with_header({"a": TENSOR | {"dtype": "F7"}}, bytes(8)),
        with_header({"a": TENSOR | {"data_offsets": [-8, 0]}}, bytes(8)),
        with_header({"a": TENSOR | {"data_offsets": [8, 0]}}, bytes(8)),
        with_header({"a": {}}, bytes(8)),
    ],
)
def test_a_damaged_file_is_named(server, source, content):
    server.files = {"tiny/config.json": b"{}", "tiny/model.safetensors": content}
    files = resolve(source("s3", "tiny"))
    with pytest.raises(ModelSourceError, match=r"model.safetensors is damaged: "):
        open_stored(files, ahead=True)


def test_a_long_header_is_read_whole(server, source):
    header = {f"tensor-{at:050}": TENSOR for at in range(4000)}
    server.files = {"tiny/config.json": b"{}", "tiny/model.safetensors": with_header(header, bytes(range(8)))}
    weights = open_stored(resolve(source("s3", "tiny")), ahead=False)
    assert weights.get(f"tensor-{3999:050}").numpy().tobytes() == bytes(range(8))


def test_another_architecture_says_where_it_can_be_served_from(model, source):
    shape = ModelShape("GPT2LMHeadModel", 97, 64, 1, 2, 2, 8, (None,))
    files, config = resolve(source("s3", "tiny")), EngineConfig("s3://bucket/tiny")
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel runs through transformers.*not from s3://bucket/tiny"):
        load_model(config, files, TransformersConfig(shape), torch.float32, torch.device("cpu"), ALONE)
