"""Recording rules and alerts: promtool finds nothing to complain of, each alert fires where it should and nowhere else,
and each has a section in the docs."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from inflight_gateway.telemetry.metrics import Metrics
from inflight_gateway.tenants.usage import Usage
from inflight_operator.telemetry.metrics import OperatorMetrics
from tests.engine.server.test_measurements import OWN, VLLM
from tests.operator.telemetry.test_service_metrics import KEY, recorded_with
from tools import localcluster as cluster

PROJECT = Path(__file__).parents[2]
RULES = PROJECT / "helm" / "inflight" / "files" / "rules.yaml"
UNIT_TESTS = [Path(__file__).with_name(name) for name in ("alerts_test.yaml", "alerts_of_a_day_test.yaml")]


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts():
    return [rule for rule in rules() if "alert" in rule]


@pytest.fixture(scope="module")
def promtool():
    path = shutil.which("promtool") or str(cluster.promtool())
    return lambda *arguments: subprocess.run([path, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.timeout(1200)
def test_promtool_reads_the_rules_and_every_alert_fires_where_it_should(promtool):
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", *map(str, UNIT_TESTS))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_unit_test_fires_every_alert():
    cases = [case for file in UNIT_TESTS for case in yaml.safe_load(file.read_text())["tests"]]
    fired = {one["alertname"] for case in cases for one in case["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {rule["alert"] for rule in alerts()}


def test_every_alert_names_a_section_of_the_docs_and_every_section_is_named():
    headings = re.findall(r"^## (Inflight\w+)$", (PROJECT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    named = [rule["annotations"]["runbook"] for rule in alerts()]
    assert set(named) == {f"docs/alerts.md#{heading.lower()}" for heading in headings}


def test_the_docs_list_the_metrics_of_the_operator():
    listed = set(re.findall(r"`(inflight_operator_\w+)", (PROJECT / "docs" / "reference" / "metrics.md").read_text()))
    assert listed == exported_by_the_operator()


def exported_by_the_operator():
    metrics = OperatorMetrics()
    metrics.count_scrapes(lambda: (0, 0))
    metrics.count_gateway_pods(lambda: (0, 0))
    metrics.of_services.record(KEY, *recorded_with())
    page = generate_latest(metrics.registry).decode()
    return {name for name in re.findall(r"^# TYPE (\w+)", page, re.MULTILINE) if not name.endswith("_created")}


def exported_by_the_gateway():
    registry = Metrics().registry
    registry.register(Usage())
    return set(re.findall(r"^# TYPE (\w+)", generate_latest(registry).decode(), re.MULTILINE))


def test_rules_name_only_metrics_that_are_exported_or_recorded():
    plugin = (PROJECT / "vllm_plugin" / "inflight_vllm" / "page.py").read_text()
    exported = exported_by_the_operator() | exported_by_the_gateway() | set(OWN) | set(VLLM)
    exported |= set(re.findall(r'"(inflight_\w+)"', plugin))
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = {name for rule in rules() for name in re.findall(r"\binflight[_:][\w:]+", rule["expr"])}
    assert used <= exported | recorded
