"""Sampling of one token for one request, written from the parameters' definitions with plain loops."""

import math

import numpy as np

from inflight_engine.execution.sampling.draws import uniform

GOLDEN = 0x9E3779B97F4A7C15


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


def kept_tokens(changed, sampling):
    """Tokens that the filters leave, likeliest first, and the weights of all."""
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
    return kept, weight


def inverted(kept, weight, seed, position):
    """A CPU's draw: by inverting the cumulative distribution."""
    number = float(uniform(np.array([seed % 2**64], np.uint64), np.array([position]))[0])
    target = number * math.fsum(weight[token] for token in kept)
    passed = 0.0
    for token in sorted(kept):
        passed += weight[token]
        if passed > target:
            return token
    return max(kept)


def raced(kept, weight, seed, position):
    """A GPU's draw: of exponentially distributed times, each at its token's rate, the shortest (which is the Gumbel-max
    trick without logarithms)."""
    stream = splitmix64(splitmix64(seed) + position)
    times = {}
    for token in kept:
        share = ((splitmix64(stream + token * GOLDEN) >> 24) + 0.5) * 2.0**-40
        times[token] = -math.log1p(-share) / weight[token] if weight[token] else math.inf
    return min(sorted(kept), key=times.get)


def splitmix64(x):
    x = (x + GOLDEN) % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def reference_token(logits, prompt, output, sampling, drawn=inverted):
    """The next token of a request with this prompt and output; `drawn`: how a device draws."""
    changed = changed_logits(logits, prompt, output, sampling)
    if sampling.temperature == 0:
        return min(range(len(changed)), key=lambda token: (-changed[token], token))
    kept, weight = kept_tokens(changed, sampling)
    return drawn(kept, weight, sampling.seed, len(prompt) + len(output))
