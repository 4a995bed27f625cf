"""Placement of the operator's pods by the chart, and their permitted connections."""

import json

from inflight_base.manifest.names import OPERATOR_LABELS

OPERATOR = ("Deployment", "prod-operator")
POLICY = ("NetworkPolicy", "prod-operator")
PEERS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
EGRESS = ("--set", "networkPolicy.egress.enabled=true")


def pod_of(objects):
    return objects[OPERATOR]["spec"]["template"]


def test_by_default_the_network_policy_opens_the_metrics_port_to_its_namespace_and_restricts_no_egress(helm):
    objects = helm.objects()
    policy = objects[POLICY]["spec"]
    assert policy["podSelector"] == objects[OPERATOR]["spec"]["selector"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    assert rule["from"][1:] == [{"podSelector": {}}]
    (container,) = pod_of(objects)["spec"]["containers"]
    assert [port["name"] for port in container["ports"]] == ["metrics"]
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {"metrics"}


def test_peers_of_the_metrics_port_stand_beside_the_pod_of_helm_test(helm):
    objects = helm.objects("--set-json", f"networkPolicy.metricsPeers={json.dumps(PEERS)}")
    test_pod, *given = objects[POLICY]["spec"]["ingress"][0]["from"]
    assert given == PEERS
    labels = objects[("Pod", "prod-operator-test")]["metadata"]["labels"]
    assert test_pod["podSelector"]["matchLabels"].items() <= labels.items()


def test_restricted_egress_reaches_dns_the_api_server_and_engines(helm):
    policy = helm.objects(*EGRESS)[POLICY]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    dns, api_server, engines = policy["egress"]
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {
        (port, protocol) for port in (53, 5353) for protocol in ("UDP", "TCP")
    }
    assert ([port["port"] for port in api_server["ports"]], "to" in api_server) == ([443, 6443], False)
    assert "ports" not in engines  # those of custom engines may be any
    (peer,) = engines["to"]
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "inflight-engine"}
    assert peer["namespaceSelector"]["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "Exists"}
    ]


def test_restricted_egress_reaches_engines_in_the_watched_namespaces_alone_and_what_the_values_add(helm):
    collector = {"ports": [{"port": 4318, "protocol": "TCP"}]}
    address = [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    policy = helm.objects(
        *EGRESS,
        *("--set", "watchNamespaces={team,search},networkPolicy.egress.apiServerPorts={8443}"),
        *("--set-json", f"networkPolicy.egress.apiServerPeers={json.dumps(address)}"),
        *("--set-json", f"networkPolicy.egress.extraRules={json.dumps([collector])}"),
    )[POLICY]["spec"]
    _, api_server, engines, extra = policy["egress"]
    assert api_server == {"ports": [{"port": 8443, "protocol": "TCP"}], "to": address}
    (expression,) = engines["to"][0]["namespaceSelector"]["matchExpressions"]
    assert (expression["operator"], expression["values"]) == ("In", ["team", "search"])
    assert extra == collector


def test_the_policy_of_engines_lets_in_the_pods_that_the_chart_labels(helm):
    assert OPERATOR_LABELS.items() <= pod_of(helm.objects())["metadata"]["labels"].items()


def test_two_replicas_prefer_different_nodes_and_constraints_of_the_values_count_the_operators_pods(helm):
    assert "topologySpreadConstraints" not in pod_of(helm.objects())["spec"]
    two = helm.objects("--set", "replicas=2")
    (spread,) = pod_of(two)["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert spread["labelSelector"] == two[OPERATOR]["spec"]["selector"]
    given = [
        {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
        {
            "maxSkew": 1,
            "topologyKey": "rack",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"a": "b"}},
        },
    ]
    objects = helm.objects("--set-json", f"topologySpreadConstraints={json.dumps(given)}")
    first, second = pod_of(objects)["spec"]["topologySpreadConstraints"]
    assert first == {**given[0], "labelSelector": objects[OPERATOR]["spec"]["selector"]}
    assert second == given[1]


def test_a_priority_class_is_created_and_used_where_asked_for(helm):
    assert "priorityClassName" not in pod_of(helm.objects())["spec"]
    objects = helm.objects("--set", "priorityClass.create=true,priorityClass.value=7")
    assert objects[("PriorityClass", "prod-operator")]["value"] == 7
    assert pod_of(objects)["spec"]["priorityClassName"] == "prod-operator"
    other = helm.objects("--set", "priorityClass.create=true,priorityClassName=system-cluster-critical")
    assert pod_of(other)["spec"]["priorityClassName"] == "system-cluster-critical"


def test_further_environment_variables_stand_beside_the_charts_own(helm):
    (container,) = pod_of(helm.objects("--set-json", 'extraEnv=[{"name":"HTTPS_PROXY","value":"http://proxy"}]'))[
        "spec"
    ]["containers"]
    assert [variable["name"] for variable in container["env"]] == ["POD_NAME", "POD_NAMESPACE", "HTTPS_PROXY"]
