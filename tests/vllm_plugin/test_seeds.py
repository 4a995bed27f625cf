"""Generators of requests whose prompts are not computed to their end are left alone by a sampling step."""

from types import SimpleNamespace

import numpy as np
import pytest

from inflight_vllm.seeds import kept_of_unfinished_prompts


def runner():
    mask = SimpleNamespace(np=np.array([True, False, True, True]))
    return SimpleNamespace(
        input_batch=SimpleNamespace(num_reqs=3, generators={0: "a", 1: "b", 3: "old"}), discard_request_mask=mask
    )


def test_they_are_out_of_the_batch_while_it_samples_and_back_afterwards():
    stand_in = runner()
    generators = stand_in.input_batch.generators
    with kept_of_unfinished_prompts(stand_in):
        assert generators == {1: "b", 3: "old"}
    assert generators == {0: "a", 1: "b", 3: "old"}
    with pytest.raises(RuntimeError, match="ended"), kept_of_unfinished_prompts(stand_in):
        raise RuntimeError("the step ended")
    assert generators == {0: "a", 1: "b", 3: "old"}


def test_a_runner_of_another_kind_is_left_as_it_is():
    with kept_of_unfinished_prompts(SimpleNamespace()):
        pass
    other = runner()
    del other.discard_request_mask
    with kept_of_unfinished_prompts(other):
        assert len(other.input_batch.generators) == 3
