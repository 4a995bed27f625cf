"""Series scraped here have the labels that the Prometheus operator gives with the same PodMonitor."""

from pathlib import Path

import yaml

from inflight_operator.api.types import InferenceService
from inflight_operator.render.monitor import pod_monitor
from tools.prometheus.scraping import Access, Scraping, configuration, targets, targets_file

ACCESS = Access("10.0.0.1:6443", {"ca_file": "/ca.pem"})
SERVICE = {
    "apiVersion": "inflight.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat", "namespace": "team", "uid": "1", "generation": 1},
    "spec": {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}},
}


def scrape_config(monitor, tmp_path):
    scraping = Scraping(ACCESS, 0.5, tmp_path, (Path("/rules.yaml"),))
    made = configuration([monitor], scraping)
    assert made["rule_files"] == ["/rules.yaml"]
    assert made["global"]["scrape_interval"] == "500ms"
    (config,) = made["scrape_configs"]
    return yaml.safe_load(yaml.safe_dump(config))


def test_an_engine_has_the_name_of_its_service_and_its_pod(tmp_path):
    monitor = pod_monitor(InferenceService.from_dict(SERVICE))
    config = scrape_config(monitor, tmp_path)
    labels = {rule["target_label"]: rule for rule in config["relabel_configs"] if "target_label" in rule}
    assert labels["name"]["replacement"] == "chat"
    assert labels["namespace"]["source_labels"] == ["__meta_kubernetes_namespace"]
    assert labels["pod"]["source_labels"] == ["__meta_kubernetes_pod_name"]
    assert labels["job"]["replacement"] == "team/chat"
    assert not config["honor_labels"]
    assert config["file_sd_configs"] == [{"files": [str(targets_file(monitor, tmp_path))]}]


def test_a_monitors_own_labels_are_honoured(tmp_path):
    monitor = {
        "metadata": {"name": "operator", "namespace": "system"},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": "a.b"}},
            "podMetricsEndpoints": [{"port": "metrics", "honorLabels": True}],
        },
    }
    config = scrape_config(monitor, tmp_path)
    assert config["honor_labels"]
    keep = [rule for rule in config["relabel_configs"] if rule.get("action") == "keep"]
    assert keep[0] == {
        "action": "keep",
        "source_labels": ["__meta_kubernetes_pod_label_app_kubernetes_io_name"],
        "regex": r"a\.b",
    }


def test_targets_are_the_ports_of_pods_with_an_address():
    pod = {
        "metadata": {"name": "chat-1", "namespace": "team", "labels": {"inflight.dev/service": "chat"}},
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "ports": [{"name": "http", "containerPort": 8000}, {"name": "admin", "containerPort": 8001}],
                },
                {"name": "sidecar"},
            ]
        },
        "status": {"phase": "Running", "podIP": "10.1.0.7"},
    }
    pending = {**pod, "status": {"phase": "Pending"}}
    found = targets([pod, pending], ACCESS)
    assert [one["targets"] for one in found] == [["10.1.0.7:8000"], ["10.1.0.7:8001"]]
    assert found[0]["labels"] == {
        "__api_server": "10.0.0.1:6443",
        "__meta_kubernetes_namespace": "team",
        "__meta_kubernetes_pod_name": "chat-1",
        "__meta_kubernetes_pod_phase": "Running",
        "__meta_kubernetes_pod_container_name": "engine",
        "__meta_kubernetes_pod_container_port_name": "http",
        "__meta_kubernetes_pod_container_port_number": "8000",
        "__meta_kubernetes_pod_label_inflight_dev_service": "chat",
    }
