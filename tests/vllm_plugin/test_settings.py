"""Environment variables of the plugin."""

from pathlib import Path

import pytest

from inflight_vllm.settings import read_settings


def test_without_variables_there_are_defaults():
    settings = read_settings({})
    assert (settings.admin_port, settings.drain_delay, settings.drain_timeout) == (8001, 5.0, 120.0)
    assert (settings.limits_file, settings.tenant_key_file, settings.ttft_target) == (None, None, None)
    assert settings.classes == {}


def test_classes_have_the_form_of_the_engines_flag():
    settings = read_settings(
        {
            "INFLIGHT_CLASSES": "interactive:weight=4,ttft=2;batch:priority=3",
            "INFLIGHT_TTFT_TARGET": "0.5",
            "INFLIGHT_LIMITS_FILE": "/limits/limits.json",
        }
    )
    assert list(settings.classes) == ["interactive", "batch"]
    assert settings.classes["interactive"].ttft_target == 2
    assert settings.classes["batch"].priority == 3
    assert (settings.ttft_target, settings.limits_file) == (0.5, Path("/limits/limits.json"))


@pytest.mark.parametrize(
    "name", ["INFLIGHT_ADMIN_PORT", "INFLIGHT_DRAIN_DELAY", "INFLIGHT_DRAIN_TIMEOUT", "INFLIGHT_TTFT_TARGET"]
)
@pytest.mark.parametrize("value", ["x", "-1", "nan", "inf"])
def test_what_is_no_number_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        read_settings({name: value})


def test_a_class_that_cannot_be_understood_is_refused_by_name():
    with pytest.raises(ValueError, match=r"INFLIGHT_CLASSES.*weigth"):
        read_settings({"INFLIGHT_CLASSES": "a:weigth=4"})
