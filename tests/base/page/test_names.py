"""Pages of engines with other names."""

from __future__ import annotations

from inflight_base.page.names import renamed

NAMES = {"vllm:num_requests_running": "tgi.running", "vllm:time_to_first_token_seconds": "ttft"}


def test_samples_and_histograms_get_the_names_that_are_read():
    page = (
        b"# TYPE tgi.running gauge\ntgi.running 3\ntgixrunning 4\ntgi.running_more 5\n"
        b'ttft_bucket{le="1"} 1\nttft_sum 2\nttft_count{} 1\nttft_other 9\n'
    )
    assert renamed(page, NAMES) == (
        b"# TYPE tgi.running gauge\nvllm:num_requests_running 3\ntgixrunning 4\ntgi.running_more 5\n"
        b'vllm:time_to_first_token_seconds_bucket{le="1"} 1\nvllm:time_to_first_token_seconds_sum 2\n'
        b"vllm:time_to_first_token_seconds_count{} 1\nttft_other 9\n"
    )


def test_a_page_without_other_names_is_not_touched():
    page = b"vllm:num_requests_running 3\n"
    assert renamed(page, {}) is page
