"""needs_apply: the differences for which a child is applied again; live objects are in the API server's form."""

import copy

import pytest

from inflight_base.kube.difference import needs_apply, packed_fields

WANTED = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "chat", "namespace": "team", "labels": {"a": "1"}},
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "nodeSelector": {"pool": "llm"},
                "containers": [
                    {
                        "name": "engine",
                        "image": "one",
                        "command": ["serve", "--x"],
                        "env": [{"name": "EMPTY", "value": ""}],
                        "resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}},
                        "ports": [{"containerPort": 8000, "protocol": "TCP"}],
                    }
                ],
            }
        },
    },
}

OWNED = {
    "f:metadata": {"f:labels": {"f:a": {}}},
    "f:spec": {
        "f:replicas": {},
        "f:template": {
            "f:spec": {
                "f:nodeSelector": {},
                "f:containers": {
                    'k:{"name":"engine"}': {
                        ".": {},
                        "f:name": {},
                        "f:image": {},
                        "f:command": {},
                        "f:env": {'k:{"name":"EMPTY"}': {".": {}, "f:name": {}, "f:value": {}}},
                        "f:resources": {"f:requests": {"f:cpu": {}, "f:memory": {}}},
                        "f:ports": {'k:{"containerPort":8000,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                    }
                },
            }
        },
    },
}


def live():
    """WANTED as the API server stores it: defaults, rewritten quantities, an empty value left out, fields of others."""
    found = copy.deepcopy(WANTED)
    found["metadata"] |= {
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {"deployment.kubernetes.io/revision": "1"},
        "managedFields": [
            {"manager": "kubectl", "operation": "Update", "fieldsV1": {}},
            {"manager": "inflight-operator", "operation": "Update", "subresource": "status", "fieldsV1": {}},
            {"manager": "inflight-operator", "operation": "Apply", "fieldsV1": OWNED},
        ],
    }
    found["status"] = {"replicas": 2}
    found["spec"]["progressDeadlineSeconds"] = 600
    container = found["spec"]["template"]["spec"]["containers"][0]
    container["terminationMessagePath"] = "/dev/termination-log"
    container["resources"]["requests"] = {"cpu": "500m", "memory": "1Gi"}
    del container["env"][0]["value"]
    return found


def changed(path, value):
    wanted = copy.deepcopy(WANTED)
    *parents, last = path
    part = wanted
    for key in parents:
        part = part[key]
    if value is None:
        del part[last]
    else:
        part[last] = value
    return wanted


POD = ("spec", "template", "spec")
ENGINE = (*POD, "containers", 0)


def test_what_does_not_exist_has_to_be_applied():
    assert needs_apply(WANTED, None)


def test_defaults_rewritten_quantities_and_fields_of_others_need_nothing():
    assert not needs_apply(WANTED, live())


def test_what_the_operator_never_applied_has_to_be_applied():
    foreign = live()
    foreign["metadata"]["managedFields"] = foreign["metadata"]["managedFields"][:2]
    assert needs_apply(WANTED, foreign)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replicas"), 3),
        (("metadata", "labels", "a"), "2"),
        (("metadata", "labels", "b"), "2"),
        ((*ENGINE, "image"), "two"),
        ((*ENGINE, "command"), ["serve"]),
        ((*ENGINE, "command"), ["serve", "--x", "--y"]),
        ((*ENGINE, "env", 0, "value"), "now set"),
        ((*ENGINE, "resources", "requests", "cpu"), "501m"),
        ((*POD, "hostNetwork"), True),
        ((*POD, "nodeSelector", "zone"), "a"),
        ((*POD, "containers"), []),
    ],
)
def test_a_value_that_differs_has_to_be_applied(path, value):
    assert needs_apply(changed(path, value), live())


@pytest.mark.parametrize(
    "path",
    [
        ("spec", "replicas"),
        ("metadata", "labels", "a"),
        ("metadata", "labels"),
        (*POD, "nodeSelector"),
        (*ENGINE, "env"),
        (*ENGINE, "env", 0),
        (*ENGINE, "resources", "requests", "memory"),
        (*ENGINE, "ports", 0),
    ],
)
def test_a_field_that_is_no_longer_wanted_has_to_be_taken_away_by_applying(path):
    assert needs_apply(changed(path, None), live())


def test_an_atomic_map_with_a_key_too_many_has_to_be_applied():
    found = live()
    found["spec"]["template"]["spec"]["nodeSelector"]["zone"] = "a"
    assert needs_apply(WANTED, found)


@pytest.mark.parametrize("given", [{}, {"divisor": "1024Ki"}])
def test_what_the_api_server_writes_into_a_volume_of_the_users_needs_nothing(given):
    """Items of a downwardAPI volume are atomic, and hold defaults and quantities."""
    source = {"containerName": "engine", "resource": "limits.memory"}
    volume = {"name": "facts", "downwardAPI": {"items": [{"path": "m", "resourceFieldRef": {**source, **given}}]}}
    stored = {"divisor": "1Mi" if given else "0"}
    wanted, found = changed((*POD, "volumes"), [volume]), live()
    kept = {"name": "facts", "downwardAPI": {"items": [{"path": "m", "resourceFieldRef": {**source, **stored}}]}}
    found["spec"]["template"]["spec"]["volumes"] = [kept]
    owned = {"f:volumes": {'k:{"name":"facts"}': {".": {}, "f:name": {}, "f:downwardAPI": {"f:items": {}}}}}
    template = copy.deepcopy(OWNED)
    template["f:spec"]["f:template"]["f:spec"] |= owned
    found["metadata"]["managedFields"][2] = {**found["metadata"]["managedFields"][2], "fieldsV1": template}
    assert not needs_apply(wanted, found)
    found["spec"]["template"]["spec"]["volumes"][0]["downwardAPI"]["items"][0]["resourceFieldRef"]["divisor"] = "1Gi"
    assert needs_apply(wanted, found)


def test_packed_fields_are_equal_for_children_of_all_services_and_say_as_much():
    packed = []
    for uid in ("a", "b"):
        owners = {"f:ownerReferences": {f'k:{{"uid":"{uid}"}}': {}}}
        packed.append(packed_fields({"fieldsV1": OWNED | {"f:metadata": OWNED["f:metadata"] | owners}}))
    assert packed[0]["fieldsV1"] is packed[1]["fieldsV1"]
    assert packed_fields(packed[0]) == packed[0]
    found = live()
    found["metadata"]["managedFields"][2] |= packed[0]
    assert not needs_apply(WANTED, found)
    wanted = copy.deepcopy(WANTED)
    del wanted["metadata"]["labels"]
    assert needs_apply(wanted, found)


def test_packed_fields_without_fields_of_metadata_have_none():
    owners = {"f:ownerReferences": {'k:{"uid":"a"}': {}}}
    assert packed_fields({"fieldsV1": {"f:metadata": owners, "f:data": {}}})["fieldsV1"] == '{"f:data":{}}'


def test_a_value_changed_by_someone_else_has_to_be_put_back():
    found = live()
    found["spec"]["replicas"] = 5
    assert needs_apply(WANTED, found)


def test_quantities_are_compared_as_numbers_only_where_they_are_quantities():
    wanted = changed((*ENGINE, "command"), ["1Gi"])
    found = live()
    found["spec"]["template"]["spec"]["containers"][0]["command"] = ["1024Mi"]
    assert needs_apply(wanted, found)
