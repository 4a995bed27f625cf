"""The two limits that change while the engine runs, and the rules for changing them."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """Live limits of one step.

    Attributes:
        max_num_seqs: most requests that hold a slot.
        max_num_batched_tokens: most tokens computed in one step, decode and prefill together.
        revision: number of the change that set them; a change with a smaller one is refused.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    revision: int = 0


class LimitError(ValueError):
    """A limit below 1 or above its start-up capacity; the message names the field."""


class StaleRevisionError(ValueError):
    """The change is older than the one in force."""


def changed_limits(
    current: Limits,
    capacity: Limits,
    *,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    revision: int | None = None,
) -> Limits:
    """The limits after a change; what is not given stays. Sent twice, a change with the same revision is harmless.

    Raises:
        LimitError: a value is below 1 or above capacity. Nothing is changed.
        StaleRevisionError: `revision` is smaller than the one in force.
    """
    if revision is not None and revision < current.revision:
        raise StaleRevisionError(f"revision {revision} is older than revision {current.revision}, which is in force")
    for name, value, most in (
        ("max_num_seqs", max_num_seqs, capacity.max_num_seqs),
        ("max_num_batched_tokens", max_num_batched_tokens, capacity.max_num_batched_tokens),
    ):
        if value is not None and not 1 <= value <= most:
            raise LimitError(
                f"{name} must be between 1 and {most} (the capacity this engine was started with), not {value}"
            )
    return replace(
        current,
        max_num_seqs=current.max_num_seqs if max_num_seqs is None else max_num_seqs,
        max_num_batched_tokens=current.max_num_batched_tokens
        if max_num_batched_tokens is None
        else max_num_batched_tokens,
        revision=current.revision if revision is None else revision,
    )
