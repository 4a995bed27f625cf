"""Masks of the slots whose requests have a grammar, a bound of their thinking or rules of tokens: logits of tokens that
these do not allow become -inf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.execution.sampling.penalties import is_penalised
from inflight_engine.execution.sampling.token_rules import TokenMask, TokenRules
from inflight_engine.grammars.compiled import Grammars
from inflight_engine.grammars.matching import Bits, Matching
from inflight_engine.output import GrammarEnd
from inflight_engine.request import ForcedRun, TokenIds
from inflight_engine.scheduling.plan import Slots, SlotStart, StepPlan


class GrammarRow(NamedTuple):
    """A sampled row whose request is bound. `greedy`: its token is the likeliest one that is allowed."""

    row: int
    slot: int
    matching: TokenMask
    greedy: bool


class GrammarMasks:
    """The place of each bound slot in its answer.

    A step's rows are taken when it is launched, and go on with its tokens later, when another request may have the
    slot.

    Args:
        grammars: None: no request has one.
    """

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._matchings: dict[int, TokenMask] = {}
        self._greedy: set[int] = set()

    def apply(self, plan: StepPlan) -> None:
        """Apply the starts, extensions and releases of a plan, before anything of its step is computed. Generated
        tokens of a request that starts again are replayed."""
        for extension in plan.extensions:
            self._extend(extension)
        if self._matchings:
            for slot in (*plan.releases, *(start.slot for start in plan.starts)):
                self._matchings.pop(slot, None)
        for start in plan.starts:
            if start.sampling.is_masked:
                self._start(start)

    def rows(self, slots: Slots) -> Sequence[GrammarRow]:
        """Return the bound rows; `slots`: [N], of the sampled rows."""
        if not self._matchings:
            return ()
        numbered = enumerate(slots.tolist())
        return [
            GrammarRow(row, slot, self._matchings[slot], slot in self._greedy)
            for row, slot in numbered
            if slot in self._matchings
        ]

    def mask(self, rows: Sequence[GrammarRow], logits: torch.Tensor) -> None:
        """Mask rows in place, when all tokens before theirs are taken in. On a CPU a mask takes longer than to find the
        likeliest token; a greedy row of which that one is allowed stays as it is.

        Args:
            logits: float32 [N, vocab_size].
        """
        bound = [each for each in rows if not each.matching.free]
        if logits.device.type == "cpu" and any(each.greedy for each in bound):
            from inflight_engine.execution.sampling.draws import argmax  # imports the CPU kernels

            likeliest = argmax(logits).tolist()
            bound = [each for each in bound if not each.greedy or not each.matching.allows(likeliest[each.row])]
        bits = np.empty((len(bound), -(-logits.shape[1] // 32)), np.int32)
        for each, words in zip(bound, bits, strict=True):
            each.matching.fill(words)
        if bound:
            mask_rows(logits, np.array([each.row for each in bound], np.int64), bits)

    def _start(self, start: SlotStart) -> None:
        sampling, grammars = start.sampling, self._grammars
        matching: TokenMask | None = None
        if sampling.grammar is not None and grammars is not None:
            matching = Matching(grammars.compiled(sampling.grammar), sampling, grammars.vocabulary.eos_tokens)
        elif sampling.thinking is not None:
            matching = Matching(None, sampling, ())
        if sampling.has_token_rules:
            matching = TokenRules(sampling, matching)
        if matching is None:
            return
        for token_id in start.token_ids[start.num_prompt_tokens :].tolist():
            matching.take(token_id)
        self._matchings[start.slot] = matching
        if sampling.temperature == 0 and not sampling.logit_bias and not is_penalised(sampling):
            self._greedy.add(start.slot)
        else:
            self._greedy.discard(start.slot)

    def _extend(self, extension: SlotStart) -> None:
        """Go on by the tokens of a slot that are new. A copy does: a step in flight may still take in its token."""
        matching = self._matchings.get(extension.slot)
        if matching is not None:  # other ranks than the first have none
            output = extension.token_ids[extension.num_prompt_tokens :]
            self._matchings[extension.slot] = matching.after(output.tolist())


def take_tokens(rows: Iterable[GrammarRow], token_ids: TokenIds) -> tuple[list[GrammarEnd], list[ForcedRun]]:
    """Go on by a step's tokens (int32 [N]); returns the slots that end with them, and what must follow in others."""
    ends, forced = [], []
    for row, slot, matching, _ in rows:
        matching.take(int(token_ids[row]))
        if matching.error or matching.complete:
            ends.append(GrammarEnd(slot, matching.error))
            continue
        run, last = matching.forced()
        if run:
            forced.append(ForcedRun(slot, np.array(run, np.int32), last))
    return ends, forced


def mask_rows(logits: torch.Tensor, rows: Slots, bits: Bits) -> None:
    """Set logits of some rows to -inf where the bit of their token is 0.

    Args:
        logits: float32 [N, vocab_size]. rows: int64 [n], each once. bits: [n, at least ceil(vocab_size / 32)].
    """
    if logits.device.type != "cpu":
        from inflight_engine.execution.sampling.triton_mask import mask_on_device

        mask_on_device(logits, upload(rows, logits.device), upload(bits, logits.device))
        return
    values, octets = logits.numpy(), bits.view(np.uint8)
    for row, octet in zip(rows.tolist(), octets, strict=True):
        values[row] += _ADDENDS.take(octet, axis=0).reshape(-1)[: logits.shape[1]]


_OCTETS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDENDS = np.where(_OCTETS, 0, -np.inf).astype(np.float32)
"""float32 [256, 8]: addends of eight logits for each octet of a mask. Choosing by an array of bool was measured to take
two to ten times as long."""
