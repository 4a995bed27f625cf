"""The base class of phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from e2e.disruptions.stage import Stage


class Phase:
    """One disruption.

    The order is: `set_up`, traffic begins, `disturb`, `restore`, the service is back at its start, traffic ends. So
    requests are sent through the way back too. `restore` is called once whatever happened before, also when
    `disturb` was stopped half-way.

    Attributes:
        name: as `--phases` takes it.
        about: what happens, in a line.
        from_node: it is made from the node, which has to be this machine.
        of_gateway: it disrupts the gateway, and needs a service behind it.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    from_node: ClassVar[bool] = False
    of_gateway: ClassVar[bool] = False

    def set_up(self, stage: Stage) -> None:
        """Before the traffic."""

    def disturb(self, stage: Stage) -> None:
        """Under traffic; returns when the service has recovered."""
        raise NotImplementedError

    def restore(self, stage: Stage) -> None:
        """Undo all changes outside the service's spec, which `run_phase` restores itself."""
