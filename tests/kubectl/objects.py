"""InferenceServices, pods and events as the API server gives them, for the tests of the plugin."""

from datetime import UTC, datetime, timedelta

from inflight_base.manifest.engines import annotation_of
from inflight_base.manifest.names import ENGINE_ANNOTATION
from inflight_kubectl.access.pods import Pod
from inflight_kubectl.access.resources import Service

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)


def ago(seconds):
    return (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def condition(kind, status="True", reason="Serving", message="2 of 2 replicas take requests", since=300):
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": ago(since)}


def decision(seconds=40, before=1, after=2, knob="replicas", reason="1.8 requests/s need 0.2 at 11.9/s each"):
    kind = "Scaling" if knob == "replicas" else "Tuning"
    return {
        "time": ago(seconds),
        "kind": kind,
        "knob": knob,
        "from": before,
        "to": after,
        "code": "Demand",
        "numbers": {"rate": 1.82, "each": 11.9},
        "change": f"{knob} {before} -> {after}",
        "reason": reason,
        "applied": True,
    }


def body(name="chat", namespace="default", spec=None, **status):
    """Returns an InferenceService; `status` replaces fields of a healthy service."""
    well = {
        "observedGeneration": 1,
        "conditions": [
            condition("Ready"),
            condition("Scheduled", reason="Scheduled", message="2 pods on 1 node"),
            condition("Progressing", "False", "Complete", "2 pods ready, all of the newest template"),
            condition("ScalingActive", reason="Demand", message="2 replicas are right"),
            condition("TuningActive", reason="AsModelled", message="the limits are right"),
        ],
        "replicas": 2,
        "readyReplicas": 2,
        "blockedReplicas": 0,
        "desiredReplicas": 2,
        "limits": {"maxNumSeqs": 169, "maxNumBatchedTokens": 1342, "revision": 3, "podsInForce": 2},
        "queue": {"waiting": 3, "atGateway": 0, "inEngines": 3},
        "observed": {
            "running": 12,
            "kvUtilization": 0.42,
            "ttftP95": "420ms",
            "tpotP95": "68ms",
            "preemptionsPerMinute": 0.0,
            "at": ago(5),
        },
        "decisions": [decision()],
    }
    return {
        "apiVersion": "inflight.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "7",
            "creationTimestamp": ago(7200),
        },
        "spec": {
            "model": {"source": "builtin://smollm2"},
            "slo": {"ttftP95": "1s", "tpotP95": "60ms"},
            "scaling": {"mode": "Operator", "minReplicas": 1, "maxReplicas": 8},
        }
        | (spec or {}),
        "status": well | status,
    }


def service(*arguments, **status):
    return Service.of(body(*arguments, **status))


def pod_body(name="chat-1", namespace="default", *, ready=True, node="node-1", **status):
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": ago(600)},
        "spec": {
            "nodeName": node,
            "containers": [
                {
                    "name": "engine",
                    "image": "engine:1",
                    "ports": [{"name": "http", "containerPort": 8000}, {"name": "admin", "containerPort": 8001}],
                }
            ],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"name": "engine", "restartCount": 0, "state": {"running": {"startedAt": ago(590)}}}],
        }
        | status,
    }


def pod(*arguments, engine=None, **options):
    """The pod. Args: engine: facts about it, if they are not those of type inflight."""
    body = pod_body(*arguments, **options)
    if engine is not None:
        body["metadata"]["annotations"] = {ENGINE_ANNOTATION: annotation_of(engine)}
    return Pod.of(body)


def event(about="chat-1", reason="Pulling", message="Pulling image", kind="Normal", seconds=10):
    return {
        "type": kind,
        "reason": reason,
        "message": message,
        "involvedObject": {"kind": "Pod", "name": about},
        "lastTimestamp": ago(seconds),
        "metadata": {"creationTimestamp": ago(seconds)},
    }
