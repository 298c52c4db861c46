"""Texts and token ids to unit vectors: the encoder as the routes of every protocol use it."""

import asyncio
import contextlib
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxfold.api.http.cancellable import Cancellable
from jaxfold.api.http.errors import unavailable
from jaxfold.chat.types import GenerationError
from jaxfold.chat.types import RequestError
from jaxfold.runtime.encoders.api import Embedded
from jaxfold.runtime.encoders.api import EncoderEngine
from jaxfold.runtime.encoders.api import Outcome
from jaxfold.tokenizers import TokenizerError
from jaxfold.tokenizers.encoder import EncoderTokenizer

MAX_INPUTS = 2048
MAX_TOKENS = 262_144
"""Tokens of one request, all inputs together."""
SMALL_TEXT = 4096
"""Characters up to which tokenising is not worth a thread."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a request wants vectors of: texts, or sequences of ids that hold the special tokens already.

    `field` is the name of the field they came from, and `single` says that it held one and no list.
    """

    field: str
    texts: Sequence[str] = ()
    ids: Sequence[Sequence[int]] = ()
    single: bool = False

    def path(self, index: int) -> str:
        return self.field if self.single else f"{self.field}[{index}]"


@dataclass(frozen=True, slots=True)
class Vectors:
    """Unit vectors float32[inputs, dimensions], the tokens that were read, and where the time went, in seconds."""

    values: np.ndarray
    tokens: int
    queue_s: float
    run_s: float


class EmbeddingService:
    """One encoder and its tokenizer. Used on the event loop's thread."""

    def __init__(self, engine: EncoderEngine, tokenizer: EncoderTokenizer) -> None:
        self.engine = engine
        self.tokenizer = tokenizer

    async def embed(
        self, inputs: Inputs, adopt: Callable[[Cancellable], None], *, dimensions: int | None, truncate: bool
    ) -> Vectors:
        """The vectors of all inputs, in their order.

        Args:
            adopt: given the request as the encoder took it, to cancel it if its client leaves.
            dimensions: keep this many leading numbers of each vector, and make it a unit vector again.
            truncate: cut a text that is longer than the encoder's context; its last special token stays.

        Raises:
            RequestError: 400 with the path of what is wrong.
            EngineError, ApiError, GenerationError: the encoder is full, going down, or failed.
        """
        if dimensions is not None and dimensions > self.engine.info.dimensions:
            most = self.engine.info.dimensions
            raise RequestError(f"dimensions must be at most {most}, which is all that the model has", "dimensions")
        sequences = await self._sequences(inputs, truncate)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()

        def settle(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        def sink(outcome: Outcome) -> None:
            # The loop may be closed when the last requests are cut off.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, outcome)

        adopt(self.engine.submit(sequences, sink))
        outcome = await future
        if not isinstance(outcome, Embedded):
            raise unavailable("the server is shutting down") if outcome.cancelled else GenerationError(outcome.message)
        tokens = sum(map(len, sequences))
        return Vectors(unit(outcome.vectors, dimensions), tokens, outcome.queue_s, outcome.run_s)

    async def _sequences(self, inputs: Inputs, truncate: bool) -> Sequence[Sequence[int]]:
        """The ids of every input, within the limits."""
        if inputs.texts:
            most = self.engine.info.context_length if truncate else None
            try:
                if sum(map(len, inputs.texts)) <= SMALL_TEXT:
                    sequences: Sequence[Sequence[int]] = self.tokenizer.encode(inputs.texts, most)
                else:
                    sequences = await asyncio.to_thread(self.tokenizer.encode, inputs.texts, most)
            except TokenizerError as error:
                raise RequestError(str(error), inputs.field) from None
        else:
            sequences = inputs.ids
            self._check_ids(inputs)
        self._check_lengths(inputs, sequences)
        return sequences

    def _check_ids(self, inputs: Inputs) -> None:
        vocabulary = self.engine.info.vocab_size
        for index, ids in enumerate(inputs.ids):
            if min(ids) < 0 or max(ids) >= vocabulary:
                path = inputs.path(index)
                raise RequestError(f"{path} holds an id outside the vocabulary (0 to {vocabulary - 1})", path)

    def _check_lengths(self, inputs: Inputs, sequences: Sequence[Sequence[int]]) -> None:
        most = self.engine.info.context_length
        for index, sequence in enumerate(sequences):
            if len(sequence) > most:
                path = inputs.path(index)
                message = f"This model's maximum context length is {most} tokens, but {path} has {len(sequence)}."
                raise RequestError(message, path, code="context_length_exceeded")
        total = sum(map(len, sequences))
        if total > MAX_TOKENS:
            raise RequestError(f"{inputs.field} has {total} tokens; one request takes {MAX_TOKENS}", inputs.field)


def unit(vectors: np.ndarray, dimensions: int | None) -> np.ndarray:
    """The leading numbers of each row at length 1: float32[n, d]. Each row is summed by itself."""
    kept = vectors[:, :dimensions].astype(np.float64)
    lengths = np.array([np.sqrt(np.square(row).sum()) for row in kept])
    scaled: np.ndarray = (kept / np.maximum(lengths, 1e-12)[:, None]).astype(np.float32)
    return scaled
