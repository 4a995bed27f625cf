"""Sentences of decisions, as the status has them."""

from inflight_operator.decide.replicas.behavior import Behavior, ScalingRules
from inflight_operator.decide.status.sentences import change_text, sentence

USUAL = Behavior(scale_up=ScalingRules(0.0), scale_down=ScalingRules(300.0))


def change_said(change):
    """Returns `CHANGE: REASON`."""
    return f"{change_text(change)}: {sentence(change.reason)}"


def said(decision):
    """Returns `CHANGE: REASON` if something changes, else the reason alone."""
    changes = decision.changes if hasattr(decision, "changes") else [decision.change]
    if not changes or changes[0] is None:
        return sentence(decision.reason)
    return change_said(changes[0])
