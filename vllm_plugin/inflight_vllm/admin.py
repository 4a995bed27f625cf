"""Admin calls: limits, drain and metrics, answered as Inflight's own engine answers them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from inflight_contract.admin_signature import PROOF_HEADER
from inflight_contract.admin_token import permit
from inflight_contract.errors import ApiError, bad_request
from inflight_settings.limits import KNOBS, PartialLimits
from inflight_vllm.drain import Drain
from inflight_vllm.limits import LiveLimits

_MOST_REVISION = 2**63


class AdminPath:
    """Paths of admin calls."""

    LIMITS: Final = "/v1/runtime_config"
    DRAIN: Final = "/admin/drain"
    METRICS: Final = "/metrics"


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP response."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, content: Any, status: int = 200) -> Answer:
        """JSON content."""
        return cls(status, json.dumps(content).encode(), {"content-type": "application/json"})

    @classmethod
    def error(cls, error: ApiError) -> Answer:
        """An error in OpenAI's format."""
        return cls(error.status, error.body(), error.all_headers())


class Admin:
    """The admin port's routes. `metrics`: Prometheus' text format."""

    def __init__(self, limits: LiveLimits, drain: Drain, metrics: Callable[[], tuple[bytes, str]]) -> None:
        self._limits = limits
        self._drain = drain
        self._metrics = metrics

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> Answer:
        """Return the response to a call.

        Args:
            authorization: value of the header; empty without one.
        """
        try:
            match method, path:
                case "GET", AdminPath.METRICS:
                    page, content_type = self._metrics()
                    return Answer(200, page, {"content-type": content_type})
                case "GET", AdminPath.LIMITS:
                    return self.runtime_config()
                case "PATCH", AdminPath.LIMITS:
                    return _proven(permit(authorization, method, path, body), lambda: self._change(body))
                case "POST", AdminPath.DRAIN:
                    return _proven(permit(authorization, method, path, body), self._begin_drain)
            raise ApiError(404, f"{method} {path} is not served on this port")
        except ApiError as error:
            return Answer.error(error)

    def runtime_config(self) -> Answer:
        """Limits in force, capacities, and the shape of the KV cache.

        Raises:
            ApiError: 501, the limits cannot be changed.
        """
        report, force = self._limits.checked(), self._limits.in_force
        return Answer.json(
            {
                **asdict(force.limits),
                "revision": force.revision,
                "capacity": asdict(report.capacity),
                "kv_cache": {
                    "num_blocks": report.num_blocks,
                    "block_size": report.block_size,
                    "largest_batch_tokens": report.num_blocks * report.block_size,
                },
                "scheduling": {"policy": report.policy},
            }
        )

    def _change(self, body: bytes) -> Answer:
        fields = _fields(body)
        revision = fields.pop("revision", None)
        self._limits.change(PartialLimits(**fields), revision)
        return self.runtime_config()

    def _begin_drain(self) -> Answer:
        self._drain.begin()
        return Answer.json({"status": "draining", "running": self._drain.running}, 202)


def _proven(proof: str | None, act: Callable[[], Answer]) -> Answer:
    """Answer with the proof of a signed call; errors too: the caller must know that this pod rejected it."""
    try:
        answer = act()
    except ApiError as error:
        answer = Answer.error(error)
    if proof is not None:
        answer.headers[PROOF_HEADER] = proof
    return answer


def _fields(body: bytes) -> dict[str, int]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise bad_request("the body must be a JSON object sent with `Content-Type: application/json`")
    for name, value in fields.items():
        if name not in (*KNOBS, "revision"):
            raise bad_request(f"{name}: this parameter is unknown", name, "unsupported_parameter")
        if value is not None and (type(value) is not int or value >= _MOST_REVISION):
            raise bad_request(f"{name}: must be an integer below 2^63", name)
    return fields
