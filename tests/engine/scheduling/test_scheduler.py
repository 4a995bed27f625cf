import pytest

from inflight_cost.model import CostModel
from inflight_engine.cache.loading import LoadRates
from inflight_engine.request import FinishReason, RequestState
from inflight_engine.scheduling import admission
from inflight_engine.scheduling.scheduler import CannotFitError
from inflight_settings.scheduling import ServiceClass
from tests.engine.scheduling.driver import Driver
from tests.engine.scheduling.model_runner import reference_output


def test_a_3000_token_prompt_at_budget_512_runs_in_six_chunks_while_decodes_lose_no_step():
    driver = Driver(max_num_batched_tokens=512, num_blocks=300, block_size=16, max_model_len=4096)
    driver.add(1, [7], 20)
    driver.step()
    driver.add(2, list(range(3000)), 2)
    chunks = []
    while 2 not in driver.finished:
        plan = driver.step()
        assert plan is not None
        chunks += [chunk.length for chunk in plan.prefills]
        assert 1 in driver.finished or len(plan.decode_slots) >= 1
    # One token of each step's budget is the running decode's.
    assert chunks == [511] * 5 + [445]


def test_a_3000_token_prompt_alone_at_budget_512_ends_with_a_chunk_of_440():
    driver = Driver(max_num_batched_tokens=512, num_blocks=300, block_size=16, max_model_len=4096)
    driver.add(1, list(range(3000)), 1)
    plans = []
    while (plan := driver.step()) is not None:
        plans.append(plan)
    assert [plan.prefills[0].length for plan in plans] == [512] * 5 + [440]
    assert [plan.prefills[0].samples for plan in plans] == [False] * 5 + [True]


def test_prefill_and_decode_share_a_step():
    driver = Driver()
    driver.add(1, [1, 2, 3], 8)
    driver.step()
    driver.add(2, [4, 5], 8)
    plan = driver.step()
    assert plan is not None
    assert len(plan.decode_slots) == 1
    assert [chunk.length for chunk in plan.prefills] == [2]


def test_steady_decode_passes_no_deltas_and_the_same_slots_object():
    driver = Driver(block_size=64, num_blocks=8)
    for request_id in range(3):
        driver.add(request_id, [request_id], 30)
    driver.step()
    first = driver.step()
    second = driver.step()
    assert first is not None
    assert second is not None
    assert second.decode_slots is first.decode_slots
    assert (second.preemptions, second.releases, second.starts, second.growth, second.prefills) == (
        (),
        (),
        (),
        None,
        (),
    )


def test_a_request_starts_beside_a_large_one_in_what_was_free_and_in_none_of_what_comes_free():
    driver = Driver(num_blocks=8, block_size=4, max_model_len=32, max_num_batched_tokens=64)
    driver.add(1, list(range(20)), 2)
    driver.add(2, list(range(24))[::-1], 2)
    driver.add(3, [1], 2)
    driver.add(4, list(range(16)), 2)
    driver.run()
    assert driver.admission_order == [1, 3, 2, 4]


def beside_a_large_one(seconds, classes):
    """A request of most of the cache, beside one that comes in each step of half a second and has room without it."""
    driver = Driver(
        num_blocks=60, block_size=4, max_model_len=240, max_num_seqs=16, max_num_batched_tokens=256,
        kv_headroom=0.0, prefix_caching=False, classes=classes,
    )  # fmt: skip
    for number in range(10 + 2 * seconds):
        driver.add(number, [number % 7], 8, service_class="heavy")
        if number == 10:
            driver.add(LARGE, [1] * 200, 2, service_class="light")
        driver.now += 0.5
        driver.step()
    return driver


LARGE = 1000
ALIKE = (ServiceClass("light"), ServiceClass("heavy"))
TEN_TIMES = (ServiceClass("light", weight=0.5), ServiceClass("heavy", weight=5.0))


def test_others_leave_its_place_to_a_large_one_after_ten_seconds_and_a_class_of_more_weight_later():
    assert LARGE not in beside_a_large_one(9, ALIKE).admission_order
    assert LARGE in beside_a_large_one(20, ALIKE).admission_order
    assert LARGE not in beside_a_large_one(90, TEN_TIMES).admission_order
    assert LARGE in beside_a_large_one(110, TEN_TIMES).admission_order


def test_running_out_of_blocks_preempts_the_last_arrived_and_changes_no_output():
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16)
    prompts = {i: [i, i + 1, i + 2] for i in range(4)}
    for request_id, prompt in prompts.items():
        driver.add(request_id, prompt, 10)
    driver.run()
    assert driver.scheduler.preemptor.num_preemptions > 0
    assert driver.outputs == {i: reference_output(prompt, 10) for i, prompt in prompts.items()}


def test_kv_headroom_is_left_free_by_admission_but_never_blocks_the_only_request():
    driver = Driver(num_blocks=8, block_size=4, max_model_len=32, max_num_batched_tokens=64, kv_headroom=0.5)
    driver.add(1, list(range(24)), 2)
    driver.add(2, [1], 1)
    plan = driver.step()
    assert plan is not None
    assert [start.request_id for start in plan.starts] == [1]
    driver.run()
    assert set(driver.finished) == {1, 2}


def test_lowering_max_num_seqs_evicts_nobody_and_admits_nobody_until_the_surplus_is_gone():
    driver = Driver()
    for request_id in range(6):
        driver.add(request_id, [request_id], 5 + request_id)
    driver.step()
    driver.set_limits(2, 16)
    assert driver.scheduler.num_running == 4
    driver.run()
    assert driver.scheduler.preemptor.num_preemptions == 0
    assert set(driver.finished.values()) == {FinishReason.LENGTH}


def test_a_budget_below_the_running_decodes_runs_the_oldest_and_loses_none():
    driver = Driver()
    for request_id in range(4):
        driver.add(request_id, [request_id], 6)
    driver.step()
    driver.set_limits(4, 2)
    plan = driver.step()
    assert plan is not None
    assert [driver.slot_owner[slot] for slot in plan.decode_slots.tolist()] == [0, 1]
    driver.run()
    assert driver.outputs == {i: reference_output([i], 6) for i in range(4)}


def test_raising_limits_takes_effect_in_the_next_step():
    driver = Driver()
    driver.set_limits(1, 4)
    for request_id in range(4):
        driver.add(request_id, [request_id], 5)
    driver.step()
    assert driver.scheduler.num_running == 1
    driver.set_limits(4, 16)
    driver.step()
    assert driver.scheduler.num_running == 4


def test_a_stop_token_ends_the_request_at_once_as_stop():
    whole = reference_output([3, 1, 4], 12)
    driver = Driver()
    driver.add(1, [3, 1, 4], 12, stop=(whole[4], 49_000))
    driver.run()
    assert driver.outputs[1] == whole[: whole.index(whole[4]) + 1]
    assert driver.finished[1] == FinishReason.STOP


def test_a_cancelled_request_frees_its_slot_and_blocks_for_the_next_step():
    driver = Driver(max_num_seqs=1)
    driver.add(1, [1, 2, 3, 4, 5], 20)
    driver.add(2, [6], 2)
    driver.step()
    assert driver.cancel(1)
    assert driver.scheduler.kv_usage == 0
    plan = driver.step()
    assert plan is not None
    assert [start.request_id for start in plan.starts] == [2]
    assert not driver.cancel(1)


@pytest.mark.parametrize(("prompt", "max_tokens"), [(60, 5), (64, 1), (1, 64)])
def test_a_request_that_can_never_fit_is_refused_at_once(prompt, max_tokens):
    driver = Driver(max_model_len=64, num_blocks=16, block_size=4)
    with pytest.raises(CannotFitError, match=f"{prompt} prompt tokens and {max_tokens} output tokens"):
        driver.add(1, [0] * prompt, max_tokens)
    assert not driver.scheduler.has_work


def test_one_free_slot_table_row_serves_many_requests_one_after_the_other():
    driver = Driver(max_num_seqs=1)
    for request_id in range(10):
        driver.add(request_id, [request_id] * 3, 3)
    driver.run()
    assert driver.outputs == {i: reference_output([i] * 3, 3) for i in range(10)}
    assert driver.scheduler.num_running == 0


def test_a_preempted_request_computes_nothing_again_but_its_last_block():
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16, preemption="swap", num_host_blocks=16)
    requests = [driver.add(i, [i, i + 1, i + 2], 10) for i in range(4)]
    lengths = []
    while (plan := driver.step()) is not None:
        resumed = [start.slot for start in plan.starts if requests[start.request_id].num_preemptions]
        lengths += [chunk.length for chunk in plan.prefills if chunk.slot in resumed]
    assert driver.scheduler.preemptor.num_preemptions == len(lengths) > 0
    assert driver.scheduler.offload.num_loaded > 0
    assert max(lengths) <= 2


def test_what_the_cache_evicted_is_loaded_by_a_later_turn_of_the_conversation():
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16, preemption="swap", num_host_blocks=64)
    first = list(range(9))
    driver.add(0, first, 2)
    driver.run()
    for other in range(1, 4):
        driver.add(other, [other] * 14, 2)
        driver.run()
    driver.add(9, [*first, 7, 7], 2)
    plan = driver.step()
    (start,) = plan.starts
    assert (len(start.host_block_ids), start.num_computed_tokens) == (4, 8)
    driver.run()
    assert driver.scheduler.admission.prefix_hits == 8


def test_a_tenant_loads_nothing_that_another_one_computed():
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16, preemption="swap", num_host_blocks=64)
    for tenant, salt, num_found in (("a", "", 0), ("b", "", 0), ("a", "salt", 0), ("a", "", 4)):
        driver.add(10 * num_found + ord(tenant) + len(salt), list(range(9)), 2, tenant=tenant, cache_salt=salt)
        (start,) = driver.step().starts
        assert len(start.host_block_ids) == num_found
        driver.run()
        driver.add(1, [3] * 14, 2, tenant="c")
        driver.run()
        del driver.finished[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"preemption": "recompute", "num_host_blocks": 64},
        {"preemption": "swap", "num_host_blocks": 64, "prefix_caching": False},
        {"preemption": "swap", "num_host_blocks": 0},
    ],
)
def test_without_a_tier_nothing_is_copied(fields):
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16, **fields)
    for request_id in range(4):
        driver.add(request_id, [request_id] * 3, 10)
    while (plan := driver.step()) is not None:
        assert plan.stores is None
    assert driver.scheduler.running.pool.offload is None


def test_a_request_whose_load_failed_computes_what_it_was_to_load():
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16, preemption="swap", num_host_blocks=64)
    driver.add(0, list(range(9)), 2)
    driver.run()
    driver.add(1, [3] * 14, 2)
    driver.run()
    request = driver.add(2, list(range(9)), 5)
    (start,) = driver.step(damaged=lambda plan: {0}).starts
    assert len(start.host_block_ids) == 4
    assert (request.state, driver.scheduler.offload.num_failed) == (RequestState.PREEMPTED, 4)
    (start,) = driver.step().starts
    assert (start.num_computed_tokens, start.host_block_ids) == (0, ())
    driver.run()
    assert driver.outputs[2] == reference_output(list(range(9)), 5)


@pytest.mark.parametrize(
    ("rates", "loads"),
    [(None, False), (LoadRates(prefill=100.0, copy=90.0), False), (LoadRates(prefill=100.0, copy=5000.0), True)],
)
def test_auto_stores_and_loads_only_where_copying_is_measured_to_be_faster(rates, loads):
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16, preemption="auto", num_host_blocks=16)
    driver.set_rates(rates)
    for request_id in range(4):
        driver.add(request_id, [request_id] * 3, 10)
    driver.run()
    assert driver.scheduler.preemptor.num_preemptions > 0
    assert (driver.scheduler.offload.num_loaded > 0) == loads
    assert (driver.scheduler.offload.num_stored > 0) == loads


def test_auto_stores_what_only_loads_behind_a_long_context_can_pay_for():
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16, preemption="auto", num_host_blocks=16)
    driver.set_rates(LoadRates(prefill=1.0, copy=1.0))
    driver.set_prefill_cost(CostModel(0.0, 0.0, 0.9, 0.0, 0.01))
    for request_id in range(4):
        driver.add(request_id, [request_id] * 3, 10)
    driver.run()
    assert driver.scheduler.offload.num_stored > 0


def test_a_shared_prefix_is_computed_once_and_its_blocks_are_shared():
    driver = Driver(max_num_batched_tokens=64, num_blocks=64)
    prompt = list(range(20))
    driver.add(1, prompt, 8)
    driver.step()
    driver.add(2, [*prompt, 7, 8], 8)
    plan = driver.step()
    assert plan is not None
    assert plan.starts[0].num_computed_tokens == 20
    assert [chunk.length for chunk in plan.prefills] == [2]
    assert (driver.scheduler.admission.prefix_queries, driver.scheduler.admission.prefix_hits) == (42, 20)
    # 20 shared tokens are five blocks; then one more for each.
    assert driver.scheduler.kv_usage == (5 + 1 + 1) / 64


def test_the_next_turn_of_a_conversation_finds_the_answer_of_the_last_one_in_the_cache():
    driver = Driver(max_num_batched_tokens=64, num_blocks=64)
    driver.add(1, list(range(10)), 11)
    driver.run()
    driver.add(2, [*range(10), *driver.outputs[1], 5], 2)
    plan = driver.step()
    assert plan is not None
    # 21 tokens, of which the last was never computed: five full blocks.
    assert plan.starts[0].num_computed_tokens == 20


def test_a_whole_prompt_in_the_cache_still_computes_its_last_token():
    driver = Driver(max_num_batched_tokens=64)
    driver.add(1, list(range(8)), 1)
    driver.run()
    driver.add(2, list(range(8)), 1)
    plan = driver.step()
    assert plan is not None
    assert [(chunk.start, chunk.length) for chunk in plan.prefills] == [(4, 4)]


@pytest.mark.parametrize("difference", [{"tenant": "b"}, {"cache_salt": "pepper"}])
def test_tenants_and_salts_share_no_prefix(difference):
    driver = Driver(max_num_batched_tokens=64)
    driver.add(1, list(range(9)), 1)
    driver.run()
    driver.add(2, list(range(9)), 1, **difference)
    driver.run()
    assert driver.scheduler.admission.prefix_hits == 0


@pytest.mark.parametrize("lookahead", [False, True])
def test_requests_whose_long_prompts_are_cached_start_in_several_steps(lookahead, monkeypatch):
    monkeypatch.setattr(admission, "STARTED_BLOCKS", 8)
    driver = Driver(max_num_seqs=8, max_num_batched_tokens=64, num_blocks=64, block_size=2, lookahead=lookahead)
    driver.rules.started_blocks = 8
    driver.add(0, [*range(9)], 1)
    driver.run()
    for request_id in range(1, 8):
        driver.add(request_id, [*range(9)], 6)
    num_starts = []
    while (plan := driver.step()) is not None:
        num_starts.append(len(plan.starts))
    assert num_starts[:5] == [2, 2, 2, 1, 0]  # each of five blocks
    assert driver.admission_order == [*range(8)]


def test_a_request_that_asks_for_log_probabilities_of_its_prompt_computes_all_of_it():
    driver = Driver(max_num_batched_tokens=64)
    for request_id in range(3):
        driver.add(request_id, list(range(9)), 1, scored=request_id > 0)
        driver.run()
    assert driver.scheduler.admission.prefix_hits == 0
    driver.add(3, list(range(9)), 1)
    driver.run()
    assert driver.scheduler.admission.prefix_hits == 8, "others still share"


def test_a_request_that_asks_for_log_probabilities_of_its_prompt_takes_no_place_in_the_prefix_cache():
    driver = Driver(num_blocks=8, block_size=2, max_num_batched_tokens=64, max_model_len=16)
    driver.add(0, list(range(9)), 1)
    driver.run()
    for request_id in (1, 2, 3):
        driver.add(request_id, [request_id] * 7, 1, scored=True)
        driver.run()
    driver.add(4, list(range(9)), 1)
    driver.run()
    assert driver.scheduler.admission.prefix_hits == 8


def test_the_oldest_running_request_is_never_preempted_even_if_it_is_the_longest():
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16, preemption_victim="longest_first")
    for request_id in range(4):
        driver.add(request_id, [request_id] * (6 - request_id), 10)
    preempted = set()
    while (plan := driver.step()) is not None:
        preempted |= {preemption.request_id for preemption in plan.preemptions}
    assert preempted
    assert 0 not in preempted


def test_an_arriving_request_of_high_priority_is_not_preempted_for_running_ones_of_low_priority():
    driver = Driver(num_blocks=16, block_size=2, max_model_len=16, policy="priority")
    for request_id in (0, 1):
        driver.add(request_id, [request_id] * 3, 10, priority=50)
    driver.step()
    driver.add(2, [2] * 3, 10, priority=-100)
    preempted = []
    while (plan := driver.step()) is not None:
        preempted += [preemption.request_id for preemption in plan.preemptions]
    assert preempted[0] == 1
    assert 2 not in preempted


def test_priority_changes_no_victim_under_a_policy_that_does_not_look_at_it():
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16, policy="fcfs")
    for request_id, priority in enumerate((50, 50, -100)):
        driver.add(request_id, [request_id] * 3, 10, priority=priority)
    while not driver.scheduler.preemptor.num_preemptions:
        plan = driver.step()
    assert [each.request_id for each in plan.preemptions] == [2]


def test_the_class_of_least_weight_gives_way_whatever_the_order_of_arrival_and_the_rule():
    classes = ServiceClass("batch", weight=1.0), ServiceClass("interactive", weight=4.0)
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16, classes=classes, preemption_victim="longest_first")
    for request_id, name in enumerate(("interactive", "batch", "interactive")):
        driver.add(request_id, [request_id] * (2 + (request_id == 2)), 10, service_class=name)
    while not driver.scheduler.preemptor.num_preemptions:
        plan = driver.step()
    assert [each.request_id for each in plan.preemptions] == [1]


def test_a_request_that_resumes_comes_before_new_ones_of_its_priority_and_after_higher_ones():
    driver = Driver(num_blocks=8, block_size=2, max_model_len=16, policy="priority")
    for request_id in range(3):
        driver.add(request_id, [request_id] * 3, 10, priority=5)
    while not driver.scheduler.preemptor.num_preemptions:
        driver.step()
    driver.add(8, [1], 1, priority=5)
    driver.add(9, [1], 1, priority=-5)
    driver.run()
    resumed = driver.admission_order.index(2, 3)
    assert driver.admission_order.index(9) < resumed < driver.admission_order.index(8)


@pytest.mark.parametrize("lookahead", [False, True])
def test_copies_of_a_prompt_that_arrive_together_compute_it_once_and_are_admitted_in_one_step(lookahead):
    driver = Driver(max_num_seqs=8, max_num_batched_tokens=64, num_blocks=64, lookahead=lookahead)
    for request_id in range(6):
        driver.add(request_id, list(range(21)), 4)
    plan = driver.step()
    assert [start.num_computed_tokens for start in plan.starts] == [0] + [20] * 5
    assert [chunk.length for chunk in plan.prefills] == [21] + [1] * 5
    driver.run()
    assert driver.scheduler.admission.prefix_hits == 100


def test_a_copy_finds_what_is_planned_of_a_long_prompt_in_the_step_after():
    driver = Driver(max_num_batched_tokens=16, num_blocks=64)
    driver.add(1, list(range(22)), 4)
    driver.add(2, list(range(22)), 4)
    first, second = driver.step(), driver.step()
    assert [len(plan.starts) for plan in (first, second)] == [1, 1], "the first step's budget is spent"
    assert second.starts[0].num_computed_tokens == 20
    assert [chunk.length for chunk in second.prefills] == [6, 2]


def test_a_copy_shares_a_prefill_in_flight_whose_request_is_cancelled():
    driver = Driver(max_num_batched_tokens=16, num_blocks=64, lookahead=True)
    driver.add(1, list(range(40)), 4)

    def cancel_and_copy():
        driver.cancel(1)
        driver.add(2, list(range(40)), 4)

    driver.step(meanwhile=cancel_and_copy)
    driver.step()
    (start,) = driver.plans[-1].starts
    assert start.num_computed_tokens == 32, "two chunks of 16 are planned; the rest never will be"
    driver.run()


@pytest.mark.parametrize("lookahead", [False, True])
def test_a_failed_plan_leaves_nothing_to_find_of_what_it_was_to_compute(lookahead):
    driver = Driver(max_num_batched_tokens=16, num_blocks=64, lookahead=lookahead)
    driver.add(1, list(range(40)), 4)
    while 1 not in driver.finished:
        driver.step(fails=lambda plan: plan.step == 1)
    driver.add(2, list(range(40)), 4)
    plan = driver.step()
    assert plan.starts[0].num_computed_tokens == 16, "the first chunk's, and none of the two that were dropped"
    driver.run()


@pytest.mark.parametrize("launch_breaks", [False, True])
def test_a_copy_of_a_chunk_without_memory_is_put_back_whether_or_not_its_own_launch_broke(launch_breaks):
    driver = Driver(max_num_batched_tokens=16, num_blocks=64, lookahead=True)
    driver.add(1, list(range(40)), 4)
    copy = driver.add(2, list(range(40)), 4)
    driver.step()
    driver.step(
        fails=lambda plan: launch_breaks and plan.step == 2,
        failing_slots=lambda plan: {0} if plan.step == 1 else frozenset(),
    )
    (start,) = driver.plans[-1].starts
    assert (start.request_id, start.num_computed_tokens) == (2, 36), "it finds blocks of the chunk that has no memory"
    assert driver.finished == {1: FinishReason.OUT_OF_MEMORY}
    assert (copy.state, driver.scheduler.num_running) == (RequestState.PREEMPTED, 0)
    driver.run()
    assert driver.finished[2] is FinishReason.LENGTH


@pytest.mark.parametrize("fields", [{"policy": "fair"}, {"classes": (ServiceClass(), ServiceClass("batch"))}], ids=str)
def test_a_head_that_does_not_fit_costs_no_look_at_its_blocks_while_it_stays_the_head(monkeypatch, fields):
    driver = Driver(num_blocks=16, block_size=4, max_num_batched_tokens=64, **fields)
    driver.add(1, list(range(40)), 20)
    driver.step()
    driver.add(2, [*range(8), *range(50)], 1)
    driver.step()
    pool = driver.scheduler.running.pool
    looked_up, match = [], pool.match
    monkeypatch.setattr(pool, "match", lambda hashes: looked_up.append(hashes) or match(hashes))
    for _ in range(15):
        assert driver.scheduler.num_waiting == 1
        driver.step()
    assert looked_up == []


@pytest.mark.parametrize(
    ("field", "value", "first"), [("preemption_victim", "youngest", "last_arrived"), ("preemption", "Swap", "auto")]
)
def test_an_unknown_victim_rule_or_way_of_preemption_is_refused_by_name(field, value, first):
    with pytest.raises(ValueError, match=f"{field} must be one of {first}, .*, not '{value}'"):
        Driver(**{field: value})
