"""Graceful shutdown: new connections go to other gateway pods, running requests end, then the picker may exit."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from inflight_gateway.proxy.admin import Admin
from inflight_gateway.proxy.names import OUTER

_log = logging.getLogger(__name__)

_POLL_S = 0.2


async def drain(admin_socket: Path, least_s: float, most_s: float) -> None:
    """Returns when no client request is in flight, the time is over, or Envoy has exited.

    Args:
        least_s: until the Service's endpoints no longer name this pod on all nodes; new requests are served till then.
        most_s: at most, in seconds.
    """
    begin, active = time.monotonic(), 0
    async with Admin(admin_socket) as admin:
        try:
            await admin.drain_inbound()
            while time.monotonic() - begin < most_s:
                await asyncio.sleep(_POLL_S)
                active = await admin.active_requests(OUTER)
                if not active and time.monotonic() - begin >= least_s:
                    break
        except (OSError, ValueError) as error:
            _log.warning("drain: %s", error)
            return
    took = time.monotonic() - begin
    if active:
        _log.warning("drained for %.1f s, the most that --drain-max allows: %d requests are cut off", took, active)
    else:
        _log.info("drained in %.1f s: no request is under way", took)
