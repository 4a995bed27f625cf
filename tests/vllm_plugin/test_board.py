"""The memory that vLLM's two processes share."""

import multiprocessing

from hypothesis import given
from hypothesis import strategies as st

from inflight_cost.model import CostModel
from inflight_settings.limits import Limits, LimitsInForce
from inflight_vllm.board import Board, Report


def test_there_is_no_board_before_the_engine_process_made_one(tmp_path):
    assert Board.open(tmp_path / "state") is None


def test_an_empty_board_has_no_documents(tmp_path):
    board = Board.create(tmp_path / "state")
    assert (board.limits.number, board.limits.read(), board.report.read()) == (0, None, None)


def test_each_side_reads_what_the_other_wrote(tmp_path):
    engine = Board.create(tmp_path / "state")
    api = Board.open(tmp_path / "state")
    report = Report(arrived=(1, 2, 3), cost=CostModel(1, 2, 3, 4, 5, curve=((1.0, 2.0), (4.0, 8.0))), cost_error=0.1)
    engine.report.write(report)
    api.limits.write(LimitsInForce(Limits(4, 128), 7))
    assert api.report.read() == report
    assert engine.limits.read() == LimitsInForce(Limits(4, 128), 7)


def test_an_engine_process_that_starts_makes_a_new_board(tmp_path):
    before = Board.create(tmp_path / "state")
    before.limits.write(LimitsInForce(Limits(4, 128), 7))
    assert Board.create(tmp_path / "state").limits.read() is None
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 2**62)), min_size=1))
def test_the_latest_document_is_read_and_its_number_grows(tmp_path_factory, writes):
    board = Board.create(tmp_path_factory.mktemp("board") / "state")
    for number, (seqs, tokens, revision) in enumerate(writes, start=1):
        board.limits.write(LimitsInForce(Limits(seqs, tokens), revision))
        assert board.limits.number == number
        assert board.limits.read() == LimitsInForce(Limits(seqs, tokens), revision)


def _write_many(path):
    board = Board.open(path)
    for revision in range(1, 20_000):
        board.limits.write(LimitsInForce(Limits(revision, revision), revision))


def test_a_reader_never_sees_half_of_a_write(tmp_path):
    board = Board.create(tmp_path / "state")
    writer = multiprocessing.get_context("spawn").Process(target=_write_many, args=(tmp_path / "state",))
    writer.start()
    while writer.is_alive():
        found = board.limits.read()
        assert found is None or found.limits == Limits(found.revision, found.revision)
    writer.join()
    assert board.limits.read() == LimitsInForce(Limits(19_999, 19_999), 19_999)
