"""The operator's own decisions on one real engine, a round every few seconds, with one replica and no Kubernetes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inflight_operator.api.types import InferenceService
from inflight_operator.decide.status.sentences import change_text, sentence
from inflight_operator.observe.pods import LimitsPush
from inflight_operator.observe.window import Window
from inflight_operator.reconcile.decide import decide
from inflight_operator.reconcile.memory import first_memory
from inflight_operator.reconcile.policy import policy_of
from inflight_operator.reconcile.snapshot import Snapshot, fresh_samples
from inflight_operator.render.plan import Settings
from inflight_settings.limits import Limits, LimitsInForce
from tools.bench.autopilot.engine import IMAGE, UID, Admin, Engine
from tools.bench.autopilot.figures import Targets

INTERVAL = 3.0
"""Seconds between two scrapes, and two rounds: the operator's default."""
_STALE_AFTER = 2 * INTERVAL + 4
_SPAN = 30.0


def service_of(engine: str, targets: Targets, capacity: Limits) -> InferenceService:
    """The service as its user would have written it, with exactly one replica of an engine of this type."""
    own = {"quantization": "int8"} if engine == "inflight" else {"type": engine}
    return InferenceService.from_dict(
        {
            "apiVersion": "inflight.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "bench", "namespace": "bench", "uid": "bench", "generation": 1},
            "spec": {
                "model": {"source": "builtin://smollm2"},
                "accelerator": {"count": 0},
                "engine": {
                    **own,
                    "maxNumSeqs": capacity.max_num_seqs,
                    "maxNumBatchedTokens": capacity.max_num_batched_tokens,
                },
                "slo": {"ttftP95": _duration(targets.ttft), "tpotP95": _duration(targets.tpot)},
                "scaling": {"minReplicas": 1, "maxReplicas": 1},
                "tuning": {"mode": "Auto"},
            },
        }
    )


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the limits. Attributes: at: time on the steady clock. text: the reason."""

    at: float
    limits: Limits
    text: str


class Pilot:
    """Reconciles one engine of the type `kind`, whose first limits are `start`, as the operator does.

    Attributes:
        limits: limits in force.
        changes: changes so far.
    """

    def __init__(
        self,
        kind: str,
        admin: Admin,
        engine: Engine,
        targets: Targets,
        capacity: Limits,
        start: LimitsInForce,
        say: Callable[[str], None],
    ) -> None:
        self.limits = start
        self.changes: list[Change] = []
        self._admin = admin
        self._engine = engine
        self._say = say
        self._service = service_of(kind, targets, capacity)
        self._settings = Settings(engine_image=IMAGE, plugin_image=IMAGE)
        self._policy = policy_of(self._service, self._settings)
        self._window = Window(_SPAN)
        self._pushes: dict[str, LimitsPush] = {}
        now = time.monotonic()
        memory = first_memory(self._service, self._policy, 1, now, datetime.now(UTC))
        self._memory = replace(memory, limits=start)

    async def run(self) -> None:
        """Runs rounds until cancelled.

        Raises:
            inflight_operator.apply.engines.EngineError: the engine did not take its limits.
        """
        due = time.monotonic()
        while True:
            await self._round()
            due += INTERVAL
            await asyncio.sleep(due - time.monotonic())

    async def _round(self) -> None:
        sample = await self._admin.sample()
        now = time.monotonic()
        self._window = self._window.with_samples({UID: sample}, {UID}, now)
        plan = decide(self._snapshot(now), self._memory)
        self._memory = plan.memory
        texts = [
            f"{change_text(one)}: {sentence(one.reason)}"
            for one in plan.decisions
            if one.kind == "Tuning" and one.applied
        ]
        for _, limits in plan.push:
            await self._admin.set_limits(limits.limits, limits.revision)
            self.limits = limits
            taken = time.monotonic()
            self._pushes[UID] = LimitsPush(accepted=limits, at=taken)
            self.changes.append(Change(taken, limits.limits, "; ".join(texts)))
        for text in texts:
            self._say(f"    {text}")

    def _snapshot(self, now: float) -> Snapshot:
        pods = (self._engine.pod,)
        return Snapshot(
            service=self._service,
            policy=self._policy,
            settings=self._settings,
            now=now,
            at=datetime.now(UTC),
            pods=pods,
            listed=frozenset({UID}),
            window=self._window,
            fresh=fresh_samples(self._window, pods, now, _STALE_AFTER),
            pushes=self._pushes,
        )


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
