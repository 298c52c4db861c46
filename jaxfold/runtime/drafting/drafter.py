"""What a source of drafts is that computes on the device."""

from collections.abc import Sequence
from typing import Protocol

from jaxfold.runtime.drafting.base import Proposer
from jaxfold.runtime.lanes import Lane


class Drafter(Protocol):
    """A source of drafts that computes on the device, for many lanes at once: a draft model, or a head of the model.

    Its proposers promise drafts (`UNMADE`); only those of a round that is going to verify them are made.
    """

    def open(self, lane: Lane) -> Proposer:
        """The proposer of a reply that begins, or begins again, in this lane."""
        ...

    def seconds(self, lanes: int, drafts: int) -> float:
        """What `drafts` tokens for each of `lanes` lanes cost."""
        ...

    def make(self, slots: Sequence[int], count: int) -> list[tuple[int, ...]]:
        """At most `count` tokens for the reply in each of these slots. All of its tokens have been absorbed."""
        ...

    def rebuild(self) -> None:
        """A step has failed and no reply is left: begin anew."""
        ...
