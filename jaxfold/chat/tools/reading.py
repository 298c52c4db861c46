"""What a format's parser works on."""

from typing import Protocol

from jaxfold.chat.tools.offer import Offer
from jaxfold.chat.tools.source import Source


class Reading(Protocol):
    """The text to read, and the calls that it reports as it recognises them."""

    source: Source
    offer: Offer

    def begin(self, written: str) -> str:
        """A call of the tool whose name is `written` begins; its name as it was offered.

        Raises:
            NotACallError: no such tool is offered.
        """
        ...

    def piece(self, text: str) -> None:
        """More of the arguments' JSON text. The first piece makes the call one that may be shown."""
        ...

    def end(self) -> None:
        """The call that was begun is complete."""
        ...

    @property
    def certain(self) -> bool:
        """The call is so long that it is shown already, complete or not."""
        ...
