"""The demo's rows and its closing line about the targets."""

from tools.demo import burst
from tools.demo.burst import Slo, verdict
from tools.testbed.numbers import Numbers
from tools.testbed.service import Service

SLO = Slo(ttft=2.0, tpot=0.06)


def test_the_closing_line_says_whether_the_targets_were_kept():
    kept = verdict({"ttft_p95": 1.2, "tpot_p95": 0.041}, SLO)
    assert kept == "p95 TTFT 1.2 s of 2 s, p95 TPOT 41 ms of 60 ms: kept"
    assert verdict({"ttft_p95": 1.2, "tpot_p95": 0.061}, SLO).endswith("p95 TPOT 61 ms of 60 ms: not kept")
    assert verdict({"ttft_p95": 2.5, "tpot_p95": 0.041}, SLO).endswith(": not kept")
    assert "nothing is known" in verdict({"ttft_p95": None, "tpot_p95": None}, SLO)


def test_only_whole_lines_of_the_driver_are_read():
    line = '{"seconds": 1.0, "lost": {}, "ttft_p95": 0.5, "tpot_p95": null}\n'
    assert burst._newest([line[:30], line[30:], '{"seconds": 2.0, "lost": {}']) == burst.Latencies(0.5, None)
    assert burst._newest([line[:30]]) == burst._newest(["error: \n"]) == burst.NOTHING_SEEN


def test_rows_show_latencies_beside_their_targets_and_decisions_at_once(monkeypatch, capsys):
    clock, decisions = [0.0], []
    monkeypatch.setattr(burst.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(burst, "numbers", lambda service: Numbers(12, 3, 0.25, 2, 1, round(clock[0]), 8192))
    monkeypatch.setattr(Service, "status", lambda service: {"decisions": decisions})
    watch = burst.Watch(Service("chat"), SLO)
    for clock[0] in (1.0, 2.0, 3.0, 5.0):
        if clock[0] == 3:
            decisions.append({"time": "t", "change": "replicas 1 -> 2", "reason": "demand"})
        watch.update(burst.Latencies(1.23, 0.0414))
    _, header, *rows = capsys.readouterr().out.splitlines()
    assert "TTFT/2 s" in header
    assert "TPOT/60 ms" in header
    assert [row.split()[0] for row in rows] == ["1.0", ">", "3.0"]
    assert rows[2].split() == ["3.0", "2", "1", "12", "3", "25%", "1.2", "s", "41", "ms", "3", "8192"]
    assert len(rows[2]) == len(header)
