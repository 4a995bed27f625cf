"""Sleep of the engine process as the API process sees it. test_real_sleep.py has a real engine."""

import asyncio
import itertools

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from inflight_engine.engine import Engine
from inflight_engine.messages import AddRequest, Sleep, StepReport
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.server.engine.calls import EngineCalls
from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.engine.sleeping import Sleeping
from inflight_settings.engine import EngineConfig
from tests.engine.scheduling.model_runner import reference_output
from tests.engine.server.fake_engine import READY, until
from tests.engine.test_engine import CONFIG, StandIn, add, outputs

TOKEN = {"authorization": "Bearer secret"}
AFTER = 30.0


@pytest.fixture(autouse=True)
def _token(monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", "secret")


async def states(fake):
    """Returns the states that the page, the metric and the readiness of the engine show."""
    page = (await fake.http.get("/v1/runtime_config")).json()["state"]
    metrics = (await fake.http.get("/metrics")).text
    (value,) = [line.split()[-1] for line in metrics.splitlines() if line.startswith("inflight_asleep{")]
    return page, float(value), (await fake.http.get("/ready")).status_code


async def test_an_admin_lets_an_idle_engine_sleep_and_wakes_it(make_fake):
    fake = await make_fake()
    assert await states(fake) == ("awake", 0.0, 200)
    answer = await fake.http.post("/admin/sleep", headers=TOKEN)
    assert (answer.status_code, answer.json()) == (200, {"state": "asleep"})
    assert await states(fake) == ("asleep", 1.0, 200)
    answer = await fake.http.post("/admin/wake", headers=TOKEN)
    assert (answer.status_code, answer.json()) == (200, {"state": "awake"})
    assert await states(fake) == ("awake", 0.0, 200)


async def test_a_request_wakes_the_engine_without_any_call(make_fake):
    fake = await make_fake()
    await fake.http.post("/admin/sleep", headers=TOKEN)
    asked = asyncio.create_task(fake.post("/v1/completions", prompt="abc", max_tokens=4))
    await until(lambda: fake.engine.requests)
    assert await states(fake) == ("awake", 0.0, 200)
    fake.engine.answer(next(iter(fake.engine.requests)), "x")
    assert (await asked).status_code == 200


async def test_an_engine_with_requests_refuses_to_sleep(make_fake):
    fake = await make_fake()
    fake.engine.busy = True
    answer = await fake.http.post("/admin/sleep", headers=TOKEN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "busy")
    assert await states(fake) == ("awake", 0.0, 200)


async def test_an_engine_that_cannot_sleep_says_so(make_fake):
    fake = await make_fake()
    session = fake.service.session
    session.ready = structs.replace(READY, runner=structs.replace(READY.runner, can_sleep=False))
    answer = await fake.http.post("/admin/sleep", headers=TOKEN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cannot_sleep")
    assert "only one on a CPU" in answer.json()["error"]["message"]
    assert not fake.engine.sleeps


@pytest.mark.parametrize("path", ["/admin/sleep", "/admin/wake"])
async def test_only_admins_let_it_sleep_and_wake(make_fake, path):
    fake = await make_fake()
    assert (await fake.http.post(path)).status_code == 401
    assert not fake.engine.sleeps


async def test_an_engine_sleeps_once_it_had_no_requests_for_long_enough(make_fake):
    fake = await make_fake(engine=EngineConfig("fake", sleep_after=AFTER))
    session = fake.service.session
    start = session.sleeping._used_at
    session.sleep_if_due(start + AFTER - 0.1)
    assert not fake.engine.sleeps
    for seconds in (0.0, 0.5):  # the second is before the answer
        session.sleep_if_due(start + AFTER + seconds)
    await until(lambda: session.sleeping.asleep)
    session.sleep_if_due(start + 3 * AFTER)
    assert fake.engine.sleeps == 1


async def test_an_engine_with_requests_is_not_asked_to_sleep(make_fake):
    fake = await make_fake(engine=EngineConfig("fake", sleep_after=AFTER))
    session = fake.service.session
    asked = asyncio.create_task(fake.post("/v1/completions", prompt="abc", max_tokens=4))
    await until(lambda: fake.engine.requests)
    session.sleep_if_due(session.sleeping._used_at + 10 * AFTER)
    fake.engine.answer(next(iter(fake.engine.requests)), "x")
    await asked
    await until(lambda: not len(fake.service.registry))
    session.sleep_if_due(session.sleeping._used_at + AFTER - 0.1)
    assert not fake.engine.sleeps
    session.sleep_if_due(session.sleeping._used_at + AFTER)
    await until(lambda: session.sleeping.asleep)


async def test_without_the_setting_an_engine_never_sleeps_unasked(make_fake):
    fake = await make_fake()
    fake.service.session.sleep_if_due(1e12)
    assert not fake.service.session.sleeping._asked


async def test_an_engine_process_that_dies_asleep_comes_back_awake(make_fake):
    fake = await make_fake()
    await fake.http.post("/admin/sleep", headers=TOKEN)
    fake.engine.die()
    await until(lambda: fake.service.session.phase is Phase.RESTARTING)
    assert not fake.service.session.sleeping.asleep
    answer = await fake.http.post("/admin/sleep", headers=TOKEN)
    assert answer.status_code == 503


class SleepMachine(RuleBasedStateMachine):
    """The API process's part (`Sleeping`), and a real `Engine` with a stand-in for its runner, with two queues of
    messages between them, in any interleaving."""

    def __init__(self):
        super().__init__()
        self.now, self.numbers = 0.0, itertools.count()
        self.to_engine, self.to_api = [], []
        self.runner = StandIn(frozenset())
        self.engine = Engine(Scheduler(CONFIG), self.runner)
        self.sleeping = Sleeping(AFTER, EngineCalls(self.to_engine.append))
        self.sleeping.used(self.now)
        self.open, self.prompts, self.reports = set(), {}, []

    @rule(prompt=st.lists(st.integers(0, 9), min_size=1, max_size=9))
    def request(self, prompt):
        number = next(self.numbers)
        self.prompts[number] = prompt
        self.open.add(number)
        self.sleeping.used(self.now)
        self.to_engine.append(add(number, prompt))

    @rule(seconds=st.sampled_from([1.0, AFTER / 2, AFTER]))
    def time_passes(self, seconds):
        self.now += seconds
        if not self.open and self.sleeping.due(self.now):
            self.sleeping.begin()

    @rule()
    def asked_to_sleep(self):
        """An admin may ask at any moment."""
        self.sleeping.begin()

    @rule()
    def asked_to_wake(self):
        self.sleeping.used(self.now)

    @precondition(lambda self: self.to_engine)
    @rule()
    def engine_reads(self):
        message = self.to_engine.pop(0)
        assert isinstance(message, AddRequest | Sleep)
        had_work, freed = self.engine.has_work, self.runner.num_freed
        answer = self.engine.handle(message)
        if answer is not None:
            assert (self.runner.num_freed > freed) == (not had_work), "it sleeps if, and only if, it has no requests"
            self.to_api.append(answer)

    @precondition(lambda self: self.engine.has_work)
    @rule()
    def engine_steps(self):
        self.to_api.append(self.engine.step())

    @precondition(lambda self: self.to_api)
    @rule()
    def api_reads(self):
        message = self.to_api.pop(0)
        if isinstance(message, StepReport):
            self.sleeping.used(self.now)
            self.reports.append(message)
            self.open -= {each.request_id for each in message.finished}
        else:
            self.sleeping.answered(message, self.now)

    @invariant()
    def who_is_said_to_sleep_has_no_requests_and_has_slept(self):
        if self.sleeping.asleep:
            assert not self.open
            assert not self.engine.has_work
            assert self.runner.num_freed

    def teardown(self):
        while self.to_engine:
            self.engine_reads()
        while self.engine.has_work:
            self.engine_steps()
        while self.to_api:
            self.api_reads()
        expected = {number: reference_output(prompt, 4) for number, prompt in self.prompts.items()}
        assert outputs(self.reports) == expected, "a request was lost"
        assert not self.open


TestSleepMachine = SleepMachine.TestCase
