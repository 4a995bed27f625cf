"""The report of the benchmark of transfers, and its plain connection."""

from tools.bench.transfer import Round, connection_seconds, copy_seconds, lines


def test_rates_are_of_the_time_beyond_that_of_a_cached_prompt():
    rounds = [Round(200_000_000, 4.0, 1.1, 0.1, 0.1, 0.02), Round(200_000_000, 5.0, 0.6, 0.1, 0.2, 0.04)]
    text = "\n".join(lines(rounds))
    assert "200 MB" in text
    assert "4.500 (4.000-5.000)" in text
    assert "300 (200-400)" in text
    assert "1500 (1000-2000)" in text
    assert "5.0x" in text


def test_all_bytes_pass():
    data = memoryview(bytearray(3_000_001))
    assert connection_seconds(data) > 0
    assert copy_seconds(data) > 0
