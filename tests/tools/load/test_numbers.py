"""The demo's numbers come from the operator's metrics page, of the service that is asked for alone."""

from tools.testbed import numbers
from tools.testbed.numbers import Numbers, numbers_on
from tools.testbed.pods import Pod
from tools.testbed.service import Service

PAGE = """# HELP inflight_operator_service_waiting_requests Waiting requests.
# TYPE inflight_operator_service_waiting_requests gauge
inflight_operator_service_waiting_requests{namespace="default",name="chat"} 12.0
inflight_operator_service_waiting_requests{namespace="other",name="chat"} 99.0
# TYPE inflight_operator_service_running_requests gauge
inflight_operator_service_running_requests{namespace="default",name="chat"} 3.0
# TYPE inflight_operator_service_kv_utilization gauge
inflight_operator_service_kv_utilization{namespace="default",name="chat"} 0.25
# TYPE inflight_operator_service_replicas gauge
inflight_operator_service_replicas{namespace="default",name="chat"} 2.0
# TYPE inflight_operator_service_ready_replicas gauge
inflight_operator_service_ready_replicas{namespace="default",name="chat"} 1.0
# TYPE inflight_operator_service_max_num_seqs gauge
inflight_operator_service_max_num_seqs{namespace="default",name="chat"} 16.0
# TYPE inflight_operator_service_max_num_batched_tokens gauge
inflight_operator_service_max_num_batched_tokens{namespace="default",name="chat"} 8192.0
# TYPE inflight_operator_service_replica_requests_per_second gauge
inflight_operator_service_replica_requests_per_second{namespace="default",name="chat"} 26.3
"""
CHAT = Service("chat")


def test_the_numbers_are_those_of_the_service_asked_for():
    assert numbers_on(PAGE, CHAT) == Numbers(12, 3, 0.25, 2, 1, 16, 8192, None, 26.3)
    assert numbers_on(PAGE, Service("chat", "other")) == Numbers(waiting_requests=99)


def test_what_the_page_does_not_have_is_unknown_and_not_zero():
    assert numbers_on("", CHAT) == numbers_on(PAGE, Service("nonesuch")) == Numbers()


def test_the_operator_pod_that_has_the_numbers_is_found(monkeypatch):
    """A stand-in for kubectl: the first pod does not lead and the second one does."""

    def kubectl(*arguments, check):
        return PAGE if "/pods/leads:8080/proxy/metrics" in arguments[-1] else ""

    there = [Pod(name, name, "", "", ready=True, leaving=False, restarts=0) for name in ("follows", "leads")]
    monkeypatch.setattr(numbers, "pods", lambda namespace, selector: there)
    monkeypatch.setattr(numbers, "kubectl", kubectl)
    assert numbers.numbers(CHAT).max_num_seqs == 16
