import json

from tools.testbed import pods
from tools.testbed.pods import Pod


def test_pods_are_by_name_with_what_each_has_so_far(monkeypatch):
    new = {"metadata": {"name": "b", "uid": "2"}, "spec": {}, "status": {}}
    old = {
        "metadata": {"name": "a", "uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "node"},
        "status": {
            "podIP": "10.0.0.5",
            "conditions": [{"type": "Initialized", "status": "False"}, {"type": "Ready", "status": "True"}],
            "containerStatuses": [{"restartCount": 1}, {"restartCount": 2}],
        },
    }
    monkeypatch.setattr(pods, "kubectl", lambda *arguments: json.dumps({"items": [new, old]}))
    assert pods.pods("default", "app=chat") == [
        Pod("a", "1", "10.0.0.5", "node", ready=True, leaving=True, restarts=3),
        Pod("b", "2", "", "", ready=False, leaving=False, restarts=0),
    ]
