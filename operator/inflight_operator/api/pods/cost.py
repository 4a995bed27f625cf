"""spec.cost: the price of a replica."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from inflight_operator.api.base import SpecModel, validation
from inflight_operator.api.pods.template import INT_OR_STRING, readable_quantity

_BOUNDS = (
    "type(self) == int ? (self > 0 && self <= 1000000) : (isQuantity(self) &&"
    " quantity(self).isGreaterThan(quantity('0')) && !quantity(self).isGreaterThan(quantity('1M')))"
)


class Cost(SpecModel):
    """Price of a replica, from which the status computes the cost of the service."""

    price_per_replica_hour: Annotated[
        str | int, AfterValidator(readable_quantity), Field(json_schema_extra=INT_OR_STRING)
    ] = Field(
        description="Price of one pod for an hour, all its accelerators together, such as '2.50' (in quotes).",
        json_schema_extra=validation(
            _BOUNDS, "cost.pricePerReplicaHour must be a number above zero and at most 1000000, such as '2.50'"
        ),
    )
    currency: str | None = Field(
        default=None,
        min_length=1,
        max_length=16,
        description="Currency of the price, such as USD; the status shows it.",
    )
