import math

import pytest
import torch

from tools.bench.quantization import difference


def test_a_format_that_is_exact_differs_in_nothing_and_has_the_texts_perplexity():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    same = difference(logits, logits, torch.tensor([0, 2]))
    assert same.mean_kl == 0
    assert same.agreement == 1
    assert same.perplexity == pytest.approx(math.sqrt(1 / (0.5 * 0.1)))


def test_the_divergence_is_that_of_the_exact_distribution_from_the_other():
    exact, other = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.75]])
    found = difference(exact.log(), other.log(), torch.tensor([1]))
    assert found.mean_kl == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert found.agreement == 0
