"""The queries of the dashboards: PromQL that parses, names only metrics and labels that exist, and counts rightly."""

import re
import shutil
import subprocess

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deploy.dashboards import queries as made
from deploy.dashboards.engine import TERMS
from deploy.dashboards.kinds import KINDS
from inflight_base.manifest.keys import ServiceKey
from inflight_cost.model import TERMS as COUNTED_TERMS
from inflight_engine.server.requests.counts import CURVE
from inflight_gateway.state.load import ServiceLoad
from inflight_gateway.telemetry.metrics import Metrics
from inflight_gateway.tenants.usage import Usage
from inflight_gateway.types import Endpoint, Finished, Pick, RequestView
from inflight_operator.observe.gateway_view import GatewayView
from inflight_operator.telemetry.metrics import OperatorMetrics
from tests.base.page.pages import engine_page, vllm_page
from tests.deploy.dashboards.checked import KIND, queries
from tests.operator.telemetry.test_service_metrics import KEY, recorded_with
from tools import localcluster as cluster

TARGET_LABELS = {"namespace", "name", "pod"}
"""Labels of an engine's scrape: those of Kubernetes, and the one that the operator's PodMonitor adds."""


@pytest.fixture(scope="module")
def promtool():
    path = shutil.which("promtool") or str(cluster.promtool())
    return lambda *arguments: subprocess.run([path, *arguments], capture_output=True, text=True, check=False)


NO_LIMITS = {"limits": None, "modelled": None, "sizing": None}


def operator_page(**values):
    metrics = OperatorMetrics()
    metrics.count_scrapes(lambda: (1, 0))
    metrics.decisions.labels("Scaling", "Demand").inc()
    metrics.reconciles.labels("done").inc()
    metrics.of_services.record(KEY, *recorded_with(gateway=GatewayView(), **values))
    return generate_latest(metrics.registry).decode()


def gateway_page():
    """Metrics page of a gateway pod that had one request."""
    service, metrics, usage = ServiceKey("team", "chat"), Metrics(), Usage()
    metrics.picked(RequestView("1", service, 0.0), Pick((Endpoint("10.0.0.1:8000", "chat-0"),), "only"), 0.1)
    metrics.finished(Finished("1", service, 200, True, ttft_s=0.1, e2e_s=1.0))
    metrics.watch_loads(lambda: {service: ServiceLoad()})
    usage.of(service, "acme").requests += 1
    metrics.registry.register(usage)
    return metrics.page().decode()


PAGES = {
    "inflight": (operator_page, engine_page),
    "vllm": (operator_page, vllm_page),
    "vllm-plain": (operator_page, lambda: vllm_page(plugin=False)),
    "custom": (lambda: operator_page(**NO_LIMITS), lambda: ""),
}
"""Pages of the operator and of the engines, by the kind of these. Names on pages of custom servers are others."""


@pytest.fixture(scope="module")
def exported():
    """Labels by the names of samples, as the programs write them, by the kind of engines."""
    return {kind: labels_by_name(operator(), engine()) for kind, (operator, engine) in PAGES.items()}


def labels_by_name(operator, engine):
    found = {}
    for page, more in ((operator, set()), (gateway_page(), set()), (engine, TARGET_LABELS)):
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels, more)
    return found


def selectors(expr):
    """Names of metrics, and the labels that are selected by."""
    for name, matchers in re.findall(r"\b((?:inflight|vllm)[_:][\w:]+)(?:\{(.*?)\})?", expr):
        yield name, set(re.findall(r"(\w+)=~?\"", matchers))


def test_every_expression_parses(promtool, tmp_path):
    rules = [{"record": f"panel:{index}", "expr": one.replaced} for index, one in enumerate(queries())]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    checked = promtool("check", "rules", str(file))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_query_names_only_metrics_that_its_kind_of_engines_has_and_labels_that_they_have(exported):
    for one in queries():
        used, known = list(selectors(one.expr)), exported[KIND.get(one.dashboard, "inflight")]
        assert used, one
        for name, labels in used:
            assert name in known, one
            assert labels <= known[name], (one, labels - known[name])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_dashboards_of_a_kind_leave_out_no_metric_that_it_has(exported, kind):
    used = {name for one in queries() for name, _ in selectors(one.expr)}
    assert {name for name in used if kind.has(name)} == used & exported[kind.name].keys()


def test_labels_of_results_and_legends_are_those_of_the_metrics(exported):
    for one in queries():
        labels = {label for group in re.findall(r"\bby \(([^()]+)\)", one.expr) for label in group.split(", ")}
        all_labels = exported[KIND.get(one.dashboard, "inflight")]
        known = set().union(*(all_labels[name] for name, _ in selectors(one.expr)))
        assert labels <= known, (one, labels - known)


def test_every_part_of_a_step_is_drawn():
    assert set(TERMS) == {*COUNTED_TERMS, CURVE}


def test_dashboards_work_without_the_recording_rules_of_the_chart():
    assert not [one for one in queries() if "inflight:" in one.expr]


EACH = made.counted_each("m", "", ("reason",)).replace("$__interval", "1m")
FIRST_IN_MINUTE_8_NEXT_IN_MINUTE_10 = {'m{reason="a", instance="x"}': "_x8 1 1 2+0x12"}
CASES = {
    "the first of its reason, at its point of a graph": (EACH, FIRST_IN_MINUTE_8_NEXT_IN_MINUTE_10, [1], "8m"),
    "none at a point of a graph": (EACH, FIRST_IN_MINUTE_8_NEXT_IN_MINUTE_10, [0], "9m"),
    "the next of its reason, at its point of a graph": (EACH, FIRST_IN_MINUTE_8_NEXT_IN_MINUTE_10, [1], "10m"),
    "a restart of the operator at a point of a graph": (EACH, {'m{reason="a"}': "7x5 1x5"}, [0], "6m"),
    "a decision whose reason was never seen before": (
        made.counted("m", "", ("reason",), "5m"),
        {'m{reason="a", instance="x"}': "_x8 1+0x12"},
        [1],
        "10m",
    ),
    "a decision whose reason was seen before": (
        made.counted("m", "", ("reason",), "5m"),
        {'m{reason="a", instance="x"}': "1x8 2+0x12"},
        [1],
        "10m",
    ),
    "no decision lately": (
        made.counted("m", "", ("reason",), "5m"),
        {'m{reason="a", instance="x"}': "3x40"},
        [0],
        "20m",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_decisions_are_counted_from_the_first_on(promtool, tmp_path, case):
    expr, series, (expected,), when = CASES[case]
    samples = [({"reason": "a"}, expected)]
    assert evaluated(promtool, tmp_path, f"round({expr})", series, samples, when) == ""


def evaluated(promtool, folder, expr, series, expected, when, interval="1m"):
    """Differences from `expected`, values by labels, that promtool finds. `interval`: between samples of `series`."""
    samples = [{"labels": "{" + ", ".join(f'{k}="{v}"' for k, v in labels.items()) + "}", "value": value}
               for labels, value in expected]  # fmt: skip
    test = {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": when, "exp_samples": samples}],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
    done = promtool("test", "rules", str(file))
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_time_out_of_target_is_the_time_in_which_more_than_one_in_twenty_missed_it(promtool, tmp_path):
    expr = made.out_of_target_seconds("first_tokens", "").replace("$__range", "1h")
    name = "inflight_operator_service_first_tokens"
    about = '{namespace="team", name="chat"}'
    # 60 requests a minute, and for ten minutes one in five of them is late. A window of one minute sees that for at
    # most eleven minutes.
    series = {f"{name}_total{about}": "0+15x480", f"{name}_in_target_total{about}": "0+15x240 3612+12x39 4095+15x200"}
    expr = f"(({expr}) >= bool 600) * (({expr}) <= bool 660)"
    assert evaluated(promtool, tmp_path, expr, series, [({}, 1)], "100m", interval="15s") == ""


def test_one_late_request_is_no_longer_than_its_minute_out_of_target(promtool, tmp_path):
    expr = made.out_of_target_seconds("first_tokens", "").replace("$__range", "1h")
    name = "inflight_operator_service_first_tokens"
    about = '{namespace="team", name="chat"}'
    series = {f"{name}_total{about}": "0+1x480", f"{name}_in_target_total{about}": "0+1x240 240+1x200"}
    expr = f"(({expr}) >= bool 30) * (({expr}) <= bool 60)"
    assert evaluated(promtool, tmp_path, expr, series, [({}, 1)], "100m", interval="15s") == ""
