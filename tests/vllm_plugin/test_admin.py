"""Calls of the admin port, and the limits that they change."""

import json
import time

import pytest

from inflight_contract.admin_signature import authorization, is_proof, signature
from inflight_settings.limits import Limits, LimitsInForce
from inflight_vllm.admin import Admin
from inflight_vllm.board import Board, Report
from inflight_vllm.drain import Drain
from inflight_vllm.limits import LiveLimits

POD, TOKEN = "pod-1", "token"


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", TOKEN)
    monkeypatch.setenv("INFLIGHT_POD_UID", POD)


@pytest.fixture
def board(tmp_path):
    board = Board.create(tmp_path / "state")
    board.report.write(Report(max_num_seqs=64, max_num_batched_tokens=2048, policy="fcfs", block_size=16, num_blocks=9))
    return board


def admin_of(limits):
    return Admin(limits, Drain(0, 0, lambda: None), lambda: (b"page", "text/plain"))


@pytest.fixture
def limits(board):
    limits = LiveLimits(board, None)
    limits.start(None)
    return limits


@pytest.fixture
def admin(limits):
    return admin_of(limits)


def call(admin, content, *, method="PATCH", path="/v1/runtime_config", pod=POD, token=TOKEN, at=None):
    """Returns the answer to a signed call, and whether it has the proof."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    at = str(int(time.time()) if at is None else at)
    signed = signature(token.encode(), method, path, pod, at, body)
    answer = admin.answer(method, path, authorization(pod, at, signed), body)
    return answer, is_proof(TOKEN.encode(), signed, answer.headers.get("Inflight-Proof", ""))


def error_of(answer):
    error = json.loads(answer.body)["error"]
    return answer.status, error["code"], error["param"]


def test_a_signed_change_reaches_the_engine_process_and_is_proven(admin, board):
    answer, proven = call(admin, {"max_num_seqs": 8, "max_num_batched_tokens": 256, "revision": 3})
    assert (answer.status, proven) == (200, True)
    assert board.limits.read() == LimitsInForce(Limits(8, 256), 3)
    content = json.loads(answer.body)
    assert (content["max_num_seqs"], content["max_num_batched_tokens"], content["revision"]) == (8, 256, 3)
    assert content["capacity"] == {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    assert content["kv_cache"] == {"num_blocks": 9, "block_size": 16, "largest_batch_tokens": 144}
    assert json.loads(admin.answer("GET", "/v1/runtime_config", "", b"").body) == content


def test_a_change_of_one_limit_keeps_the_other(admin, board):
    call(admin, {"max_num_seqs": 8, "revision": 1})
    call(admin, {"max_num_batched_tokens": 100, "revision": 2})
    assert board.limits.read() == LimitsInForce(Limits(8, 100), 2)


def test_an_older_revision_is_refused_and_the_same_one_is_harmless(admin, board):
    assert call(admin, {"max_num_seqs": 8, "revision": 3})[0].status == 200
    answer, proven = call(admin, {"max_num_seqs": 9, "revision": 2})
    assert (error_of(answer), proven) == ((409, "stale_revision", "revision"), True)
    assert call(admin, {"max_num_seqs": 8, "revision": 3})[0].status == 200
    assert board.limits.read() == LimitsInForce(Limits(8, 2048), 3)


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ({"max_num_seqs": 65}, "max_num_seqs"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 2049}, "max_num_batched_tokens"),
        ({"max_num_seqs": "8"}, "max_num_seqs"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"max_num_seqs": 8.0}, "max_num_seqs"),
        ({"revision": 2**63}, "revision"),
        ({"class_weights": {}}, "class_weights"),
        ([], None),
        (b"{", None),
        (b"[" * 10_000, None),
    ],
)
def test_a_wrong_change_is_refused_by_its_field_and_changes_nothing(admin, board, content, param):
    before = board.limits.read()
    answer, proven = call(admin, content)
    assert (answer.status, json.loads(answer.body)["error"]["param"], proven) == (400, param, True)
    assert board.limits.read() == before


@pytest.mark.parametrize(
    ("wrong", "status"), [({"token": "other"}, 401), ({"at": 1}, 401), ({"pod": "pod-2"}, 421)], ids=str
)
@pytest.mark.parametrize("path", ["/v1/runtime_config", "/admin/drain"])
def test_a_call_that_is_not_signed_for_this_pod_is_refused_without_proof(admin, board, wrong, status, path):
    method = "PATCH" if path == "/v1/runtime_config" else "POST"
    before = board.limits.read()
    answer, proven = call(admin, {"max_num_seqs": 8}, method=method, path=path, **wrong)
    assert (answer.status, proven, board.limits.read()) == (status, False, before)
    assert admin.answer(method, path, "", b"{}").status == 401
    assert admin.answer(method, path, "Bearer other", b"{}").status == 401


def test_the_token_itself_is_taken_too(admin):
    answer = admin.answer("PATCH", "/v1/runtime_config", f"Bearer {TOKEN}", b'{"max_num_seqs": 5}')
    assert (answer.status, json.loads(answer.body)["max_num_seqs"]) == (200, 5)


def test_limits_at_the_start_are_those_of_the_file_up_to_the_capacity(board, tmp_path):
    (tmp_path / "limits.json").write_text('{"max_num_seqs": 8, "max_num_batched_tokens": 9999, "revision": 5}')
    limits = LiveLimits(board, None)
    limits.start(tmp_path / "limits.json")
    assert limits.in_force == board.limits.read() == LimitsInForce(Limits(8, 2048), 5)


def test_a_vllm_that_is_not_known_answers_501_with_the_reason_and_drains(board):
    for limits, reason in (
        (LiveLimits(board, "vLLM 9.9.9 is not one that this plugin was tested with"), "9.9.9"),
        (LiveLimits(None, None), "--scheduler-cls"),
    ):
        limits.start(None)
        admin = admin_of(limits)
        for answer in (call(admin, {"max_num_seqs": 8})[0], admin.answer("GET", "/v1/runtime_config", "", b"")):
            assert error_of(answer) == (501, "unsupported_engine", None)
            assert reason in json.loads(answer.body)["error"]["message"]
        assert board.limits.read() is None


def test_the_reason_of_the_engine_process_is_told(tmp_path):
    board = Board.create(tmp_path / "state")
    board.report.write(Report(problem="several engines"))
    assert LiveLimits(board, None).report.problem == "several engines"


async def test_a_signed_drain_begins_and_anything_else_is_not_there(limits):
    drain = Drain(60, 0, lambda: None)
    admin = Admin(limits, drain, lambda: (b"page", "text/plain"))
    answer, proven = call(admin, b"", method="POST", path="/admin/drain")
    assert (answer.status, json.loads(answer.body), proven) == (202, {"status": "draining", "running": 0}, True)
    assert drain.draining
    assert admin.answer("GET", "/metrics", "", b"").body == b"page"
    assert admin.answer("POST", "/v1/chat/completions", "", b"{}").status == 404


def test_a_report_that_is_being_written_leaves_the_one_before_it_in_force(admin, limits, board, monkeypatch):
    monkeypatch.setattr(type(board.report), "read", lambda slot: None)
    assert limits.report.capacity == Limits(64, 2048)
    answer, _ = call(admin, {"max_num_seqs": 8})
    assert answer.status == 200


def test_a_plugin_that_failed_in_the_engine_process_takes_no_more_changes(admin, board):
    board.report.write(Report(problem="the plugin failed: ZeroDivisionError"))
    answer, proven = call(admin, {"max_num_seqs": 8})
    assert (answer.status, proven) == (501, True)
    assert b"ZeroDivisionError" in answer.body
