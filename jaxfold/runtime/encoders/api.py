"""The door to an encoder: what the layers above may see. No JAX here."""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

MAX_CALL_SEQUENCES = 64
"""Sequences that one call of the encoder takes together."""
MAX_CALL_TOKENS = 4096
"""Tokens that one call of the encoder takes together; a longer sequence goes alone."""


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """Facts that do not change while the encoder runs.

    `exact` says what the check at start has found: a text's vector has the same bits alone and in company.
    """

    model_type: str
    vocab_size: int
    context_length: int
    dimensions: int
    pooling: str
    weight_dtype: str
    compute_dtype: str
    weight_bytes: int
    platform: str
    programs: int
    exact: bool


@dataclass(frozen=True, slots=True)
class EncoderSnapshot:
    """The encoder's state now, and counters since its start. Seconds are wall-clock time of the encoder's calls."""

    ready: bool
    healthy: bool
    requests_running: int
    requests_waiting: int
    requests_total: int
    cancelled_total: int
    failed_total: int
    sequences_total: int
    tokens_total: int
    rows_total: int
    calls_total: int
    seconds_total: float
    compiles_after_ready: int


@dataclass(frozen=True, slots=True)
class Embedded:
    """A finished request: float32[sequences, dimensions], not normalised, in the order that was asked for."""

    vectors: np.ndarray
    queue_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class EmbeddingFailed:
    """A request that ended without a result: a step failed, or the request was cancelled (`cancelled`)."""

    message: str
    cancelled: bool = False


Outcome = Embedded | EmbeddingFailed
EmbeddingSink = Callable[[Outcome], None]
"""Called once for each request, on the encoder's thread or on the thread that cancels; it must not block."""


class Ticket(Protocol):
    """A request that was taken."""

    def cancel(self) -> None:
        """Do without the result. Others that share a call with it are not affected."""
        ...


class EncoderEngine(Protocol):
    """Runs sequences of token ids. All methods may be called from any thread."""

    @property
    def info(self) -> EncoderInfo: ...

    def submit(self, sequences: Sequence[Sequence[int]], sink: EmbeddingSink) -> Ticket:
        """Queue a request; `sink` gets its outcome.

        Raises:
            ValueError: no sequence, an empty one, a longer one than the context, or an id outside the vocabulary.
            QueueFullError, NotReadyError: as with `runtime.api.Engine.submit`.
        """
        ...

    def snapshot(self) -> EncoderSnapshot: ...

    def mark_ready(self) -> None:
        """Programs that the process compiles from now on count as late ones."""
        ...

    def drain(self) -> None:
        """Refuse new requests; those that were taken go on."""
        ...

    def close(self, timeout_s: float = 10.0) -> None: ...
