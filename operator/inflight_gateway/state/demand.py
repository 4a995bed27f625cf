"""Counters of the demand for each service: what its clients ask for, beside what its engines were sent.

Late binding sends engines what they can start. Their arrivals are then their capacity, and the rest is held or refused
here. A request counts when its tenant's limits have admitted it: one above them asks for no replica, so it is no
demand. One that the bounds of the queue or the maximum wait refuse is, and counts again each time a client retries it,
as refused requests of engines do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.types import RequestView

MAX_OUTPUT_TOKENS = 2**31
"""Most output tokens that are expected of a request. One that allows more is refused by its engine, and the sums of a
class must fit the 64 bits of a line for the operator, which is one for all services."""


@dataclass(slots=True)
class ClassDemand:
    """Requests of a class at this gateway pod since it started: counters, so a lost line causes no error.

    Tokens are this gateway's estimates. Their unit cancels out: engines measure what they were sent, and only the ratio
    of arrived to sent tokens is used.

    Attributes:
        arrived: requests that the limits of their tenants admitted; one that another gateway pod admitted counts there.
        prompt_tokens, prompt_squares: sums over them of prompt tokens, and of their squares.
        output_tokens: output tokens expected of them, over all of their choices.
        refused: those of them that the queue's bounds or the maximum wait refused.
        sent: attempts that were sent to engines.
        sent_prompt_tokens, sent_output_tokens: sums over these, of the same tokens.
    """

    arrived: int = 0
    prompt_tokens: int = 0
    prompt_squares: int = 0
    output_tokens: int = 0
    refused: int = 0
    sent: int = 0
    sent_prompt_tokens: int = 0
    sent_output_tokens: int = 0


class DemandCounters:
    """The counters of all services, by class.

    Args:
        answer_tokens: returns the output tokens expected of each choice of a request.

    Attributes:
        changed: services whose counters have changed since the reader emptied it (`state.load.GatewayLoads`).
    """

    def __init__(self, answer_tokens: Callable[[RequestView], float]) -> None:
        self.changed: set[ServiceKey] = set()
        self._answer_tokens = answer_tokens
        self._services: dict[ServiceKey, dict[str, ClassDemand]] = {}

    def of(self, service: ServiceKey) -> Mapping[str, ClassDemand]:
        """Returns the counters of a service by class; classes without a request are missing."""
        return self._services.get(service, {})

    def expected_output(self, view: RequestView) -> int:
        """Returns the output tokens expected of all choices of a request."""
        return min(MAX_OUTPUT_TOKENS, round(view.choices * self._answer_tokens(view)))

    def arrived(self, view: RequestView, output_tokens: int) -> None:
        """Counts a request that was admitted. Args: output_tokens: see `expected_output`."""
        one = self._class(view)
        one.arrived += 1
        one.prompt_tokens += view.prompt_tokens
        one.prompt_squares += view.prompt_tokens**2
        one.output_tokens += output_tokens

    def refused(self, view: RequestView) -> None:
        """Counts an admitted request that is refused because no replica can start it in time."""
        self._class(view).refused += 1

    def sent(self, view: RequestView, output_tokens: int) -> None:
        """Counts an attempt that goes to an engine. Args: output_tokens: as when the request arrived."""
        one = self._class(view)
        one.sent += 1
        one.sent_prompt_tokens += view.prompt_tokens
        one.sent_output_tokens += output_tokens

    def forget(self, service: ServiceKey) -> None:
        """Removes the counters of a deleted service."""
        self._services.pop(service, None)

    def _class(self, view: RequestView) -> ClassDemand:
        self.changed.add(view.service)
        classes = self._services.setdefault(view.service, {})
        one = classes.get(view.service_class)
        if one is None:
            one = classes[view.service_class] = ClassDemand()
        return one
