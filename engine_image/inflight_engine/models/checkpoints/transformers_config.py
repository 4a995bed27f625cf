"""Attention requirements of a transformers model, found by running it once without weights.

Configurations name head counts, scales, windows and caps in many ways, and not all of them; what the modules pass to
their attention function does not lie. So the model is made on the meta device (no memory, tenths of a second) and runs
one tiny forward pass in which attention and masks only take notes. What our attention cannot do is refused here, before
any weight is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from inflight_engine.models.checkpoints.config import UnsupportedModelError, read_json
from inflight_engine.models.checkpoints.shape import ModelShape
from inflight_engine.models.checkpoints.source import ModelFiles, first_line

_OBSERVER = "inflight-observer"
"""Name of the attention function that notes its calls."""
_LENGTH = 3
"""Tokens of the forward pass that is observed."""
_UNDERSTOOD = frozenset(
    "dropout scaling sliding_window softcap position_ids use_cache is_causal output_attentions output_hidden_states "
    "output_router_logits".split()
)
"""Arguments of attention that the engine honours or may leave out. Any other argument of a module changes the result
(learned sinks, biases of positions), so it is refused by its name."""
_MULTIMODAL = ("vision_config", "audio_config")


@dataclass(frozen=True, slots=True)
class TransformersConfig:
    """A decoder that runs through transformers' modules."""

    shape: ModelShape


@dataclass(frozen=True, slots=True)
class _Call:
    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    mask: Any
    options: dict[str, Any]


@dataclass
class _Notes(threading.local):
    calls: list[_Call] = field(default_factory=list)


_notes = _Notes()


def load_transformers_config(files: ModelFiles) -> TransformersConfig:
    """Read a folder's configuration and find out what the model asks of attention.

    Raises:
        UnsupportedModelError: transformers has no such architecture, or it needs more than causal attention over all or
            the last so many tokens; the message says what.
    """
    from transformers import AutoConfig

    path = files.folder / "config.json"
    raw = read_json(path)
    architecture = (raw.get("architectures") or [raw.get("model_type", "unknown")])[0]
    try:
        # A folder's own code is never run, nor asked for.
        config = AutoConfig.from_pretrained(files.folder, trust_remote_code=False)
    except Exception as error:  # of many kinds: what its checks raise, and what comes of fields of a wrong type
        fault = f"transformers cannot read {path}: {first_line(error)}"
        if raw.get("auto_map"):
            fault = "the model brings code of its own (auto_map in config.json), which is never run"
        raise UnsupportedModelError(f"model architecture {architecture} is not supported: {fault}") from error
    reason = _why_not(config, architecture)
    if reason is not None:
        raise UnsupportedModelError(f"model architecture {architecture} is not supported: {reason}")
    fix_rope(config)
    return TransformersConfig(_shape(config, architecture, _observe(config, architecture)))


def fix_rope(config: Any) -> None:
    """`dynamic` rotary embeddings change with the longest sequence at hand, so a request would depend on its company;
    but not up to `max_position_embeddings`, and nothing longer is served: until there they are the default."""
    for parameters in _rope_parameters(config):
        if parameters.get("rope_type") == "dynamic":
            parameters["rope_type"] = "default"


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Return the rope parameters: one set, or one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope, *(part for part in rope.values() if isinstance(part, dict))]


def _context(config: Any) -> int:
    """Longest sequence in tokens. `longrope` changes all of a sequence's angles once the longest at hand is past the
    original context, so it is served up to there."""
    originals = [
        int(parameters["original_max_position_embeddings"])
        for parameters in _rope_parameters(config)
        if parameters.get("rope_type") == "longrope"
    ]
    return min([int(config.max_position_embeddings), *originals])


def _why_not(config: Any, architecture: str) -> str | None:
    """Return why the model cannot run, as far as that shows without running it; None: no reason shows."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if getattr(config, "quantization_config", None):
        return "its weights are quantized; give the unquantized model"
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder, and only decoder-only models are served"
    if any(getattr(config, part, None) is not None for part in _MULTIMODAL):
        return "it is multimodal, and only text models are served"
    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return "transformers knows no decoder-only architecture of this name"
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if others:
        return f"it has layers of the type {', '.join(sorted(others))}, and only attention over paged keys is served"
    if getattr(config, "max_position_embeddings", None) is None:
        return "its configuration has no max_position_embeddings"
    return None


def _observe(config: Any, architecture: str) -> list[_Call]:
    """The attention calls of one forward pass, in order."""
    from transformers import AutoModelForCausalLM
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(_OBSERVER, _note_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_OBSERVER, _note_mask)
    ALL_EXPERTS_FUNCTIONS.register(_OBSERVER, _skip_experts)
    _notes.calls = []
    try:
        with torch.device("meta"), torch.inference_mode():
            model = AutoModelForCausalLM.from_config(
                config, attn_implementation=_OBSERVER, experts_implementation=_OBSERVER
            ).eval()
            if getattr(model, "_is_stateful", False):
                raise UnsupportedModelError(
                    f"model architecture {architecture} is not supported: it keeps a recurrent state, and only "
                    "attention over paged keys is served"
                )
            ids = torch.zeros(1, _LENGTH, dtype=torch.long)
            # With a mask given, none of transformers' code looks into positions for packed sequences.
            model(input_ids=ids, position_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    except UnsupportedModelError:
        raise
    except Exception as error:  # another's code, with an attention it was not written for
        raise UnsupportedModelError(
            f"model architecture {architecture} is not supported: its modules do not run with another attention "
            f"function ({type(error).__name__}: {first_line(error)})"
        ) from error
    return _notes.calls


def _note_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Queries [1, heads, T, D] and so on -> [1, T, heads, D of values]."""
    _notes.calls.append(
        _Call(
            layer=getattr(module, "layer_idx", -1),
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_dim=query.shape[3],
            value_dim=value.shape[3],
            mask=getattr(attention_mask, "visible", None),
            options={name: option for name, option in options.items() if option is not None and option is not False},
        )
    )
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3]), None


def _note_mask(*, q_length: int, kv_length: int, mask_function: Callable[..., torch.Tensor], **_: Any) -> torch.Tensor:
    mask = torch.empty(1, 1, q_length, kv_length, device="meta")
    mask.visible = mask_function  # type: ignore[attr-defined]
    return mask


def _skip_experts(module: torch.nn.Module, hidden: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    return hidden


def _shape(config: Any, architecture: str, calls: list[_Call]) -> ModelShape:
    def refuse(reason: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"model architecture {architecture} is not supported: {reason}")

    context = _context(config)
    num_layers = int(config.num_hidden_layers)
    if not calls:
        raise refuse("its modules compute attention themselves (often with biases of positions, such as ALiBi)")
    if [call.layer for call in calls] != list(range(num_layers)):
        raise refuse(f"{len(calls)} attention calls are made in its {num_layers} layers, not one in each")
    first = calls[0]
    for call in calls:
        unknown = sorted(set(call.options) - _UNDERSTOOD)
        if unknown:
            raise refuse(f"its attention has {', '.join(unknown)}, which our attention has not")
        if (call.num_heads, call.num_kv_heads, call.head_dim) != (first.num_heads, first.num_kv_heads, first.head_dim):
            raise refuse("its layers differ in attention heads")
        if call.value_dim > call.head_dim:
            raise refuse("its values are wider than its keys")
        if call.options.get("softcap") != first.options.get("softcap"):
            raise refuse("its layers differ in the cap of attention scores")
        if call.mask is None:
            raise refuse("it builds its own attention masks")
    windows: dict[Any, int | None] = {}
    for mask in {call.mask for call in calls}:
        window = _visible_tokens(mask, context)
        if window is None:
            raise refuse("its attention masks are not causal over all or the last so many tokens")
        windows[mask] = None if window == context else window
    softcap = first.options.get("softcap")
    return ModelShape(
        architecture=architecture,
        vocab_size=int(config.vocab_size),
        max_position_embeddings=context,
        num_layers=num_layers,
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        sliding_windows=tuple(windows[call.mask] for call in calls),
        scale=float(first.options.get("scaling", first.head_dim**-0.5)),
        softcap=None if softcap is None else float(softcap),
    )


def _visible_tokens(mask: Callable[..., torch.Tensor], context: int) -> int | None:
    """How many tokens a query sees, itself included, if they are always the last ones; else None."""
    zero = torch.tensor(0)
    positions = torch.arange(context)

    def seen(query: int) -> torch.Tensor:
        return torch.as_tensor(mask(zero, zero, torch.tensor(query), positions)).expand(context)

    try:
        window = int(seen(context - 1).sum())
        for query in (0, context // 3, context // 2, context - 1):
            if not torch.equal(seen(query), (positions <= query) & (positions > query - window)):
                return None
    except (RuntimeError, NotImplementedError, IndexError):  # it looks into tensors of the observed pass
        return None
    return window
