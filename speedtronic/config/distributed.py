"""Settings of training together with others; ``solo`` is the run of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from speedtronic.core.settings import Settings

if TYPE_CHECKING:
    from speedtronic.core.types import SyncCoordinator


class DistributedSettings(Settings, ABC):
    """What every choice of ``distributed`` has."""

    section: ClassVar[str] = "distributed"

    reset_inner_optimizer: bool | None = None
    """Whether the optimizer's state is cleared when a coordinator asks; null: as it asks."""

    @abstractmethod
    def build(self) -> SyncCoordinator | None:
        """Build the coordinator, or return None where there is nobody to coordinate with."""


class SoloSettings(DistributedSettings):
    """One process, no coordinator."""

    def build(self) -> None:
        """Return None: nobody to coordinate with."""
        return
