"""The measurement of the API process, over real sockets."""

from tools.bench.api_process import measure


def test_steps_that_are_sent_together_are_one_event_of_each_stream():
    cost = measure(2, 4, 0.0, together=4)
    assert cost.events == 0.25
    assert cost.request > 0
    assert cost.token > 0
