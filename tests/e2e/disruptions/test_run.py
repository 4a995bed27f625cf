"""Whatever happens in a phase, the cluster is brought back to its start. Stand-ins for stage and traffic here."""

import json
import signal
from contextlib import contextmanager

import pytest

from e2e.disruptions import run
from e2e.disruptions.load import Traffic
from e2e.disruptions.phases import PHASES, Phase
from e2e.disruptions.run import NotRestoredError, run_phase
from e2e.disruptions.stage import Stage
from tools.localcluster import ClusterError
from tools.testbed.pods import Pod
from tools.testbed.service import Service


class StageStandIn(Stage):
    """A stage without a cluster: notes what is asked of it."""

    def __init__(self):
        super().__init__(Service("chat"), "image", lambda line: None)
        self.done = []
        self.broken = False

    def settle(self):
        self.done.append("settle")
        if self.broken:
            raise TimeoutError("waited 180 s for the operator")


class Load:
    """Stands for traffic of one request, answered."""

    def end(self):
        return Traffic(1, 1, 0, 0.1, 0.0, (), {})


@pytest.fixture
def stage(monkeypatch):
    @contextmanager
    def traffic(service, name, say, *, image):
        stage.done.append("traffic")
        yield Load()
        stage.done.append("traffic ends")

    stage = StageStandIn()
    monkeypatch.setattr(run, "traffic", traffic)
    monkeypatch.setattr(run, "LEAD_SECONDS", 0.0)
    return stage


def phase_that(happens, **kind):
    def phase(stage):
        def restore():
            stage.done.append("restore")
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

        stage.on_way_back(restore)
        stage.done.append("set up")
        yield
        stage.done.append("disturb")
        happens()

    return Phase("given", "whatever the test gives", phase, **kind)


def test_the_way_back_is_under_traffic_too(stage):
    outcome = run_phase(phase_that(lambda: None), stage, seconds=0)
    assert stage.done == ["set up", "traffic", "disturb", "restore", "settle", "traffic ends"]
    assert outcome.problems == ()


def fail(error):
    raise error


def test_a_phase_that_fails_is_restored_and_its_row_says_why(stage):
    outcome = run_phase(phase_that(lambda: fail(TimeoutError("waited 180 s for 3 ready pods"))), stage, seconds=0)
    assert stage.done[-3:] == ["restore", "settle", "traffic ends"]
    assert outcome.problems == ("waited 180 s for 3 ready pods",)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_a_phase_that_is_stopped_is_restored_once(stage, error):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(error):
        run_phase(phase_that(lambda: fail(error())), stage, seconds=0)
    assert stage.done.count("restore") == stage.done.count("settle") == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_what_cannot_be_restored_ends_the_run(stage):
    stage.broken = True
    with pytest.raises(NotRestoredError, match=r"after given the cluster is not as it was: waited 180 s"):
        run_phase(phase_that(lambda: None), stage, seconds=0)


def test_a_phase_of_the_gateway_is_skipped_where_the_service_is_not_behind_it(stage):
    outcome = run_phase(phase_that(lambda: None, of_gateway=True), stage, seconds=0)
    assert outcome.skipped
    assert "--gateway" in outcome.note
    assert stage.done == []


def test_the_row_counts_what_the_gateway_continued_meanwhile(stage, monkeypatch):
    counted = iter((3, 8))
    monkeypatch.setattr(stage, "continued", lambda: next(counted))
    assert run_phase(phase_that(lambda: None), stage, seconds=0).continued == 5


@pytest.mark.parametrize("gateway", [False, True])
def test_behind_the_gateway_no_kill_of_an_engine_excuses_a_loss(gateway):
    stage = Stage(Service("chat"), "image", lambda line: None, gateway=gateway)
    pod = Pod("chat-a", "uid", "10.0.0.5", "node", ready=True, leaving=False, restarts=0)
    stage.strike(pod, [], signal.SIGKILL, whole=True)
    assert (stage.blow is None) == gateway
    stage.strike_gateway(pod, [], signal.SIGKILL)
    assert stage.blow is not None
    assert (stage.blow.address, stage.blow.whole) == ("10.0.0.5", True)


def test_a_service_behind_the_gateway_stays_there_whatever_a_phase_changes(monkeypatch):
    applied = []
    monkeypatch.setattr("tools.testbed.service.kubectl", lambda *args, input: applied.append(json.loads(input)))
    stage = Stage(Service("chat"), "image", lambda line: None, gateway=True)
    stage.apply(tuning={"mode": "Auto"})
    assert applied[0]["spec"]["gateway"] == {"enabled": True}
    assert applied[0]["spec"]["tuning"] == {"mode": "Auto"}


def test_a_set_up_that_fails_is_restored(stage):
    def phase(stage):
        stage.on_way_back(stage.done.append, "restore")
        yield fail(ClusterError("no image"))

    with pytest.raises(ClusterError, match="no image"):
        run_phase(Phase("given", "whatever the test gives", phase), stage, seconds=0)
    assert stage.done == ["restore", "settle"]


@pytest.fixture
def switched(monkeypatch):
    """The phase `gateway-switched` without a cluster. Attributes of what it gives: addresses: of the Service, in the
    order in which they are asked for."""
    stage = StageStandIn()
    engine, gateway = (
        Pod(name, name, address, "node", ready=True, leaving=False, restarts=0)
        for name, address in (("chat-a", "10.0.0.5"), ("gateway-a", "10.0.0.9"))
    )
    stage.behind = True
    stage.addresses = iter(("10.96.0.7", "10.96.0.7"))
    for name, replacement in {
        "apply": lambda gateway: setattr(stage, "behind", gateway["enabled"]) or stage.done.append(gateway["enabled"]),
        "destinations": lambda: {(gateway if stage.behind else engine).address},
        "ready_pods": lambda: [engine],
        "rolled_out": lambda: True,
        "wait_ready": lambda number: None,
        "cluster_ip": lambda: next(stage.addresses),
    }.items():
        monkeypatch.setattr(stage, name, replacement)
    monkeypatch.setattr("e2e.disruptions.phases.system_pods", lambda program: [gateway])
    return stage


def test_the_gateway_is_switched_off_and_on_and_the_service_keeps_its_address(switched):
    list(PHASES["gateway-switched"].run(switched))
    assert switched.done == [False, True]
    assert switched.note == "the Service kept its address 10.96.0.7"


def test_an_address_that_changes_with_the_gateway_is_trouble(switched):
    switched.addresses = iter(("10.96.0.7", "10.96.0.8"))
    with pytest.raises(RuntimeError, match=r"had the address 10\.96\.0\.7, and has 10\.96\.0\.8"):
        list(PHASES["gateway-switched"].run(switched))
