"""Values of traces and logs reach the operator's command line; the schema refuses wrong ones."""

import json
from pathlib import Path

import pytest

from inflight_operator.api.engine.observability import ENDPOINT_PATTERN
from inflight_operator.cli import build_parser

CHART = Path(__file__).parents[2] / "helm" / "inflight"
TRACED = (
    "--set=engine.tracing.endpoint=http://collector.observability.svc:4318",
    "--set-json=engine.tracing.samplingRatio=0.05",  # --set makes a string of a fraction
)


def flags_of(objects):
    arguments = objects[("Deployment", "prod-operator")]["spec"]["template"]["spec"]["containers"][0]["args"]
    return build_parser().parse_args(arguments)


def test_by_default_engines_send_no_traces_and_all_logs_are_text(helm):
    flags = flags_of(helm.objects())
    assert (flags.engine_traces_endpoint, flags.engine_log_format, flags.engine_access_log) == ("", "text", False)
    assert (flags.log_format, flags.log_level) == ("text", "info")


def test_values_reach_the_operator(helm):
    logs = ("--set=engine.logs.format=json", "--set=engine.logs.accessLog=true")
    own = ("--set=logs.format=json", "--set=logs.level=debug")
    flags = flags_of(helm.objects(*TRACED, *logs, *own))
    assert flags.engine_traces_endpoint == "http://collector.observability.svc:4318"
    assert flags.engine_traces_sampling_ratio == 0.05
    assert (flags.engine_log_format, flags.engine_access_log) == ("json", True)
    assert (flags.log_format, flags.log_level) == ("json", "debug")


def test_values_and_services_name_the_same_collectors():
    schema = json.loads((CHART / "values.schema.json").read_text())
    tracing = schema["properties"]["engine"]["properties"]["tracing"]["properties"]
    assert tracing["endpoint"]["pattern"] == f"^({ENDPOINT_PATTERN.removeprefix('^').removesuffix('$')})?$"


@pytest.mark.parametrize(
    "value",
    [
        "engine.tracing.endpoint=collector:4317",
        "engine.tracing.endpoint=grpc://collector:4317",
        "engine.tracing.endpoint=http://collector:99999",
        "engine.tracing.samplingRatio=1.5",
        "engine.logs.format=yaml",
        "logs.level=trace",
    ],
)
def test_wrong_values_are_refused(helm, value):
    done = helm.template(f"--set={value}")
    assert done.returncode != 0
    assert value.partition("=")[0].rpartition(".")[2] in done.stderr
