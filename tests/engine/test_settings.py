"""The table of settings: choices that are implemented, and defaults that could be given."""

import pytest

from inflight_engine.execution.attention import BACKENDS
from inflight_engine.execution.device import DTYPES
from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.preemption import VICTIMS
from inflight_settings.engine import EngineConfig
from inflight_settings.flags import parser_of, written
from inflight_settings.scheduling import ServiceClass
from inflight_settings.server import ServerSettings
from inflight_settings.setting import settings_of

SETTINGS = settings_of(EngineConfig) | settings_of(ServerSettings)


@pytest.mark.parametrize(
    ("name", "implemented"),
    [
        ("policy", POLICIES),
        ("preemption_victim", VICTIMS),
        ("attention_backend", ["auto", *(each.name for each in BACKENDS)]),
        ("dtype", ["auto", *DTYPES]),
    ],
)
def test_every_choice_is_implemented_and_every_implementation_can_be_chosen(name, implemented):
    assert set(SETTINGS[name].choices) == set(implemented)


@pytest.mark.parametrize("setting", [*SETTINGS.values(), *settings_of(ServiceClass).values()], ids=lambda one: one.flag)
def test_a_default_is_within_the_bounds_and_among_the_choices(setting):
    if setting.default not in (None, True, False) and not setting.parse:
        assert parser_of(setting)(written(setting.default)) == setting.default
        assert setting.default in setting.choices or not setting.choices


def test_flags_are_distinct():
    assert len({each.flag for each in SETTINGS.values()}) == len(SETTINGS)
