"""What a client that leaves ends."""

from typing import Protocol


class Cancellable(Protocol):
    """What an exchange has to end when it ends."""

    def cancel(self) -> None: ...
