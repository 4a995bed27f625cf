"""Properties of a runner, known once it is built."""

from __future__ import annotations

import msgspec


class RunnerInfo(msgspec.Struct, frozen=True):
    """Facts of the loaded model, its KV cache and its device.

    Attributes:
        max_model_len: tokens: the configured length or the model's own, and no more than the KV cache holds.
        kv_bytes_per_token: 2 x layers x kv_heads x head_dim x sizeof(dtype).
        vocab_size: token ids are below this.
        num_host_blocks: blocks of host memory behind the KV cache; 0 without swap space.
        copy_tokens_per_second: tokens whose keys and values are copied one way between device and host memory in a
            second, measured; None without swap space.
        digest: version of the model's files, as they were when it was loaded; see `models.version`.
        load_seconds: from the beginning of loading until the first step can run.
        weights_seconds: those of them until the weights are in memory.
        memory_left: bytes of host memory that can be taken beside the KV cache, `num_host_blocks` and what is set aside
            for activations and the API process.
        can_sleep: it can give back the memory of the KV cache and go on later.
        kv_identity: digest of what keys and values depend on beside tokens and weights; empty where ranks share them.
        cache_problem: why weights were read from their source although there is a model cache; empty if they were not.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    kv_bytes_per_token: int
    vocab_size: int
    device: str
    dtype: str
    attention_backend: str
    load_seconds: float
    num_host_blocks: int = 0
    copy_tokens_per_second: float | None = None
    weights_seconds: float = 0.0
    memory_left: int = 0
    digest: str = ""
    can_sleep: bool = False
    cache_problem: str = ""
    kv_identity: str = ""

    @property
    def num_cache_tokens(self) -> int:
        """Tokens whose keys and values the device holds."""
        return self.num_blocks * self.block_size
