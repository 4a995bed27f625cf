"""Changes of the resource by a user."""

from __future__ import annotations

import json
import time
from typing import ClassVar

from e2e.disruptions.phases.base import Phase
from e2e.disruptions.stage import REPLICAS, Stage, replicas
from tools.localcluster import kubectl

CHANGES = 20
CHANGE_SECONDS = 1.0
OTHER_TEMPLATE = {"labels": {"disruption": "rollout"}}


class Steady(Phase):
    name = "steady"
    about = "nothing happens"

    def disturb(self, stage: Stage) -> None:
        """The traffic goes on for as long as `--seconds` says."""


class ScaleOut(Phase):
    name = "scale-out"
    about = f"{REPLICAS} -> {REPLICAS + 1} replicas"

    def disturb(self, stage: Stage) -> None:
        stage.apply(scaling=replicas(REPLICAS + 1))
        stage.wait_ready(REPLICAS + 1)


class ScaleIn(Phase):
    name = "scale-in"
    about = f"{REPLICAS + 1} -> {REPLICAS} replicas"

    def set_up(self, stage: Stage) -> None:
        stage.apply(scaling=replicas(REPLICAS + 1))
        stage.wait_ready(REPLICAS + 1)

    def disturb(self, stage: Stage) -> None:
        stage.apply()
        stage.wait_ready(REPLICAS)


class _Rollout(Phase):
    strategy: ClassVar[str]

    def set_up(self, stage: Stage) -> None:
        stage.apply(rollout={"strategy": self.strategy})

    def disturb(self, stage: Stage) -> None:
        before = {pod.uid for pod in stage.pods()}
        stage.apply(rollout={"strategy": self.strategy}, template=OTHER_TEMPLATE)
        stage.wait("all pods replaced", lambda: not before & {pod.uid for pod in stage.pods()})
        stage.wait_ready(REPLICAS)


class RolloutSurgeFirst(_Rollout):
    name = "rollout-surge-first"
    about = "a change of the pod template, a new pod before an old one goes"
    strategy = "SurgeFirst"


class RolloutReleaseFirst(_Rollout):
    name = "rollout-release-first"
    about = "a change of the pod template, an old pod goes first"
    strategy = "ReleaseFirst"


class LimitsChanged(Phase):
    """The bounds of `spec.tuning`, both ends at one value: the operator moves the limits in force there at once."""

    name = "limits-changed"
    about = f"tuning bounds patched every second, {CHANGES} times"

    def set_up(self, stage: Stage) -> None:
        stage.apply(tuning=_tuning(16))

    def disturb(self, stage: Stage) -> None:
        pod = stage.victim().name
        before = stage.service.runtime_config(pod)["revision"]
        started = time.monotonic()
        for number in range(CHANGES):
            patch = {"spec": {"tuning": _tuning(8 if number % 2 else 16)}}
            kubectl(
                "-n", stage.service.namespace, "patch", "inferenceservice", stage.service.name,
                "--type=merge", "-p", json.dumps(patch),
            )  # fmt: skip
            time.sleep(max(0.0, started + (number + 1) * CHANGE_SECONDS - time.monotonic()))
        after = stage.service.runtime_config(pod)["revision"]
        stage.note = f"{CHANGES} patches of the bounds, {after - before} changes of the limits in force"
        if after == before:
            raise RuntimeError("the patches of spec.tuning changed no limit in force")


def _tuning(seqs: int) -> dict[str, object]:
    return {"mode": "Auto", "maxNumSeqs": {"min": seqs, "max": seqs}}
