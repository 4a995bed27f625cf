"""Defaults and bounds of the resource's fields, where more than one program needs them.

The gateway and the plugin apply a default where the installed CRD is older than the field, or the value is unreadable.
"""

from __future__ import annotations

TTFT_P95 = "500ms"
TPOT_P95 = "50ms"

MIN_REPLICAS = 1
MAX_REPLICAS = 8
IDLE_TIMEOUT = "10m"
SCALE_DOWN_SECONDS = 60

FALLBACK_WAITING_REQUESTS = 4
FALLBACK_KV_UTILIZATION = 0.8
"""Targets of a replica, if unset, while engines have measured no step costs."""

HOLD_MAX_REQUESTS = 1000
HOLD_MAX_BYTES = "64Mi"
HOLD_MAX_WAIT = "60s"
MAX_ATTEMPTS = 3
