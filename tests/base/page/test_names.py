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


def test_a_sample_that_has_the_readers_name_is_hidden_by_the_one_in_its_place():
    page = b"vllm:num_requests_running 5\nbusy 3\n"
    found = renamed(page, {"vllm:num_requests_running": "busy"})
    assert found == b"_vllm:num_requests_running 5\nvllm:num_requests_running 3\n"


def test_names_may_be_exchanged():
    names = {"vllm:num_requests_running": "vllm:num_requests_waiting"}
    names |= {theirs: ours for ours, theirs in names.items()}
    page = b"vllm:num_requests_running 5\nvllm:num_requests_waiting 3\n"
    assert renamed(page, names) == b"vllm:num_requests_waiting 5\nvllm:num_requests_running 3\n"
