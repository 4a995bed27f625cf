import json

import pytest

from tools.testbed import namespaces


@pytest.fixture
def calls(monkeypatch):
    """The calls of kubectl, as what each does to what."""
    made = []

    def kubectl(*arguments, input=None, check=True):
        words = [word for word in arguments if not word.startswith("-")]
        made.append((*words, json.loads(input)["metadata"]["labels"]) if input else tuple(words))
        return ""

    monkeypatch.setattr(namespaces, "kubectl", kubectl)
    return made


SERVICES = ("own", "delete", "inferenceservices")
NAMESPACE = ("delete", "namespace", "own")
CREATED = ("apply", {"pod-security.kubernetes.io/enforce": "restricted"})


def test_the_namespace_of_an_earlier_run_is_deleted_first_and_its_pods_before_it(calls):
    namespaces.create_namespace("own")
    assert calls == [SERVICES, NAMESPACE, CREATED]


def test_a_temporary_namespace_is_deleted_after_its_pods_also_when_the_run_fails(calls):
    def failing_run():
        with namespaces.temporary_namespace("own"):
            calls.clear()
            raise TimeoutError

    with pytest.raises(TimeoutError):
        failing_run()
    assert calls == [SERVICES, NAMESPACE]
