"""Sampling of one token for one request, written from the parameters' definitions with plain loops."""

import math

import numpy as np

from inflight_engine.execution.sampling.draws import uniform


def changed_logits(logits, prompt, output, sampling):
    """float32 [vocab]: after logit_bias, then repetition, frequency and presence penalty, then min_tokens."""
    changed = np.array(logits, np.float32)
    for token, bias in sampling.logit_bias:
        changed[token] += np.float32(bias)
    if sampling.repetition_penalty != 1:
        for token in {*prompt, *output}:
            penalty = np.float32(sampling.repetition_penalty)
            changed[token] = changed[token] / penalty if changed[token] > 0 else changed[token] * penalty
    for token in set(output):
        changed[token] -= np.float32(sampling.frequency_penalty) * np.float32(output.count(token))
    for token in set(output):
        changed[token] -= np.float32(sampling.presence_penalty)
    if len(output) < sampling.min_tokens:
        changed[list(sampling.stop_token_ids)] = -math.inf
    return changed


def reference_token(logits, prompt, output, sampling):
    """The next token of a request with this prompt and output."""
    changed = changed_logits(logits, prompt, output, sampling)
    if sampling.temperature == 0:
        return min(range(len(changed)), key=lambda token: (-changed[token], token))
    order = sorted(range(len(changed)), key=lambda token: (-changed[token], token))
    largest = float(changed[order[0]])
    weight = {token: math.exp((float(changed[token]) - largest) / sampling.temperature) for token in order}
    kept = [token for token in order if weight[token] >= sampling.min_p]
    kept = kept[: sampling.top_k or None]
    if sampling.top_p < 1:
        mass, smallest_set = math.fsum(weight[token] for token in kept), []
        while math.fsum(weight[token] for token in smallest_set) < sampling.top_p * mass:
            smallest_set.append(kept[len(smallest_set)])
        kept = smallest_set
    position = len(prompt) + len(output)
    number = float(uniform(np.array([sampling.seed], np.uint64), np.array([position]))[0])
    target = number * math.fsum(weight[token] for token in kept)
    passed = 0.0
    for token in sorted(kept):
        passed += weight[token]
        if passed > target:
            return token
    return max(kept)
