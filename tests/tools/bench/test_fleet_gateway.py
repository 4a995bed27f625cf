"""The comparison of the autopilot through the gateway with `least-work`."""

from tools.bench import fleet_gateway


def run(monkeypatch, capsys, tmp_path, rows, *flags):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{time},200,20\n" for time in rows))
    monkeypatch.setattr("sys.argv", ["fleet_gateway", str(trace), "--seeds", "1", *flags])
    return fleet_gateway.main(), capsys.readouterr().out


def test_a_light_load_is_served_as_well_through_the_gateway(monkeypatch, capsys, tmp_path):
    status, out = run(monkeypatch, capsys, tmp_path, [number / 4 for number in range(120)], "--pods", "1", "2")
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert [line[0] for line in lines] == ["routing", "least-work", "gateway,", "gateway,"]
    assert lines[2][-6:] == ["0.01", "+0.0%", "100.00%", "+0.00", "points", "0.00%"]


def test_refused_requests_miss_the_goal(monkeypatch, capsys, tmp_path):
    service = tmp_path / "service.yaml"
    service.write_text(
        "apiVersion: inflight.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: chat}\n"
        'spec: {model: {source: "builtin://smollm2"}, gateway: {defaultLimits: {requestsPerMinute: 50}}}\n'
    )
    flags = ["--pods", "1", "--service", str(service), "--seconds", "10"]
    status, out = run(monkeypatch, capsys, tmp_path, [number / 10 for number in range(200)], *flags)
    assert status == 1
    # 101 requests in the first 10 s.
    assert out.splitlines()[2].endswith("49.50%  -50.50 points   50.50%")
