"""Drafts from a second, smaller model with the same tokenizer: every lane that wants some runs in one batch.

The draft model draws by the keyed rule too, with the reply's own seed and positions, so that it meets the same noise as
the model it guesses for: where the two agree on the odds they mostly agree on the token, sampled or greedy.
Penalties, biases and grammars are left to the verification.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxfold.models.plan import Part
from jaxfold.models.plan import PartShape
from jaxfold.models.plan import Plan
from jaxfold.models.plan import empty_part
from jaxfold.runtime.device import Device
from jaxfold.runtime.drafting.base import UNMADE
from jaxfold.runtime.drafting.base import Proposal
from jaxfold.runtime.drafting.costs import RoundCosts
from jaxfold.runtime.lanes import Lane
from jaxfold.runtime.sampling.rows import prepare
from jaxfold.runtime.sampling.rows import rows_from
from jaxfold.runtime.table import StepShape

CONFIDENCE = 0.7
"""What is expected of a draft before any was verified."""


class LaneText:
    """What the draft model knows of one reply: a `Proposer` that promises drafts.

    `text` is prompt and reply; the keys of its first `fed` tokens are in the draft model's cache, and those of the
    guessed tokens that would follow them.
    """

    name = "model"

    def __init__(self, model: "DraftModel", lane: Lane) -> None:
        request = lane.job.request
        plain = replace(
            request.sampling, repeat_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=()
        )
        self.slot = lane.slot
        self.text = list(request.prompt_ids)
        self.fed = 0
        self.prepared = prepare(plain, lane.job.seed)
        self._guessed: tuple[int, ...] = ()
        self._model = model

    @property
    def behind(self) -> int:
        """Tokens whose keys are missing; the last one's always are."""
        return len(self.text) - self.fed

    def absorb(self, tokens: Sequence[int]) -> None:
        """See `Proposer.absorb`."""
        for token in tokens:
            # Nothing is guessed right any more after the first wrong one.
            right = bool(self._guessed) and self._guessed[0] == token
            self._guessed = self._guessed[1:] if right else ()
            self.fed += right
            self.text.append(token)

    def propose(self, limit: int, ahead: int) -> Proposal | None:
        """See `Proposer.propose`. The tokens are made by `DraftModel.make`, for all lanes at once."""
        count = min(limit, self._model.context - len(self.text) - ahead)
        if count < 1:
            return None
        if self.behind > 1:
            self._model.feed(self)
        return Proposal(self.name, (UNMADE,) * count, CONFIDENCE) if self.behind == 1 else None

    def guessed(self, tokens: Sequence[int]) -> None:
        """The draft model's cache goes on with the whole text and these tokens."""
        self.fed = len(self.text)
        self._guessed = tuple(tokens)


class DraftModel:
    """A model on its own `Device`, where each slot has pages of its own for `context` tokens.

    `vocab` is the size of the other model's vocabulary: what lies beyond is no draft.
    """

    def __init__(self, device: Device, costs: RoundCosts, context: int, vocab: int) -> None:
        self._device = device
        self._costs = costs
        self._vocab = vocab
        self.context = context
        self._texts: dict[int, LaneText] = {}

    def open(self, lane: Lane) -> LaneText:
        """See `Drafter.open`."""
        text = LaneText(self, lane)
        self._texts[lane.slot] = text
        return text

    def seconds(self, lanes: int, drafts: int) -> float:
        """See `Drafter.seconds`."""
        return drafts * self._costs.of(self._shape(lanes))

    def rebuild(self) -> None:
        """See `Drafter.rebuild`."""
        self._device.rebuild()
        self._texts.clear()

    def feed(self, text: LaneText) -> None:
        """Enter tokens of a text whose keys are missing, as many as one chunk holds, and never the last."""
        device = self._device
        shape = device.programs.table.chunk_shape(text.behind - 1, shared=False)
        length = min(text.behind - 1, shape.chunk)
        part = self._part(shape.parts[0], [text], [text.fed], [length])
        part["tokens"][0, :length] = text.text[text.fed : text.fed + length]
        self._step(shape, part, [])
        text.fed += length

    def make(self, slots: Sequence[int], count: int) -> list[tuple[int, ...]]:
        """See `Drafter.make`."""
        texts = [self._texts[slot] for slot in slots]
        shape = self._shape(len(texts))
        width = self._device.programs.table.draw_rows(shape)
        drawn = []
        for step in range(count):
            starts = [len(text.text) - 1 + step for text in texts]
            part = self._part(shape.parts[0], texts, starts, [1] * len(texts))
            # The first step takes the reply's last token, the others what the step before them drew.
            part["tokens"][: len(texts), 0] = [-1 if step else text.text[-1] for text in texts]
            hidden = self._step(shape, part, range(len(texts)))
            rows = rows_from(
                [text.prepared for text in texts], [start + 1 for start in starts], [text.slot for text in texts], width
            )
            drawn.append(self._device.draw(hidden, rows).tokens)
        made = np.stack([np.asarray(tokens)[: len(texts)] for tokens in drawn], axis=1).tolist()
        for text, tokens in zip(texts, made, strict=True):
            # The last one was drawn and not entered.
            text.guessed(tokens[:-1])
        return [self._known(tokens) for tokens in made]

    def _known(self, tokens: Sequence[int]) -> tuple[int, ...]:
        strange = next((i for i, token in enumerate(tokens) if token >= self._vocab), len(tokens))
        return tuple(tokens[:strange])

    def _shape(self, lanes: int) -> StepShape:
        return StepShape(self._device.programs.table.decode_width(lanes), 0)

    def _step(self, shape: StepShape, part: dict[str, Any], rows: Sequence[int]) -> jax.Array:
        device = self._device
        wanted = np.zeros(sum(device.programs.table.calls(shape)), np.int32)
        wanted[: len(rows)] = rows
        plan = Plan((Part(**part),), wanted)  # type: ignore[arg-type]
        return device.step(shape, plan)[0]

    def _part(
        self, shape: PartShape, texts: Sequence[LaneText], starts: Sequence[int], lengths: Sequence[int]
    ) -> dict[str, Any]:
        """The part of these texts' next rows, their tokens left out."""
        part = empty_part(shape, self._device.programs.table.widths)
        count = len(texts)
        part["slot"][:count] = [text.slot for text in texts]
        part["start"][:count] = starts
        part["length"][:count] = lengths
        part["keep"][:count] = [start > 0 for start in starts]
        each = -(-self.context // self._device.page_size)
        for table in part["tables"].values():
            for row, text in zip(table, texts, strict=False):
                row[:each] = np.arange(each) + 1 + text.slot * each
        return part
