"""A model of an engine for tests of the operator's decisions: a step takes `base + per_prefill * prefill tokens +
per_decode * decodes` seconds. It is arithmetic, not an engine, but it reports the values that an engine reports: the
cost model `reported_cost`, with what arrived; with `reports_cache` the size of its KV cache, as vLLM does. Its steps
take `slow` times as long as that, with `noise` as the standard deviation of their logarithm; with `ordered` it starts
first the requests that can still keep their TTFT target, as Inflight's engine does."""

import math
import random
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate

from inflight_base.page.histogram import Histogram
from inflight_cost.model import CostModel
from inflight_operator.observe.metrics import Sample
from inflight_settings.limits import Limits

SECONDS = (
    0.005,
    0.01,
    0.02,
    0.03,
    0.04,
    0.05,
    0.06,
    0.075,
    0.1,
    0.125,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    1.5,
    2,
    3,
    5,
)
SECONDS = (*SECONDS, 10, 20, 40, 80, float("inf"))
TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192, float("inf"))


class Buckets:
    def __init__(self, bounds):
        self.bounds, self._each, self.total = bounds, [0.0] * len(bounds), 0.0

    def observe(self, value, times=1):
        self.total += value * times
        self._each[bisect_left(self.bounds, value)] += times

    def value(self):
        return Histogram(self.bounds, tuple(accumulate(self._each)), self.total)


@dataclass
class ModelRequest:
    arrived: float
    prompt: int
    output: int
    computed: int = 0
    generated: int = 0
    first_token: float = 0.0


@dataclass
class ModelEngine:
    base: float = 0.02
    per_prefill: float = 0.0006
    per_decode: float = 0.003
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    kv_tokens: int = 100_000
    slow: float = 1.0
    noise: float = 0.0
    ordered: bool = False
    cost_error: float = 0.03
    reported_cost: CostModel | None = None
    reports_cache: bool = False
    prompt_tokens: int = 0
    time: float = 0.0
    arrived: int = 0
    arrived_tokens: int = 0
    arrived_squares: int = 0
    waiting: deque = field(default_factory=deque)
    late: deque = field(default_factory=deque)
    running: list = field(default_factory=list)
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    steps: int = 0
    arrived: int = 0
    arrived_tokens: int = 0
    arrived_squares: int = 0
    outputs: deque = field(default_factory=lambda: deque(maxlen=200))
    in_target: int = 0
    targets: tuple = (1.0, 0.05)
    ttft: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    tpot: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    itl: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    step_tokens: Buckets = field(default_factory=lambda: Buckets(TOKENS))
    chance: random.Random = field(default_factory=lambda: random.Random(5))

    @property
    def true_cost(self):
        return CostModel(self.base, self.per_decode, self.per_prefill, 0.0, 0.0)

    def add(self, prompt, output):
        self.arrived += 1
        self.arrived_tokens += prompt
        self.arrived_squares += prompt**2
        self.waiting.append(ModelRequest(self.time, prompt, output))

    def run_until(self, end):
        while self.time < end:
            if not self.waiting and not self.late and not self.running:
                self.time = end
                return
            self._step()

    def _step(self):
        budget = self.max_num_batched_tokens
        while self._kv_used() > self.kv_tokens and len(self.running) > 1:
            lost = self.running.pop()
            lost.computed = 0
            lost.prompt += lost.generated
            self.waiting.appendleft(lost)
            self.preemptions += 1
        decodes = [one for one in self.running if one.computed >= one.prompt][:budget]
        budget -= len(decodes)
        chunks = []
        for request in [one for one in self.running if one.computed < one.prompt]:
            chunk = min(budget, request.prompt - request.computed)
            if chunk:
                chunks.append((request, chunk))
                budget -= chunk
        while self.ordered and self.waiting and self.time - self.waiting[0].arrived > self.targets[0]:
            self.late.append(self.waiting.popleft())
        while budget and (self.waiting or self.late) and len(self.running) < self.max_num_seqs:
            queue = self.waiting or self.late
            if self._kv_used() + queue[0].prompt > self.kv_tokens and self.running:
                break
            request = queue.popleft()
            self.running.append(request)
            chunk = min(budget, request.prompt)
            chunks.append((request, chunk))
            budget -= chunk
        prefill = sum(chunk for _, chunk in chunks)
        took = self.slow * (self.base + self.per_prefill * prefill + self.per_decode * len(decodes))
        if self.noise:
            took *= math.exp(self.chance.gauss(0.0, self.noise))
        self.time += took
        self.steps += 1
        self.step_tokens.observe(prefill + len(decodes))
        if decodes:
            self.itl.observe(took, len(decodes))
        for request, chunk in chunks:
            request.computed += chunk
            if request.computed >= request.prompt:
                self._token(request)
        for request in decodes:
            self._token(request)

    def _token(self, request):
        request.generated += 1
        self.generation_tokens += 1
        if request.generated == 1:
            request.first_token = self.time
            self.prompt_tokens += request.prompt
            self.ttft.observe(self.time - request.arrived)
        if request.generated >= request.output:
            self.running.remove(request)
            self.finished += 1
            self.outputs.append(request.output)
            pace = (self.time - request.first_token) / max(1, request.output - 1)
            ttft, tpot = self.targets
            self.in_target += request.first_token - request.arrived <= ttft and pace <= tpot
            if request.output > 1:
                self.tpot.observe(pace)

    def _kv_used(self):
        return sum(one.computed + one.generated for one in self.running)

    def sample(self):
        return Sample(
            time=self.time,
            running=len(self.running),
            waiting=len(self.waiting) + len(self.late),
            kv_usage=min(1.0, self._kv_used() / self.kv_tokens),
            preemptions=self.preemptions,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            ttft=self.ttft.value(),
            tpot=self.tpot.value(),
            itl=self.itl.value(),
            step_tokens=self.step_tokens.value(),
            waiting_prompt_tokens=sum(one.prompt for one in (*self.waiting, *self.late))
            + sum(one.prompt - one.computed for one in self.running if one.computed < one.prompt),
            limits=Limits(self.max_num_seqs, self.max_num_batched_tokens),
            kv_tokens=self.kv_tokens if self.reports_cache or self.reported_cost is not None else None,
            **({} if self.reported_cost is None else self._measured()),
        )

    def _measured(self):
        outputs = self.outputs
        return {
            "arrived": self.arrived,
            "arrived_tokens": self.arrived_tokens,
            "arrived_squares": self.arrived_squares,
            "output_mean": sum(outputs) / len(outputs) if outputs else None,
            "output_square": sum(one**2 for one in outputs) / len(outputs) if outputs else None,
            "cost": self.reported_cost,
            "cost_error": self.cost_error,
            "cost_steps": 1000,
        }
