"""Text to token ids and back, without torch: the API process must be light and start quickly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Encoding, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from inflight_engine.formats.choose import UNKNOWN, ModelText
from inflight_engine.models.checkpoints.config import read_json
from inflight_engine.models.checkpoints.generation_config import (
    FROM_MODEL,
    OPENAI_DEFAULTS,
    GenerationConfig,
    SamplingDefaults,
    read_generation_config,
    token_ids,
)
from inflight_engine.models.checkpoints.gguf import GGUFFile, read_gguf
from inflight_engine.models.checkpoints.pooling_config import LAST_TOKEN, PoolingConfig, read_pooling
from inflight_engine.models.checkpoints.source import ModelFiles, ModelSourceError
from inflight_engine.models.tokens.chat_template import ChatTemplate
from inflight_engine.models.tokens.conversation import Conversation, TooManyTokensError, Wanted
from inflight_engine.models.tokens.detokenizer import ByteDetokenizer, IncrementalDetokenizer, WindowDetokenizer

_SENTENCEPIECE_SPACE = "▁"

_CLASS = "PreTrainedTokenizerFast"
"""transformers' class for a tokenizer.json, where the model names none."""

_NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})

_CONTROL, _USER_DEFINED = 3, 4
"""llama.cpp's token types: special tokens, and added tokens that are not special."""


_PIECE = 2**18
"""Characters whose tokens are counted at a time, where a text is likely to have too many."""

_USUAL = 8
"""Characters of a token that few texts exceed."""

_LOST = 64
"""More tokens than a cut through a text adds."""


class Tokenizer:
    """The tokenizer of a model.

    Args:
        backend: the tokenizers library's object.
        chat_template: None for a model that is not for chat.
        eos_token_ids: any of them ends an answer.
        sampling_defaults: for requests that do not say how to sample.
        model_text: shows the formats of tool calls and reasoning.
        pooling: how prompts become vectors.
        settings: for clients that tokenize, as tokenizer_config.json has them.

    Attributes:
        all_special_ids: its special tokens.
    """

    def __init__(
        self,
        backend: Backend,
        chat_template: ChatTemplate | None,
        eos_token_ids: tuple[int, ...],
        sampling_defaults: SamplingDefaults = OPENAI_DEFAULTS,
        model_text: ModelText = UNKNOWN,
        pooling: PoolingConfig = LAST_TOKEN,
        settings: Mapping[str, Any] = _NO_SETTINGS,
    ) -> None:
        self._backend = backend
        self._chat_template = chat_template
        self.eos_token_ids = eos_token_ids
        self.sampling_defaults = sampling_defaults
        self.model_text = model_text
        self.pooling = pooling
        self.settings = settings
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder().items()
        self.all_special_ids = frozenset(id_ for id_, token in added if token.special)
        self._byte_level = _is_byte_level(backend.decoder)
        self._bytes_of: dict[int, bytes] = {}
        self._longest = max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)
        self._fallback_bytes = {} if self._byte_level else _fallback_bytes(backend)

    def save(self, path: Path) -> None:
        """Write it as a tokenizer.json."""
        self._backend.save(str(path))

    def serialized(self) -> str:
        """Return it as the text of a tokenizer.json."""
        text: str = self._backend.to_str()
        return text

    def encode(self, text: str, *, special_tokens: bool = True, wanted: Wanted | None = None) -> list[int]:
        """Token ids of a plain prompt. Other threads run meanwhile.

        Args:
            special_tokens: with those that the model expects around it (bos, where it has one).
            wanted: bounds time and memory. A token is some hundred bytes before it is a number in the list, and no
                other thread runs while the list is made.

        Raises:
            TooManyTokensError: there are more than are wanted.
        """
        if wanted is None:
            encoded = self._encoded(text, special_tokens)
        elif wanted.cut:
            encoded = self._end(text, special_tokens, wanted)
        else:
            self._check(text, wanted.most)
            encoded = self._encoded(text, special_tokens)
            if len(encoded) > wanted.most:
                raise TooManyTokensError(wanted.most, len(encoded))
        ids: list[int] = encoded.ids
        return ids

    def _encoded(self, text: str, special_tokens: bool) -> Encoding:
        # Of the library's methods for one text and for several, only the latter release the GIL.
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=special_tokens)
        return encoded

    def _end(self, text: str, special_tokens: bool, wanted: Wanted) -> Encoding:
        size = _USUAL * wanted.most + _PIECE
        while size < len(text):
            encoded = self._encoded(text[-size:] if wanted.cut == "left" else text[:size], special_tokens)
            if len(encoded) >= wanted.most + _LOST:
                return encoded
            size *= 4
        return self._encoded(text, special_tokens)

    def _check(self, text: str, most: int) -> None:
        """Refuse a text that surely has more tokens.

        Raises:
            TooManyTokensError: it has.
        """
        if len(text) > most * self._longest:
            raise TooManyTokensError(most)
        if len(text) > _USUAL * most:
            count = 0
            for start in range(0, len(text), _PIECE):
                count += len(self._encoded(text[start : start + _PIECE], False)) - _LOST
                if count > most:
                    raise TooManyTokensError(most)

    def encode_chat(self, conversation: Conversation, wanted: Wanted | None = None) -> list[int]:
        """Token ids of a conversation.

        Args:
            wanted: as of `encode`.

        Raises:
            ValueError: the model has no chat template, or the template refuses the conversation.
            TooManyTokensError: as of `encode`.
        """
        if self._chat_template is None:
            raise ValueError("the model has no chat template: use /v1/completions, or a model made for chat")
        # The template writes bos itself.
        text = self._chat_template.render(conversation)
        return self.encode(text, special_tokens=False, wanted=wanted)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of all tokens at once, special tokens left out."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def spell(self, token_ids: Sequence[int]) -> str:
        """Text of all tokens at once, special ones by their names. Other threads run meanwhile, as in `encode`."""
        (text,) = self._backend.decode_batch([list(token_ids)], skip_special_tokens=False)
        return text

    def is_special(self, text: str) -> bool:
        """Return whether a text is the name of a special token."""
        return self._backend.token_to_id(text) in self.all_special_ids

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """The tokens as the vocabulary has them; empty for ids beyond it."""
        return [self._backend.id_to_token(token_id) or "" for token_id in token_ids]

    def special_id(self, name: str) -> int | None:
        """The special token with this name."""
        return self._backend.token_to_id(name) if self.is_special(name) else None

    def special_ids(self, text: str) -> frozenset[int]:
        """Special tokens whose names are in a text."""
        return frozenset(each for each in self.all_special_ids if (self._backend.id_to_token(each) or "\0") in text)

    def detokenizer(
        self, prompt_token_ids: Sequence[int] = (), shown: frozenset[int] = frozenset()
    ) -> IncrementalDetokenizer:
        """A fresh detokenizer for one answer.

        Args:
            prompt_token_ids: what the answer continues. SentencePiece vocabularies need it to know whether the
                answer begins with a space; byte-level ones do not look at it.
            shown: special tokens whose names are text.
        """
        names = {token_id: self.token_bytes(token_id) for token_id in shown}
        if self._byte_level:
            token_bytes = self._token_bytes
            return ByteDetokenizer(
                (lambda token_id: names.get(token_id) or token_bytes(token_id)) if names else token_bytes
            )
        spelled = {token_id: name.decode() for token_id, name in names.items()}
        return WindowDetokenizer(self.decode, self._fallback_bytes.get, self._has_text, prompt_token_ids, spelled)

    def _has_text(self, token_id: int) -> bool:
        return token_id < self.vocab_size and token_id not in self.all_special_ids

    def token_bytes(self, token_id: int) -> bytes:
        """The token as UTF-8 text, maybe only part of a character; of a special token its name."""
        token = self._backend.id_to_token(token_id)
        # Ids beyond the vocabulary exist: models pad their embedding to a round size.
        if token is None:
            return b""
        if token_id in self.all_special_ids:
            return token.encode()
        if self._byte_level:
            return self._token_bytes(token_id)
        byte = self._fallback_bytes.get(token_id)
        return token.replace(_SENTENCEPIECE_SPACE, " ").encode() if byte is None else bytes([byte])

    def _token_bytes(self, token_id: int) -> bytes:
        known = self._bytes_of.get(token_id)
        if known is None:
            known = self._bytes_of[token_id] = self._compute_token_bytes(token_id)
        return known

    def _compute_token_bytes(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        # Ids beyond the vocabulary exist: models pad their embedding to a round size.
        if token is None or token_id in self.all_special_ids:
            return b""
        try:
            return bytes(_BYTE_OF_CHARACTER[character] for character in token)
        except KeyError:
            return token.encode("utf-8")


def load_tokenizer(
    files: ModelFiles, generation_config: str = FROM_MODEL, chat_template: Path | None = None
) -> Tokenizer:
    """Load the tokenizer of a model.

    Args:
        generation_config: `source` of `read_generation_config`.
        chat_template: file with the Jinja text that replaces the model's chat template.

    Raises:
        ModelSourceError: the folder has no tokenizer.json.
        ValueError: a file is damaged; the message names it.
        OSError: the chat template cannot be read.
    """
    own_template = None if chat_template is None else chat_template.read_text(encoding="utf-8")
    generation = read_generation_config(files, generation_config)
    if files.gguf is not None:
        return _from_gguf(read_gguf(files.gguf), generation, own_template)
    return _from_folder(files, generation, own_template)


def _from_folder(files: ModelFiles, generation: GenerationConfig, own_template: str | None) -> Tokenizer:
    path = files.folder / "tokenizer.json"
    if not path.is_file():
        raise ModelSourceError(
            f"model source {files.source} has no tokenizer.json; save one with "
            "`AutoTokenizer.from_pretrained(model).save_pretrained(folder)` of transformers"
        )
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for whatever it cannot parse
        raise ValueError(f"{path} cannot be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    config = read_json(files.folder / "config.json")
    settings = _optional_json(files, "tokenizer_config.json")
    special_tokens = {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in settings.items()
        if name.endswith("_token") and isinstance(token, str | dict)
    }
    eos = generation.eos_token_ids or token_ids(config.get("eos_token_id"))
    if not eos and "eos_token" in special_tokens:
        eos_id = backend.token_to_id(special_tokens["eos_token"])
        eos = () if eos_id is None else (eos_id,)
    template = own_template or _folder_template(files, settings)
    chat_template = ChatTemplate(template, special_tokens) if template else None
    model_text = ModelText(
        # Many of its texts are regular expressions, in which marks are escaped.
        re.sub(r"\\(\W)", r"\1", "\n".join(_texts(settings.get("response_template")))),
        template or "",
        str(config.get("model_type", "")),
    )
    shown = {
        "tokenizer_class": _CLASS,
        **settings,
        **special_tokens,
        **({"chat_template": template} if template else {}),
    }
    return Tokenizer(backend, chat_template, eos, generation.defaults, model_text, read_pooling(files), shown)


def _folder_template(files: ModelFiles, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja, else `chat_template` of tokenizer_config.json, which may be a list of named templates."""
    path = files.folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        return next((t["template"] for t in template if t["name"] == "default"), None)
    return template


def _texts(value: object) -> Iterator[str]:
    """Keys and strings in a JSON value."""
    match value:
        case str():
            yield value
        case dict():
            for key, each in value.items():
                yield key
                yield from _texts(each)
        case list():
            for each in value:
                yield from _texts(each)


def _optional_json(files: ModelFiles, name: str) -> dict[str, Any]:
    path = files.folder / name
    return read_json(path) if path.is_file() else {}


def _from_gguf(gguf: GGUFFile, generation: GenerationConfig, own_template: str | None) -> Tokenizer:
    """The tokenizer of the built-in model."""
    meta = gguf.metadata
    tokens = meta["tokenizer.ggml.tokens"].decode()
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"].decode()]
    backend = Backend(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # llama.cpp's "smollm": every digit alone, then GPT-2's split (as in SmolLM2's own tokenizer.json).
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    types: list[int] = meta["tokenizer.ggml.token_type"]
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=type_ == _CONTROL)
            for token, type_ in zip(tokens, types, strict=True)
            if type_ in (_CONTROL, _USER_DEFINED)
        ]
    )
    special = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special_tokens = {f"{name}_token": tokens[meta[f"tokenizer.ggml.{key}_token_id"]] for name, key in special.items()}
    eos = generation.eos_token_ids or token_ids(meta["tokenizer.ggml.eos_token_id"])
    template = own_template or meta["tokenizer.chat_template"]
    chat_template = ChatTemplate(template, special_tokens)
    shown = {"tokenizer_class": _CLASS, **special_tokens, "chat_template": template}
    model_text = ModelText(chat_template=template)
    return Tokenizer(backend, chat_template, eos, generation.defaults, model_text, settings=shown)


def _is_byte_level(decoder: Any) -> bool:
    return isinstance(decoder, decoders.ByteLevel)


def _fallback_bytes(backend: Backend) -> dict[int, int]:
    """SentencePiece's byte tokens: token id -> byte; empty where the decoder takes their names for text."""
    if b'"ByteFallback"' not in backend.decoder.__getstate__():
        return {}
    ids = {byte: backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
    return {id_: byte for byte, id_ in ids.items() if id_ is not None}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable characters (bytes_to_unicode of its encoder.py), reversed."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}


_BYTE_OF_CHARACTER = _byte_alphabet()
