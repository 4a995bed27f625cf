"""The diagrams of the documentation."""

from __future__ import annotations

from collections.abc import Callable

from docs.generate.drawing import Arrow, Box, Drawing

_GREEN, _AMBER, _GREY = "#e8f5e9", "#fff8e1", "#eceff1"

OVERVIEW = Drawing(
    "Clients reach engine pods through a Service; the operator scrapes their metrics, sets their limits and writes "
    "replicas, rollouts and status to the Kubernetes API.",
    96,
    44,
    {
        "pods": Box(68, 15, 50, 24, "engine pods of one InferenceService", frame=True),
        "client": Box(8, 15, 12, 5, "client", _GREY),
        "service": Box(30, 15, 14, 6, "Service\nport 80"),
        "api1": Box(57, 10, 20, 6, "API process\nadmit, tokenize, stream", _GREEN),
        "engine1": Box(80.5, 10, 20, 6, "engine process\nschedule, compute", _GREEN),
        "api2": Box(57, 21, 20, 6, "API process\nadmit, tokenize, stream", _GREEN),
        "engine2": Box(80.5, 21, 20, 6, "engine process\nschedule, compute", _GREEN),
        "kubectl": Box(8, 39, 12, 5, "kubectl", _GREY),
        "kubernetes": Box(30, 39, 14, 6, "Kubernetes\nAPI server"),
        "operator": Box(68, 39, 30, 6, "operator\nsnapshot, decide, execute, report", _AMBER),
    },
    [
        Arrow("client", "service", "OpenAI API", side=-1.6),
        Arrow("service", "api1"),
        Arrow("service", "api2"),
        Arrow("api1", "engine1", both=True),
        Arrow("api2", "engine2", both=True),
        Arrow("kubectl", "kubernetes", "apply", side=-1.6),
        Arrow("operator", "kubernetes", "replicas, rollout, status", shift=1.2, side=1.6),
        Arrow("kubernetes", "operator", "watch", shift=-1.2, side=-1.4),
        Arrow("operator", "pods", "GET /metrics\nPATCH limits"),
    ],
)

REQUEST = Drawing(
    "A request waits in the queue of its class until it has a slot and KV blocks, is prefilled in chunks and decoded a "
    "token a step. A preempted request resumes later.",
    96,
    26,
    {
        "arrival": Box(8, 8, 13, 6, "arrival\ntokenize, check", _GREY),
        "queue": Box(30, 8, 15, 6, "queue\nclass, policy"),
        "prefill": Box(53, 8, 15, 6, "prefill\nchunks of the prompt", _GREEN),
        "decode": Box(75, 8, 14, 6, "decode\none token a step", _GREEN),
        "end": Box(91, 8, 7, 6, "end", _GREY),
        "refused": Box(8, 21, 13, 6, "503\nRetry-After", _AMBER),
        "timeout": Box(30, 21, 15, 6, "504\nqueue timeout", _AMBER),
        "preempted": Box(75, 21, 18, 6, "preempted\nrecompute or swap", _AMBER),
        "resume": Box(53, 21, 15, 6, "resume\nfront of the queue"),
    },
    [
        Arrow("arrival", "queue"),
        Arrow("queue", "prefill", "slot, KV\nblocks", side=-2.6),
        Arrow("prefill", "decode", "first\ntoken", side=-2.6),
        Arrow("decode", "end"),
        Arrow("arrival", "refused", "queue full,\nshed"),
        Arrow("queue", "timeout", "too long"),
        Arrow("decode", "preempted", "KV cache full"),
        Arrow("preempted", "resume"),
        Arrow("resume", "prefill", "blocks are free"),
    ],
)

AUTOPILOT = Drawing(
    "Engines fit the cost of their steps and export it with the demand. The operator computes limits and the capacity "
    "of one replica from it, and replicas from capacity and demand.",
    96,
    30,
    {
        "steps": Box(10, 8, 16, 6, "steps measured\nby each engine", _GREEN),
        "cost": Box(33, 8, 17, 6, "cost model\nseconds of a step", _GREEN),
        "limits": Box(57, 8, 18, 6, "limits\nthat keep the targets", _AMBER),
        "capacity": Box(84, 8, 18, 6, "capacity\nrequests/s a replica", _AMBER),
        "arrivals": Box(10, 23, 16, 6, "arrivals, lengths\nof each engine", _GREEN),
        "demand": Box(40, 23, 22, 6, "demand when a replica\nordered now is ready", _AMBER),
        "replicas": Box(84, 23, 18, 6, "replicas", _AMBER),
    },
    [
        Arrow("steps", "cost", "fit"),
        Arrow("cost", "limits"),
        Arrow("limits", "capacity"),
        Arrow("arrivals", "demand"),
        Arrow("demand", "replicas", "rate, variance, trend"),
        Arrow("capacity", "replicas"),
    ],
)

ROUND = Drawing(
    "A round of the operator: from the cluster and the metrics a snapshot, then decide, plan, execute and report.",
    104,
    34,
    {
        "round": Box(66, 17, 72, 14, "round of one service", frame=True),
        "kubernetes": Box(12, 6, 17, 5, "Kubernetes API"),
        "engines": Box(12, 29, 17, 5, "engine pods", _GREEN),
        "inputs": Box(12, 17, 17, 6, "observe\ncache, scrape", _GREY),
        "snapshot": Box(38, 18, 11, 5, "snapshot", _AMBER),
        "decide": Box(53, 18, 10, 5, "decide", _AMBER),
        "plan": Box(66, 18, 8, 5, "plan", _AMBER),
        "execute": Box(80, 18, 10, 5, "execute", _AMBER),
        "report": Box(95, 18, 10, 5, "report", _AMBER),
        "children": Box(80, 5, 22, 5, "children", _GREY),
        "patch": Box(80, 29.5, 22, 5, "limits of engines", _GREY),
        "status": Box(96.5, 29.5, 9, 5, "status", _GREY),
    },
    [
        Arrow("kubernetes", "inputs", "watch, list"),
        Arrow("engines", "inputs", "GET /metrics"),
        Arrow("inputs", "snapshot"),
        Arrow("snapshot", "decide"),
        Arrow("decide", "plan"),
        Arrow("plan", "execute"),
        Arrow("execute", "report"),
        Arrow("execute", "children", "apply"),
        Arrow("execute", "patch", "PATCH"),
        Arrow("report", "status"),
    ],
)

PROCESSES = Drawing(
    "An engine is two processes: the API process parses, tokenizes, admits and streams; the engine process schedules, "
    "computes and samples. They exchange one message a step.",
    84,
    12,
    {
        "client": Box(8, 6, 12, 5, "client", _GREY),
        "api": Box(35, 6, 24, 7, "API process\nparse, tokenize, admit, stream", _GREEN),
        "engine": Box(70, 6, 24, 7, "engine process\nschedule, forward, sample", _GREEN),
    },
    [
        Arrow("client", "api", "HTTP", side=-1.4),
        Arrow("api", "engine", "one message\na step", both=True, side=-2.6),
    ],
)

GATEWAY = Drawing(
    "A request passes Envoy, the relay and Envoy again, which asks the picker for an engine. The relay asks again when "
    "an engine fails.",
    100,
    40,
    {
        "pod": Box(54, 15.5, 60, 25, "gateway pod", frame=True),
        "client": Box(9, 13, 16, 6, "client\nNAME.NAMESPACE.svc", _GREY),
        "outer": Box(33, 13, 13, 7, "Envoy, outer\nTCP 8080", _GREEN),
        "relay": Box(54, 13, 13, 7, "relay\nretry, continue", _AMBER),
        "inner": Box(75, 13, 13, 7, "Envoy, inner\nUNIX socket", _GREEN),
        "picker": Box(75, 24, 13, 6, "picker\npick, hold, limits", _AMBER),
        "engines": Box(94.5, 13, 10, 6, "engines\nport 8000", _GREEN),
        "kubernetes": Box(54, 36, 18, 6, "Kubernetes API\nservices, endpoints", _GREY),
        "operator": Box(82, 36, 18, 6, "operator\nwakes services", _GREY),
    },
    [
        Arrow("client", "outer", "HTTP", side=-1.4),
        Arrow("outer", "relay"),
        Arrow("relay", "inner"),
        Arrow("inner", "engines"),
        Arrow("inner", "picker", "ext_proc,\nADS", both=True, side=-5.5),
        Arrow("kubernetes", "picker", "watch", side=1.5),
        Arrow("picker", "operator", "state", side=2.6),
    ],
)

PICTURES: dict[str, Callable[[], str]] = {
    "overview": OVERVIEW.svg,
    "request": REQUEST.svg,
    "autopilot": AUTOPILOT.svg,
    "operator-round": ROUND.svg,
    "engine-processes": PROCESSES.svg,
    "gateway": GATEWAY.svg,
}
"""File names without suffix, and what draws them."""
