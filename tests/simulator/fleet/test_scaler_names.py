import pytest

from inflight_simulator.errors import InputError
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.scalers import COMPARED, NAMES, make_scaler
from tests.simulator.fleet.scalers_support import sample, view


@pytest.mark.parametrize("name", [*COMPARED, "fixed:8"])
def test_each_scaler_orders_replicas_before_and_after_pods_show_metrics(name):
    scaler = make_scaler(name, FleetConfig())
    assert scaler.interval_s > 0
    for now, seen in enumerate(
        (view([], starting=3), view([sample()] * 3), view([sample(running=9, waiting=9, kv=1.0)]))
    ):
        assert isinstance(scaler.replicas(seen), int), now


def test_an_unknown_name_is_answered_with_all_names():
    with pytest.raises(InputError) as error:
        make_scaler("hpa", FleetConfig())
    for name in (*NAMES, "autopilot", "oracle"):
        assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hpa-queue", "needs a number, as in hpa-queue:5"),
        ("hpa-kv:high", "needs a number, as in hpa-kv:0.8"),
        ("hpa-kv:0", "must be above 0"),
        ("hpa-queue:nan", "must be above 0"),
        ("fixed:2.5", "a whole number of replicas"),
        ("fixed:inf", "a whole number of replicas"),
        ("wva:3", "takes no number"),
    ],
)
def test_a_wrong_number_is_said_clearly(name, says):
    with pytest.raises(InputError, match=says):
        make_scaler(name, FleetConfig())
