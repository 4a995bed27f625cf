"""Each value of the chart, set once, reaches an object: one that changes nothing would be set in vain."""

import json

import pytest

from deploy.values_table import values

LEAVES = {value.path: value.default for value in values() if value.type != "group"}

DIGEST = "sha256:" + "0123456789abcdef" * 4
PEERS = [{"podSelector": {"matchLabels": {"app": "client"}}}]
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
    "engine.upgrade.stuckServices": 0,
    "operator.className": "team",
    "engine.adminPeers": PEERS,
    "engine.clientPeers": PEERS,
    "engine.modelCache.claimName": "models",
    "engine.modelCache.hostPath": "/var/cache/inflight",
    "engine.modelCache.size": "1Ti",
    "engine.modelCache.namespaces": ["team"],
    **{
        f"gateway.{path}": value
        for path, value in {
            "replicas": 3,
            "autoscaling.minReplicas": 3,
            "autoscaling.maxReplicas": 30,
            "autoscaling.targetCPUPercent": 30,
            "requestsPerSecondPerClient": 0,
            "allowedOrigins": ["https://chat.example"],
            "modelNamespaces": ["team"],
            "tls.secretName": "certificate",
            "jwt.issuer": "https://issuer.example",
            "jwt.audiences": ["inflight"],
            "jwt.tenantClaim": "team",
            "jwt.jwksSecret": "keys",
            "jwt.jwksUri": "https://issuer.example/keys",
            "jwt.caSecret": "ca",
            "usage.existingClaim": "usage",
            "envoy.image.repository": "other",
            "envoy.image.tag": "dev",
            "envoy.image.digest": DIGEST,
            "envoy.image.pullPolicy": "Always",
            "envoy.threads": 4,
            "envoy.resources": {"limits": {"memory": "3Gi"}},
            "relay.processes": 3,
            "relay.resources": {"limits": {"memory": "3Gi"}},
            "picker.resources": {"limits": {"memory": "3Gi"}},
            "extProcPort": 9005,
            "drainSeconds": 60,
            "apiKeySecrets": ["keys"],
            "serviceAccount.name": "other",
            "serviceAccount.annotations": TEXT,
            "clientPeers": PEERS,
            "podDisruptionBudget.maxUnavailable": "50%",
            "podAnnotations": TEXT,
            "podLabels": TEXT,
            "nodeSelector": TEXT,
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {"a": 1}},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "priorityClassName": "high",
        }.items()
    },
    "clusterDomain": "cluster.example",
    "fullnameOverride": "other",
    "watchNamespaces": ["team"],
    "replicas": 2,
    "interval": 9,
    "recordDecisions.services": ["team/chat"],
    "recordDecisions.size": 100,
    "serviceAccount.name": "other",
    "serviceAccount.annotations": TEXT,
    "metrics.port": 9090,
    "metrics.authentication.tokenSecret": "token-of-prometheus",
    "metrics.monitor.kind": "PodMonitor",
    "metrics.monitor.interval": "30s",
    "metrics.monitor.labels": TEXT,
    "metrics.rules.labels": TEXT,
    "networkPolicy.metricsPeers": PEERS,
    "networkPolicy.egress.apiServerPorts": [8443],
    "networkPolicy.egress.apiServerPeers": PEERS,
    "networkPolicy.egress.extraRules": [{"ports": [{"port": 4318}]}],
    "dashboards.namespace": "monitoring",
    "dashboards.labels": TEXT,
    "dashboards.annotations": TEXT,
    "engine.tracing.endpoint": "http://collector:4318",
    "engine.tracing.samplingRatio": 0.5,
    "engine.logs.format": "json",
    "engine.logs.accessLog": True,
    "logs.format": "json",
    "logs.level": "debug",
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
    "vllm.image.repository": "registry.example/vllm",
    "vllm.image.tag": "v1",
    "vllm.image.digest": DIGEST,
}
"""Another value for each, but for booleans: those are turned round."""

NEEDS = {
    "gateway.": "gateway.enabled=true",
    "gateway.extProcTls": "gateway.extProcPort=9002",
    "gateway.autoscaling.": "gateway.autoscaling.enabled=true",
    "gateway.tls.only": "gateway.tls.secretName=certificate",
    "gateway.jwt.issuer": "gateway.jwt.jwksSecret=keys",
    "gateway.jwt.audiences": "gateway.jwt.issuer=me,gateway.jwt.jwksSecret=keys",
    "gateway.jwt.tenantClaim": "gateway.jwt.issuer=me,gateway.jwt.jwksSecret=keys",
    "gateway.jwt.jwksSecret": "gateway.jwt.issuer=me",
    "gateway.jwt.jwksUri": "gateway.jwt.issuer=me",
    "gateway.jwt.caSecret": "gateway.jwt.issuer=me,gateway.jwt.jwksUri=https://issuer.example/keys",
    "clusterDomain": "gateway.enabled=true",
    "recordDecisions.": "recordDecisions.enabled=true",
    "metrics.authentication.tokenSecret": "metrics.authentication.enabled=true,metrics.monitor.enabled=true",
    "metrics.monitor.": "metrics.monitor.enabled=true",
    "metrics.rules.": "metrics.rules.enabled=true",
    "dashboards.": "dashboards.enabled=true",
    "engine.tracing.samplingRatio": "engine.tracing.endpoint=http://collector:4318",
    "engine.modelCache.size": "engine.modelCache.claimName=models",
    "engine.modelCache.namespaces": "engine.modelCache.claimName=models",
    "networkPolicy.egress.": "networkPolicy.egress.enabled=true",
    "podDisruptionBudget.": "replicas=2",
    "priorityClass.": "priorityClass.create=true",
}
"""Settings without which values with a prefix have no effect."""


def needed(path):
    return [need for prefix, need in NEEDS.items() if path.startswith(prefix) and not need.startswith(f"{path}=")]


def test_every_value_has_a_change_here():
    booleans = {path for path, default in LEAVES.items() if isinstance(default, bool)}
    assert set(CHANGES) | booleans == set(LEAVES)


@pytest.mark.parametrize("path", LEAVES)
def test_a_value_reaches_an_object(helm, path):
    flags = [argument for need in needed(path) for argument in ("--set", need)]
    default = LEAVES[path]
    given = not default if isinstance(default, bool) else CHANGES[path]
    changed = helm.template(*flags, "--set-json", f"{path}={json.dumps(given)}")
    assert changed.returncode == 0, changed.stderr
    assert changed.stdout != helm.template(*flags).stdout


def test_all_values_together_render(helm):
    given = {path: not default if isinstance(default, bool) else CHANGES[path] for path, default in LEAVES.items()}
    # Without a leader there can be one operator only; keys of tokens have one source, models one cache.
    given |= {"leaderElection.enabled": True, "gateway.jwt.jwksUri": "", "engine.modelCache.hostPath": ""}
    flags = [argument for path, value in given.items() for argument in ("--set-json", f"{path}={json.dumps(value)}")]
    assert helm.template(*flags).returncode == 0
