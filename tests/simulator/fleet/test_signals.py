from inflight_simulator.fleet.scalers.signals import Recent, Traffic
from tests.simulator.fleet.scalers_support import histogram, sample, view


def test_recent_values_are_those_of_the_last_seconds():
    recent = Recent(20.0)
    for now, value in ((0, 4.0), (10, 1.0), (20, 2.0)):
        recent.add(now, value)
    assert (recent.mean, recent.largest, recent.smallest) == (1.5, 2.0, 1.0)


def test_traffic_is_the_growth_of_the_counters_within_the_span():
    traffic = Traffic(20.0)
    for now, arrived in ((0, 100.0), (10, 120.0), (20, 150.0), (30, 190.0)):
        growth = traffic.observe(view([sample(arrived=arrived, arrived_tokens=10 * arrived)], now=now))
    assert (growth.seconds, growth.arrived, growth.prompt) == (20.0, 70.0, 10.0)
    assert growth.requests_per_second == 3.5


def test_traffic_of_pods_that_came_and_went_is_counted():
    traffic = Traffic(60.0)
    first, second = sample(arrived=10.0), sample(arrived=7.0)
    traffic.observe(view([first], now=0.0))
    traffic.observe(view([sample(arrived=12.0), second], now=10.0))
    assert traffic.observe(view([sample(arrived=15.0)], now=20.0)).arrived == 2 + 7 + 3


def test_nothing_is_known_of_a_single_look():
    traffic = Traffic(60.0)
    growth = traffic.observe(view([sample(arrived=10.0)]))
    assert (growth.requests_per_second, growth.prompt, growth.output, growth.hit_rate) == (0.0, None, None, 0.0)


def test_the_mean_output_is_of_requests_that_ended():
    traffic = Traffic(60.0)
    traffic.observe(view([sample()], now=0.0))
    growth = traffic.observe(view([sample(generation_tokens=600.0, tpot=histogram(0.02, 0.3, 0.3))], now=10.0))
    assert growth.output == 200
    assert growth.tpot.count == 3
