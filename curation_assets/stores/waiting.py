"""Waiting for who holds something: said once for each holder, by name."""

from collections.abc import Callable
from dataclasses import dataclass

from curation_assets.core.errors import ExpectedError

Notice = Callable[[str], None]


class PoolHeldError(ExpectedError):
    """Another command holds the pool, and the caller does not wait."""


@dataclass
class Waiting:
    """One who wants to hold `what`. Where not `wait`, a holder is an error that ends with `advice`."""

    what: str
    on_notice: Notice = lambda sentence: None
    wait: bool = True
    advice: str = "wait for its end, or leave out --no-wait"
    notified: str = ""  # the holder that was named last

    def name(self, holder: str) -> None:
        """Say who is waited for. Raises PoolHeldError."""
        if not self.wait:
            raise PoolHeldError(f"{holder} holds {self.what}; {self.advice}")
        if holder != self.notified:
            self.on_notice(f"waits for {holder}: it holds {self.what}")
            self.notified = holder

    def end(self) -> None:
        """It is free: said where somebody was waited for."""
        if self.notified:
            self.on_notice(f"goes on: {self.what} is free")
            self.notified = ""
