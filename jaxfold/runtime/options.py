"""How an engine is asked to start: one frozen record, checked when it is made. No JAX here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from typing import get_args

WeightDtype = Literal["auto", "f32", "bf16", "int8"]
ComputeDtype = Literal["auto", "f32", "bf16"]
KvDtype = Literal["auto", "bf16", "f32"]

KEY_BLOCK = 256
"""Attention folds keys in blocks of this many absolute positions, so a page must divide it."""

MOST_LANES = 256
"""Each lane takes its own penalty counts and biases on the device, over the whole vocabulary."""

SMALLEST_PAGE = 16

MOST_DRAFTS = 31
"""A wider window costs what a prefill chunk costs."""


class OptionsError(ValueError):
    """A setting that no engine can start with. The message is one sentence; `field` names the setting."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        super().__init__(f"{field} {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Everything that `load_engine` needs to know.

    Attributes:
        model: path of the checkpoint (a GGUF file, a Hugging Face directory or an Orbax directory).
        context: tokens of one conversation, prompt and reply together; None means what the model was trained for, or
            what the memory holds if that is less. An explicit value that cannot fit is refused, never shortened.
        parallel: replies that run at the same time (lanes).
        weight_dtype, compute_dtype, kv_dtype: "auto" chooses by platform and model.
        tp: devices that the model is split over (tensor parallelism).
        page_size: tokens of one cache page; it divides 256, because attention folds keys in blocks of 256.
        memory_fraction: part of the memory free at start that weights, cache and programs may take, in (0, 1].
        max_queue: requests that may wait; more are refused at once.
        max_queue_tokens: prompt tokens that may wait, summed over the waiting requests.
        decode_share: seconds of decoding owed to the running replies for each second of prefill, in [0, 1];
            0 runs whole prompts first.
        overlap: dispatch the next step before the last one's tokens are read (the tokens are the same either way).
        prefix_cache: reuse the pages of earlier prompts.
        draft: guess next tokens and verify several in one step where that is expected to be faster; the tokens are
            the same either way.
        draft_tokens: most tokens that are guessed for a reply at once.
        draft_model: path of a smaller checkpoint with the same tokenizer that guesses too.
        compile_cache_dir, weight_cache_dir: where a second start finds compiled programs and converted weights;
            None keeps nothing on disk.
        seed_salt: goes into the seed of requests that name none.
        self_check: at load, compare the bits of the same rows run alone and in company, and set the exactness level.

    Raises:
        OptionsError: a value is out of its range.
    """

    model: Path
    context: int | None = None
    parallel: int = 8
    weight_dtype: WeightDtype = "auto"
    compute_dtype: ComputeDtype = "auto"
    kv_dtype: KvDtype = "auto"
    tp: int = 1
    page_size: int = 64
    memory_fraction: float = 0.8
    max_queue: int = 256
    max_queue_tokens: int = 1 << 20
    decode_share: float = 0.25
    overlap: bool = True
    prefix_cache: bool = True
    draft: bool = True
    draft_tokens: int = 7
    draft_model: Path | None = None
    compile_cache_dir: Path | None = None
    weight_cache_dir: Path | None = None
    seed_salt: int = 0
    self_check: bool = True

    def __post_init__(self) -> None:
        _at_least(1, context=self.context, parallel=self.parallel, max_queue=self.max_queue)
        _at_least(1, max_queue_tokens=self.max_queue_tokens, tp=self.tp)
        _one_of(weight_dtype=(self.weight_dtype, get_args(WeightDtype)))
        _one_of(compute_dtype=(self.compute_dtype, get_args(ComputeDtype)), kv_dtype=(self.kv_dtype, get_args(KvDtype)))
        if self.parallel > MOST_LANES:
            raise OptionsError("parallel", f"must be at most {MOST_LANES}, not {self.parallel}")
        if self.draft_model is not None and not self.draft:
            raise OptionsError("draft_model", "is of no use where drafts are switched off")
        if not 1 <= self.draft_tokens <= MOST_DRAFTS:
            raise OptionsError("draft_tokens", f"must be between 1 and {MOST_DRAFTS}, not {self.draft_tokens}")
        if self.page_size < SMALLEST_PAGE or KEY_BLOCK % self.page_size:
            raise OptionsError("page_size", f"must be 16, 32, 64, 128 or 256, not {self.page_size}")
        # Written so that nan fails too.
        if not 0 < self.memory_fraction <= 1:
            raise OptionsError("memory_fraction", f"must be above 0 and at most 1, not {self.memory_fraction:g}")
        if not 0 <= self.decode_share <= 1:
            raise OptionsError("decode_share", f"must be between 0 and 1, not {self.decode_share:g}")


def _at_least(low: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < low:
            raise OptionsError(name, f"must be at least {low}, not {value}")


def _one_of(**choices: tuple[str, tuple[str, ...]]) -> None:
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise OptionsError(name, f"must be one of {', '.join(allowed)}, not {value!r}")
