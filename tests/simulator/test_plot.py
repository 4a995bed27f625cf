import matplotlib.image
import numpy as np
import pytest

from inflight_simulator.cli import main
from inflight_simulator.continuous import simulate_continuous
from inflight_simulator.cost import LLAMA_8B_H100
from inflight_simulator.plot import Window, _waiting, plot, whole
from inflight_simulator.static import simulate_static
from tests.simulator.support import EXAMPLES, scheduler_config, together
from tests.simulator.test_static import machine

PREFILL, DECODE, PADDING, PREEMPTED = (0xE6, 0x9F, 0x00), (0x00, 0x72, 0xB2), (0x9A, 0x9A, 0x9A), (0xD5, 0x5E, 0x00)


def share(path, color):
    """Share of the picture's pixels that have this color."""
    pixels = matplotlib.image.imread(path)[:, :, :3]
    return float((np.abs(pixels * 255 - np.array(color)) < 2).all(axis=2).mean())


def test_a_picture_of_few_requests_has_all_phases(tmp_path):
    path = tmp_path / "four.png"
    flags = ["--max-num-batched-tokens", "512", "--plot-window", "0:1.5", "--plot", str(path)]
    assert main(["compare", str(EXAMPLES / "four.csv"), *flags]) == 0
    assert share(path, DECODE) > 0.1
    assert share(path, PREFILL) > 0.01
    assert share(path, PADDING) > 0.005


def test_a_picture_of_a_thousand_requests_has_a_row_for_each_slot(tmp_path):
    lengths = np.random.RandomState(0).randint(20, 200, 1000)
    run = simulate_continuous(together(lengths, 200), scheduler_config(64, 512, num_blocks=1000), LLAMA_8B_H100)
    assert run.num_preemptions > 10
    path = tmp_path / "thousand.png"
    plot(path, {"continuous": run}, whole({"continuous": run}))
    assert share(path, DECODE) > 0.1
    assert share(path, PREEMPTED) > 0


def test_the_queue_is_what_has_come_and_holds_no_slot():
    run = simulate_static(together([5, 5, 5]), machine(max_num_seqs=2), LLAMA_8B_H100)
    times, waiting = _waiting(run)
    assert waiting.tolist() == [1, 0]
    assert times.tolist() == [0, max(outcome.admitted_s for outcome in run.outcomes)]


@pytest.mark.parametrize("window", [(0.0, 0.001), (1e-9, 2e-9)])
def test_any_window_can_be_drawn(tmp_path, window):
    run = simulate_continuous(together([5] * 60), scheduler_config(4), LLAMA_8B_H100)
    plot(tmp_path / "window.png", {"continuous": run}, Window(*window))
    assert (tmp_path / "window.png").stat().st_size > 1000
