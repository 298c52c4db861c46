"""Totals of the engine since it started: plain numbers that only grow, written by its thread, read by anyone."""

from dataclasses import dataclass
from dataclasses import field

from jaxfold.runtime.api import RequestStats


@dataclass
class Counters:
    """Totals of finished requests and of work done. Times are seconds."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    rounds: int = 0
    chunks: int = 0
    preemptions: int = 0
    cancelled: int = 0
    failed: int = 0
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count_drafts(self, source: str, drafted: int, accepted: int) -> None:
        """Count the drafts of one proposer in one lane's round."""
        before = self.drafts.get(source, (0, 0))
        # A new dict each time: others may be reading the old one.
        self.drafts = {**self.drafts, source: (before[0] + drafted, before[1] + accepted)}

    def add(self, stats: RequestStats) -> None:
        """Count a request that ended."""
        self.requests += 1
        self.prompt_tokens += stats.prompt_tokens
        self.cached_tokens += stats.cached_tokens
        self.completion_tokens += stats.completion_tokens
        self.prefill_seconds += stats.prefill_s
        self.decode_seconds += stats.decode_s
