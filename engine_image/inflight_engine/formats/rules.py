"""Rules of grammars, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from inflight_engine.formats.schemas import MAX_BYTES, for_llguidance

TokenOf = Callable[[str], int | None]
"""Id of the special token with this name; None: there is none."""

_TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as Python's json writes it, and as models were trained on."""

_MAX_REPEATED = 16
"""How often texts may be made that are in the grammar once, such as the definitions of all parameters."""

_SPECIAL = re.compile(r"(<[^<>\s]+>|\[[A-Z_/]+\]|｜DSML｜)")


class GrammarText:
    """Rules of a grammar under construction.

    Args:
        token_of: special tokens are no text of a grammar, but ids.

    Attributes:
        types: of definitions, see `json_types`.
    """

    def __init__(self, token_of: TokenOf) -> None:
        self.rules: list[str] = []
        self.types: dict[int, set[str]] = {}
        self._token_of = token_of
        self._names: dict[str, str] = {}
        self.numbers = count()
        self._length = 0
        """Characters of the rules."""
        self._made = 0
        """Characters that were made, also those whose rule was there."""

    def literal(self, text: str) -> str:
        """An expression for exactly this text."""
        pieces: list[str] = []
        plain = ""
        for piece in _SPECIAL.split(text):
            token_id = self._token_of(piece) if piece else None
            if token_id is None:
                plain += piece
                continue
            if plain:
                pieces.append(json.dumps(plain, ensure_ascii=False))
            pieces.append(f"<[{token_id}]>")
            plain = ""
        if plain:
            pieces.append(json.dumps(plain, ensure_ascii=False))
        return " ".join(pieces)

    def rule(self, body: str, attributes: str = "", prefix: str = "r") -> str:
        """Return the name of a rule, which is added where there is none like it. `prefix`: of the name; a capital
        letter makes a terminal.

        Raises:
            ValueError: the grammar is too long with it.
        """
        rule = f"{attributes}: {body}"
        name = self._names.get(rule)
        if name is None:
            self._length += len(rule)
            _check_length(self._length)
            name = self._names[rule] = f"{prefix}{next(self.numbers)}"
            self.rules.append(name + rule)
        return name

    def add(self, name: str, body: str) -> None:
        """Add a rule of this name, which others may have referred to before.

        Raises:
            ValueError: the grammar is too long with it.
        """
        self._length += len(body)
        _check_length(self._length)
        self._names[name] = name
        self.rules.append(f"{name}: {body}")

    def has(self, name: str) -> bool:
        """A rule was added under this name."""
        return name in self._names

    def charge(self, characters: int) -> None:
        """Count work that may be repeated for one rule.

        Raises:
            ValueError: there was too much.
        """
        self._made += characters
        _check_length(self._made // _MAX_REPEATED)

    def json(self, schema: Mapping[str, Any], *, strict: bool) -> str:
        """A rule for JSON of this schema. `strict`: a schema with keywords that cannot be enforced is none; otherwise
        these are left out."""
        made = json.dumps(for_llguidance(schema, {**_TIGHT, "lenient": not strict}), ensure_ascii=False)
        self.charge(len(made))
        return self.rule(f"%json {made}")

    def text_up_to(self, end: str, bounds: str = "") -> str:
        """A rule for any text that ends with the first `end`. `bounds`: what restricts the text before it."""
        plain, special, rest = self.literal(end).partition("<[")
        if special:
            # One terminal: of two, the first would take what it can of the second.
            terminal = self.rule(f"(/(?s:.*)/{bounds}) {plain}", prefix="T")
            return self.rule(f"{terminal} {special}{rest}")
        return self.rule(f"/(?s:.*)/{bounds}", f"[suffix={json.dumps(end, ensure_ascii=False)}]")


def _check_length(length: int) -> None:
    if length > MAX_BYTES:
        raise ValueError(f"the grammar has more than {MAX_BYTES} characters")
