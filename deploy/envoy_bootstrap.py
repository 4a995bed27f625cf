"""Envoy's bootstrap in the chart, as `inflight-gateway envoy-config` prints it."""

from __future__ import annotations

import json
import sys

from deploy import generated
from deploy.chart import CHART
from inflight_gateway.proxy.bootstrap import bootstrap
from inflight_gateway.settings import Sockets

FILE = CHART / "files" / "envoy.json"
