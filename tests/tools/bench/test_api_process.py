"""The measurement of the API process, over real sockets."""

import pytest

from tools.bench import api_gaps, api_process
from tools.bench.api_process import measure


def test_steps_that_are_sent_together_are_one_event_of_each_stream():
    cost = measure(2, 4, 0.0, together=4)
    assert cost.events == 0.25
    assert cost.request > 0
    assert cost.token > 0


@pytest.mark.parametrize(("longest", "status"), [(0.02, 0), (0.2, 1)])
def test_the_exit_status_says_whether_a_stream_held_the_goal_beside_all_bodies(monkeypatch, longest, status):
    def measured(names, _tries, say):
        for name in names:
            say(name, api_gaps.Gap(200, 1.0, longest if name == "words" else 0.01))

    monkeypatch.setattr(api_gaps, "measure", measured)
    monkeypatch.setattr("sys.argv", ["api_process", "--bodies", "text", "words"])
    with pytest.raises(SystemExit) as ended:
        api_process.main()
    assert ended.value.code == status
