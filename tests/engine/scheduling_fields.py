"""Scheduling parameters in tests, given one by one."""

from dataclasses import fields

from inflight_engine.request import Scheduling

_NAMES = [each.name for each in fields(Scheduling)]


def gathered(given):
    """Fields of a request, with those of its `Scheduling` in one value."""
    own = {name: given[name] for name in _NAMES if name in given}
    return {**{name: value for name, value in given.items() if name not in own}, "scheduling": Scheduling(**own)}
