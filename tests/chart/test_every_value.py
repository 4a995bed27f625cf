"""Each value of the chart, set once, reaches an object: one that changes nothing would be set in vain."""

import json

import pytest

from deploy.values_table import values

LEAVES = {value.path: value.default for value in values() if value.type != "group"}

DIGEST = "sha256:" + "0123456789abcdef" * 4
PEERS = [{"podSelector": {}}]
TEXT = {"a": "b"}

CHANGES = {
    "image.repository": "other",
    "image.tag": "dev",
    "image.digest": DIGEST,
    "image.pullPolicy": "Always",
    "imagePullSecrets": [{"name": "pull"}],
    "engine.image.repository": "other",
    "engine.image.tag": "dev",
    "engine.image.digest": DIGEST,
    "engine.image.pullPolicy": "Always",
    "engine.upgrade.mode": "Held",
    "engine.upgrade.servicesAtOnce": 2,
    "engine.adminPeers": PEERS,
    "fullnameOverride": "other",
    "watchNamespaces": ["team"],
    "replicas": 2,
    "interval": 9,
    "recordDecisions.services": ["team/chat"],
    "recordDecisions.size": 100,
    "serviceAccount.name": "other",
    "serviceAccount.annotations": TEXT,
    "metrics.port": 9090,
    "metrics.monitor.kind": "PodMonitor",
    "metrics.monitor.interval": "30s",
    "metrics.monitor.labels": TEXT,
    "metrics.rules.labels": TEXT,
    "networkPolicy.metricsPeers": PEERS,
    "networkPolicy.egress.apiServerPorts": [8443],
    "networkPolicy.egress.apiServerPeers": PEERS,
    "networkPolicy.egress.extraRules": [{"ports": [{"port": 4318}]}],
    "resources": {"limits": {"memory": "1Gi"}},
    "podDisruptionBudget.maxUnavailable": "50%",
    "extraEnv": [{"name": "A", "value": "b"}],
    "terminationGracePeriodSeconds": 60,
    "podAnnotations": TEXT,
    "podLabels": TEXT,
    "nodeSelector": TEXT,
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {"a": 1}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "priorityClassName": "high",
    "priorityClass.value": 5,
}
"""Another value for each, but for booleans: those are turned round."""

NEEDS = {
    "recordDecisions.services": "recordDecisions.enabled",
    "recordDecisions.size": "recordDecisions.enabled",
    "metrics.monitor.": "metrics.monitor.enabled",
    "metrics.rules.labels": "metrics.rules.enabled",
    "networkPolicy.egress.": "networkPolicy.egress.enabled",
    "priorityClass.value": "priorityClass.create",
}
"""The switch without which a value, or all with a prefix, has no effect."""


def switched_on(path):
    switch = next((switch for prefix, switch in NEEDS.items() if path.startswith(prefix) and path != switch), None)
    switches = [] if switch is None else [f"{switch}=true"]
    return [*switches, "replicas=2"] if path.startswith("podDisruptionBudget") else switches


def test_every_value_has_a_change_here():
    booleans = {path for path, default in LEAVES.items() if isinstance(default, bool)}
    assert set(CHANGES) | booleans == set(LEAVES)


@pytest.mark.parametrize("path", LEAVES)
def test_a_value_reaches_an_object(helm, path):
    flags = [argument for switch in switched_on(path) for argument in ("--set", switch)]
    default = LEAVES[path]
    given = not default if isinstance(default, bool) else CHANGES[path]
    changed = helm.template(*flags, "--set-json", f"{path}={json.dumps(given)}")
    assert changed.returncode == 0, changed.stderr
    assert changed.stdout != helm.template(*flags).stdout


def test_all_values_together_render(helm):
    given = {path: not default if isinstance(default, bool) else CHANGES[path] for path, default in LEAVES.items()}
    # Without a leader there can be one operator only.
    given |= {"leaderElection.enabled": True}
    flags = [argument for path, value in given.items() for argument in ("--set-json", f"{path}={json.dumps(value)}")]
    assert helm.template(*flags).returncode == 0
