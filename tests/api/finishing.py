"""The last event of a reply, for tests that write replies without an engine."""

from jaxfold.chat.types import Finish
from jaxfold.chat.types import StopReason
from jaxfold.chat.types import Usage
from jaxfold.runtime.api import RequestStats


def finish(reason: StopReason, usage: Usage) -> Finish:
    """A reply that took no time."""
    prompt, reply, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    stats = RequestStats(prompt, reply, cached, 0.0, 0.0, 0.0, None, 1, 0, 0, 0, "sha", 7)
    return Finish(reason, usage, stats, (1,) * reply)
