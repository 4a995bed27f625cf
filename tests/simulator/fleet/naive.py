"""A fleet of fixed replicas, step by step, with lists and loops: what the simulation is compared with."""

from math import ceil, inf, nan

from inflight_cost.model import StepWork, attended_tokens
from inflight_simulator.fleet.replicas.noise import Noise


class Sequence:
    def __init__(self, number, prompt, output):
        self.number, self.prompt, self.length = number, prompt, prompt + output
        self.known, self.computed, self.blocks, self.decodes = prompt, 0, 0, False


class NaiveReplica:
    """A replica that runs one step after the other, first come, first served; the last to arrive is preempted."""

    def __init__(self, config, number):
        model = config.replica
        self.cost, self.size, self.limits = model.cost, model.block_size, config.limits
        self.free = self.num_blocks = model.kv_tokens // model.block_size
        self.headroom = int(model.kv_headroom * self.free)
        self.noise = Noise(model.noise, (config.seed, number))
        self.waiting, self.resumed, self.running = [], [], []
        self.now, self.end = 0.0, None
        self.first, self.ended = {}, {}
        self.preemptions = 0
        self.refused = {}
        """By number of a request that was next and did not fit: since when, blocks free then, and starts so far."""
        self.starts = 0

    @property
    def outstanding(self):
        return len(self.waiting) + len(self.resumed) + len(self.running)

    @property
    def pending(self):
        queued = sum(one.known for one in [*self.waiting, *self.resumed])
        return queued + sum(one.known - one.computed for one in self.running if not one.decodes)

    def add(self, number, prompt, output, now):
        if not self.outstanding:
            self.now = now
        self.waiting.append(Sequence(number, prompt, output))

    def run(self, until):
        """Steps that start before `until`, and the ends of all up to it."""
        while True:
            if self.end is not None:
                if self.end > until:
                    return
                self.finish()
            if not self.outstanding or self.now >= until:
                return
            self.start()

    def start(self):
        decodes = [one for one in self.running if one.decodes]
        preempted = False
        while True:
            growing = [one for one in decodes if ceil(one.known / self.size) > one.blocks]
            if len(growing) <= self.free:
                break
            victim = max(sorted(self.running, key=lambda one: one.number)[1:], key=lambda one: one.number)
            self.running.remove(victim)
            decodes = [one for one in decodes if one is not victim]
            self.free += victim.blocks
            victim.blocks, victim.computed, victim.decodes = 0, 0, False
            self.resumed = sorted([*self.resumed, victim], key=lambda one: one.number)
            self.preemptions += 1
            preempted = True
        for one in growing:
            one.blocks += 1
            self.free -= 1
        budget = self.limits.max_num_batched_tokens - len(decodes)
        self.chunks = []

        def chunk(one):
            nonlocal budget
            length = min(one.known - one.computed, budget)
            if length:
                self.chunks.append((one, length))
                budget -= length

        for one in self.running:
            if not one.decodes:
                chunk(one)
        while not preempted and budget and len(self.running) < self.limits.max_num_seqs:
            one = self.next()
            if one is None:
                break
            (self.resumed if one in self.resumed else self.waiting).remove(one)
            one.blocks, one.start = self.need(one), self.starts
            self.starts += 1
            self.refused.pop(one.number, None)
            self.free -= one.blocks
            self.running.append(one)
            chunk(one)
        self.decoding = decodes
        work = StepWork(
            len(decodes),
            sum(length for _, length in self.chunks),
            sum(one.known for one in decodes),
            sum(attended_tokens(one.computed, length) for one, length in self.chunks),
        )
        self.end = self.now + self.cost.seconds(work) * float(self.noise.ahead(1)[0])
        self.noise.use(1)

    def need(self, one):
        return ceil(one.known / self.size)

    def fits(self, one):
        return self.need(one) + (self.headroom if self.running else 0) <= self.free

    def next(self):
        """Who starts: the first; where that does not fit, the first new one of the four behind it that may pass."""
        queue = self.resumed or self.waiting
        if not queue:
            return None
        first = queue[0]
        if self.fits(first):
            return first
        since, room, starts = self.refused.setdefault(first.number, (self.now, self.free, self.starts))
        if self.resumed:
            return None
        left = self.num_blocks - self.headroom - self.need(first)
        beside = sum(one.blocks for one in self.running if ceil(one.prompt / self.size) <= left)
        started = sum(one.blocks for one in self.running if one.start >= starts)
        for one in queue[1:5]:
            in_time = self.now < since + 10 and started + self.need(one) <= room
            if (in_time or beside + self.need(one) <= left) and self.fits(one):
                return one
        return None

    def finish(self):
        self.now, self.end = self.end, None
        for one in self.decoding:
            one.computed += 1
            one.known += 1
        for one, length in self.chunks:
            one.computed += length
            if one.computed == one.known:
                one.known += 1
                one.decodes = True
                self.first.setdefault(one.number, self.now)
        for one in [one for one in self.running if one.known == one.length]:
            self.running.remove(one)
            self.free += one.blocks
            self.ended[one.number] = self.now


def naive_fleet(requests, config, count):
    """Times of first and last tokens by request, where each went, and all preemptions."""
    replicas = [NaiveReplica(config, number) for number in range(count)]
    went = []
    for number, (now, prompt, output) in enumerate(
        zip(requests.arrival_s, requests.prompt_tokens, requests.output_tokens, strict=True)
    ):
        for replica in replicas:
            replica.run(now)
        if config.routing == "round-robin":
            place = number % count
        elif config.routing == "least-work":
            place = min(range(count), key=lambda index: (replicas[index].pending, replicas[index].outstanding, index))
        else:
            place = min(range(count), key=lambda index: (replicas[index].outstanding, index))
        went.append(place)
        replicas[place].add(number, int(prompt), int(output), float(now))
    for replica in replicas:
        replica.run(inf)
    first = [next((one.first[n] for one in replicas if n in one.first), nan) for n in range(len(requests))]
    ended = [next((one.ended[n] for one in replicas if n in one.ended), nan) for n in range(len(requests))]
    return first, ended, went, sum(one.preemptions for one in replicas)
