"""The native decoder's forward pass in the CPU kernels: one call for all layers of a step.

It computes what `models/llama.py` computes. Activations are float32 whatever the dtype; weights are packed once into
the order in which the products read them, and only the packed copy is kept.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import ClassVar

import torch

from inflight_engine.execution.attention.base import AttentionSpec
from inflight_engine.execution.attention.cpu_native import CpuNativeBackend
from inflight_engine.models.checkpoints.config import DecoderConfig
from inflight_engine.models.checkpoints.weight_source import WeightSource, check_shape
from inflight_engine.models.protocol import Attention
from inflight_engine.models.rope import rotation_table
from inflight_engine.native.kept_weights import KeptWeights
from inflight_engine.native.library import KernelError, check, library, team
from inflight_settings.engine import EngineConfig

_FORMATS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}
_CACHE_LINE = 64
_Pointer = ctypes.c_void_p
_int64 = ctypes.c_int64


class Matrix(ctypes.Structure):
    """`Matrix` of matrix.h."""

    _fields_: ClassVar = [
        *(("format", ctypes.c_int32), ("reserved", ctypes.c_int32), ("outputs", _int64), ("inputs", _int64)),
        ("data", _Pointer),
    ]


class _Layer(ctypes.Structure):
    """`Layer` of decoder.cpp."""

    _fields_: ClassVar = [
        ("input_norm", _Pointer),
        *(("qkv", Matrix), ("qkv_bias", _Pointer), ("query_norm", _Pointer), ("key_norm", _Pointer)),
        *(("output", Matrix), ("output_bias", _Pointer), ("mlp_norm", _Pointer)),
        *(("gate_up", Matrix), ("gate_up_bias", _Pointer), ("down", Matrix), ("down_bias", _Pointer)),
    ]


class _Decoder(ctypes.Structure):
    """`Decoder` of decoder.cpp."""

    _fields_: ClassVar = [
        *((name, _int64) for name in ("hidden", "intermediate", "num_layers", "num_heads", "num_kv_heads")),
        *(("head_dim", _int64), ("num_positions", _int64), ("eps", ctypes.c_float)),
        *(("embedding", Matrix), ("head", Matrix), ("layers", _Pointer), ("final_norm", _Pointer)),
        ("rotation", _Pointer),
    ]


def declare(kernels: ctypes.CDLL) -> None:
    """Tell ctypes the arguments of the functions that matrices and decoders need."""
    signatures = {
        "inflight_lanes": ((), ctypes.c_int),
        "inflight_allocate": ((_int64,), _Pointer),
        "inflight_release": ((_Pointer, _int64), None),
        "inflight_matrix_bytes": ((ctypes.c_int, _int64, _int64), _int64),
        "inflight_matrix_pack": (
            (_Pointer, _Pointer, _Pointer, ctypes.c_int, _int64, _int64, ctypes.c_int),
            ctypes.c_int,
        ),
        "inflight_matrix_rows": ((_Pointer, _Pointer, _int64, _Pointer), ctypes.c_int),
        "inflight_matmul": ((_Pointer, _Pointer, _Pointer, _int64, _Pointer), ctypes.c_int),
        "inflight_decoder_new": ((_Pointer, _Pointer, _Pointer), ctypes.c_int),
        "inflight_decoder_free": ((_Pointer,), None),
        "inflight_decoder_forward": (
            (_Pointer, _Pointer, _Pointer, _Pointer, _int64, _Pointer, _int64, _Pointer),
            ctypes.c_int,
        ),
        "inflight_decoder_logits": ((_Pointer, _Pointer, _int64, _Pointer), ctypes.c_int),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(kernels, name)
        function.argtypes, function.restype = list(arguments), result


class NativeDecoder:
    """Weights on CPU, and the forward pass; its attention is `CpuNativeBackend`'s.

    With `quantization`, the products' weights have 8 or 4 bits in groups, and their activations 8; the embedding and
    the head, which are often one matrix, have 8. Norms and biases stay float32.

    Args:
        open_weights: called where they have to be read, once and tensor by tensor.
        quantization: `none`, `int8` or `int4`.
        max_model_len: longest sequence in tokens that will be served.
        kept: where the packed weights are, or go to; None: memory of this process.
        identity: as `KeptWeights.take` wants it, of the model's files and of what packs them.

    Raises:
        ValueError: a tensor is missing, or its shape is not what `config` says.
        KernelError: no memory.
    """

    @staticmethod
    def why_not(
        config: EngineConfig, model_config: DecoderConfig, dtype: torch.dtype, device: torch.device
    ) -> str | None:
        """Return why this cannot serve a model here, as the end of "... cannot be used: "; None: it can."""
        if config.attention_backend not in ("auto", CpuNativeBackend.name):
            return f"attention_backend is {config.attention_backend}"
        if config.tensor_parallel_size > 1:
            return f"tensor_parallel_size is {config.tensor_parallel_size}"
        if dtype == torch.bfloat16 and (model_config.hidden_size % 2 or model_config.intermediate_size % 2):
            return "hidden_size or intermediate_size is odd"
        spec = AttentionSpec(
            shape=model_config.shape,
            num_blocks=1,  # how many there will be depends on the memory that the weights leave
            block_size=config.block_size,
            dtype=dtype,
            cache_dtype=dtype,
            device=device,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.capacity(device.type).max_num_batched_tokens,
            max_model_len=config.max_model_len or model_config.max_position_embeddings,
        )
        return CpuNativeBackend.why_not(spec)

    def __init__(
        self,
        config: DecoderConfig,
        open_weights: Callable[[], WeightSource],
        dtype: torch.dtype,
        quantization: str,
        max_model_len: int,
        kept: KeptWeights | None = None,
        identity: bytes = b"",
    ) -> None:
        kernels = library()
        assert kernels is not None, "why_not is asked first"
        declare(kernels)
        self._kernels = kernels
        self._config = config
        self._kept: list[object] = []  # what the kernels hold pointers to
        self._hidden = torch.empty((0, config.hidden_size))
        self._logits = torch.empty((0, config.vocab_size))
        self._of_layers = self._of_head = self._plain = str(dtype).removeprefix("torch.")
        if quantization != "none":
            self._of_layers, self._of_head = quantization, "int8"
        rotation = rotation_table(config, max_model_len)
        self._kept.append(rotation)

        def pack(address: int) -> _Decoder:
            return self._lay_out(_Packer(kernels, open_weights(), address), rotation)

        measuring = _Packer(kernels, None, 0)
        self._lay_out(measuring, rotation)
        mapping = None if kept is None else kept.take(identity, measuring.end, pack)
        if mapping is None:
            memory = kernels.inflight_allocate(measuring.end)
            if not memory:
                raise KernelError(f"no memory for {measuring.end} bytes of weights")
            weakref.finalize(self, kernels.inflight_release, memory, measuring.end)
            decoder = pack(memory)
        else:
            self._kept.append(mapping)
            decoder = self._lay_out(_Packer(kernels, None, mapping.address), rotation)
        self._run = ctypes.c_void_p()
        check(kernels.inflight_decoder_new(team(), ctypes.byref(decoder), ctypes.byref(self._run)), "making a decoder")
        weakref.finalize(self, kernels.inflight_decoder_free, self._run)

    def _lay_out(self, packer: _Packer, rotation: torch.Tensor) -> _Decoder:
        """Return the decoder whose weights are where the packer puts them."""
        config, plain, of_layers, of_head = self._config, self._plain, self._of_layers, self._of_head
        hidden, vocab = config.hidden_size, config.vocab_size
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim

        # In the order of a checkpoint's files: a remote one is read ahead in this order.
        tied = config.tie_word_embeddings
        embedding, _ = packer.linear(of_head if tied else plain, False, hidden, {"model.embed_tokens": vocab})
        layers = (_Layer * config.num_hidden_layers)()
        for index, layer in enumerate(layers):
            name = f"model.layers.{index}"
            attention, mlp = f"{name}.self_attn", f"{name}.mlp"
            qkv = {f"{attention}.{part}_proj": size for part, size in (("q", queries), ("k", keys), ("v", keys))}
            pair = {f"{mlp}.{part}_proj": config.intermediate_size for part in ("gate", "up")}
            layer.input_norm = packer.vector(f"{name}.input_layernorm.weight", hidden)
            layer.qkv, layer.qkv_bias = packer.linear(of_layers, config.qkv_bias, hidden, qkv)
            if config.qk_norm:
                layer.query_norm = packer.vector(f"{attention}.q_norm.weight", config.head_dim)
                layer.key_norm = packer.vector(f"{attention}.k_norm.weight", config.head_dim)
            layer.output, layer.output_bias = packer.linear(
                of_layers, config.output_bias, queries, {f"{attention}.o_proj": hidden}
            )
            layer.mlp_norm = packer.vector(f"{name}.post_attention_layernorm.weight", hidden)
            layer.gate_up, layer.gate_up_bias = packer.linear(
                of_layers, config.mlp_bias, hidden, pair, interleaved=True
            )
            layer.down, layer.down_bias = packer.linear(
                of_layers, config.mlp_bias, config.intermediate_size, {f"{mlp}.down_proj": hidden}
            )
        self._kept.append(layers)

        final_norm = packer.vector("model.norm.weight", hidden)
        head = embedding if tied else packer.linear(of_head, False, hidden, {"lm_head": vocab})[0]
        return _Decoder(
            hidden=hidden,
            intermediate=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            num_positions=len(rotation),
            eps=config.rms_norm_eps,
            embedding=embedding,
            head=head,
            layers=ctypes.addressof(layers),
            final_norm=final_norm,
            rotation=rotation.data_ptr(),
        )

    def hidden_states(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        sampled_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Model`. The attention is a `CpuNativeBackend`.

        Returns:
            float32; the next call overwrites it.
        """
        if not isinstance(attention, CpuNativeBackend):
            raise TypeError("the native decoder attends with the CPU kernels only")
        token_ids, positions = token_ids.contiguous(), positions.contiguous()  # a copy must outlive the call
        num_tokens, num_rows = len(token_ids), len(token_ids)
        if sampled_rows is not None:
            sampled_rows = sampled_rows.contiguous()
            num_rows = len(sampled_rows)
        if len(self._hidden) < num_rows:
            self._hidden = torch.empty((num_rows, self._config.hidden_size))
        error = self._kernels.inflight_decoder_forward(
            self._run,
            attention.step,
            token_ids.data_ptr(),
            positions.data_ptr(),
            num_tokens,
            None if sampled_rows is None else sampled_rows.data_ptr(),
            num_rows,
            self._hidden.data_ptr(),
        )
        check(error, f"running {num_tokens} tokens through the decoder")
        return self._hidden[:num_rows]

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits of hidden states [N, hidden_size], float32 [N, vocab_size]; without `out`, the next call
        overwrites them."""
        num_rows = len(hidden)
        if len(self._logits) < num_rows:
            self._logits = torch.empty((num_rows, self._config.vocab_size))
        rows = hidden.contiguous()
        check(
            self._kernels.inflight_decoder_logits(self._run, rows.data_ptr(), num_rows, self._logits.data_ptr()),
            f"computing the logits of {num_rows} tokens",
        )
        logits = self._logits[:num_rows]
        return logits if out is None else out.copy_(logits)


class _Packer:
    """Reads tensors as a configuration describes them and packs them one after the other.

    Args:
        weights: None: nothing is read or written, only where it is or would be is told.
        address: of memory that is large enough, and zero where `weights` are packed.

    Attributes:
        end: the address behind all that was packed.
    """

    def __init__(self, kernels: ctypes.CDLL, weights: WeightSource | None, address: int) -> None:
        self._kernels = kernels
        self._weights = weights
        self.end = address

    def vector(self, name: str, size: int) -> int:
        """Return the address of a tensor, converted to float32."""
        return self._floats(size, lambda: self._tensor(name, size).float())

    def linear(
        self, format_: str, has_bias: bool, inputs: int, parts: dict[str, int], interleaved: bool = False
    ) -> tuple[Matrix, int | None]:
        """Pack several projections into one matrix, one after the other or, for two, register by register. `parts` are
        their names and sizes. Returns the matrix, and the address of the bias in its order."""
        lanes = self._kernels.inflight_lanes()
        panels = -(-next(iter(parts.values())) // lanes) if interleaved else -(-sum(parts.values()) // (2 * lanes))
        outputs = panels * 2 * lanes if interleaved else sum(parts.values())
        num_bytes = self._kernels.inflight_matrix_bytes(_FORMATS[format_], outputs, inputs)
        matrix = Matrix(_FORMATS[format_], 0, outputs, inputs, self._reserve(num_bytes))
        if self._weights is not None:
            self._pack(matrix, inputs, parts, interleaved)

        def bias() -> torch.Tensor:
            values = [self._tensor(f"{name}.bias", size).float() for name, size in parts.items()]
            if not interleaved:
                return torch.cat(values)
            padded = [
                torch.nn.functional.pad(each, (0, panels * lanes - len(each))).view(panels, lanes) for each in values
            ]
            return torch.stack(padded, dim=1)

        return matrix, self._floats(panels * 2 * lanes, bias) if has_bias else None

    def _pack(self, matrix: Matrix, inputs: int, parts: dict[str, int], interleaved: bool) -> None:
        first = 0
        for index, (name, size) in enumerate(parts.items()):
            rows = self._tensor(f"{name}.weight", size, inputs)
            is_bfloat16 = rows.dtype == torch.bfloat16
            rows = (rows if is_bfloat16 else rows.float()).contiguous()
            begin = index if interleaved else first
            error = self._kernels.inflight_matrix_pack(
                team(), ctypes.byref(matrix), rows.data_ptr(), int(is_bfloat16), size, begin, interleaved
            )
            check(error, f"packing {name}")
            first += size

    def _floats(self, count: int, values: Callable[[], torch.Tensor]) -> int:
        """Return the address of `count` numbers in float32: the values, and zeros behind them."""
        at = self._reserve(count * 4)
        if self._weights is not None:
            tensor = values().contiguous()
            ctypes.memmove(at, tensor.data_ptr(), tensor.nbytes)
        return at

    def _reserve(self, num_bytes: int) -> int:
        at = self.end
        self.end += -(-num_bytes // _CACHE_LINE) * _CACHE_LINE
        return at

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        assert self._weights is not None
        tensor = self._weights.get(name)
        check_shape(name, tuple(tensor.shape), shape)
        return tensor
