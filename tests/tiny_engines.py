"""Engines over the tiny checkpoints for tests: any cache size, either loop, compiled programs shared between tests."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jaxfold.checkpoints import open_checkpoint
from jaxfold.runtime.api import EngineEvent
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import Failed
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import Guide
from jaxfold.runtime.api import LabelScores
from jaxfold.runtime.api import PromptScores
from jaxfold.runtime.api import RequestStats
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.api import Tokens
from jaxfold.runtime.api import TokenScore
from jaxfold.runtime.drafting.costs import RoundCosts
from jaxfold.runtime.engine import LocalEngine
from jaxfold.runtime.lanes import LanePages
from jaxfold.runtime.loader import start_engine
from jaxfold.runtime.memory import plan_cache
from jaxfold.runtime.options import EngineOptions
from jaxfold.runtime.pages import PagePool
from jaxfold.runtime.placement import place
from jaxfold.runtime.prefix_tree import GroupSpec
from jaxfold.runtime.table import StepShape
from jaxfold.runtime.weights import load_weights
from jaxfold.runtime.weights import read_config
from pallas_kernels.paged_attention.xla import BLOCK

TINY = Path(__file__).resolve().parent / "golden" / "tiny"
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
CONTEXT = 512
PAGE = 16
LANES = 3
GREEDY = SamplingParams(temperature=0.0)


def tiny_engine(
    family: str,
    cache_dir: Path,
    *,
    short: bool = False,
    dtype: Any = jnp.bfloat16,
    tp: int = 1,
    drafter: Any = None,
    **options: Any,
) -> LocalEngine:
    """An engine of `LANES` lanes over a tiny checkpoint; a `short` one hands out pages for one whole context only."""
    checkpoint = open_checkpoint(TINY / family)
    cfg, how = read_config(checkpoint)
    kind = jnp.dtype(dtype)
    plain = jnp.dtype(jnp.bfloat16) if kind == jnp.int8 else kind
    cfg = replace(cfg, compute_dtype=plain.name, max_position=CONTEXT)
    spread = place(cfg, tp)
    weights = load_weights(checkpoint, cfg, how, kind, None, place=spread)
    local = spread.sharing.local(cfg)
    plan = plan_cache(
        local, context=CONTEXT, lanes=LANES, page_size=PAGE, block=BLOCK, itemsize=plain.itemsize, budget=1 << 30
    )
    settings = EngineOptions(
        model=TINY / family, parallel=LANES, page_size=PAGE, compile_cache_dir=cache_dir, tp=tp, **options
    )
    engine, _ = start_engine(cfg, weights, plan, plain, settings, checkpoint.fingerprint, drafter=drafter)
    if short:
        # The arrays keep their size, so that the programs are the ones that other tests compiled.
        pages = engine.core.pages
        groups = {
            group: GroupSpec(PagePool(1 + spec.pool.total // LANES), spec.window)
            for group, spec in pages.groups.items()
        }
        engine.core.pages = LanePages(groups, PAGE, pages.widths, pages.reuse)
    return engine


class FreeWindows(RoundCosts):
    """Costs for which drafts pay wherever there are some, whatever the machine."""

    def __init__(self) -> None:
        super().__init__({})

    def of(self, shape: StepShape) -> float:
        return 0.5 if shape.columns > 1 else 1.0

    def saw(self, shape: StepShape, seconds: float) -> None:
        pass


@dataclass
class Reply:
    """What one request's sink received."""

    ids: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    prompt_scores: list[TokenScore] = field(default_factory=list)
    labels: tuple[float, ...] = ()
    end: Finished | Failed | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def sink(self, event: EngineEvent) -> None:
        assert self.end is None, "an event came after the last one"
        if isinstance(event, Tokens):
            self.ids.extend(event.ids)
            self.scores.extend(event.scores)
        elif isinstance(event, PromptScores):
            self.prompt_scores.extend(event.scores)
        elif isinstance(event, LabelScores):
            assert not self.labels, "labels were scored twice"
            self.labels = event.logprobs
        else:
            self.end = event
            self.done.set()

    def stats(self) -> RequestStats:
        """Wait for the end; it must not be a failure."""
        assert self.done.wait(120), "the request did not end"
        assert isinstance(self.end, Finished), self.end
        return self.end.stats


@dataclass(frozen=True)
class Ask:
    """One request of a test."""

    prompt: tuple[int, ...]
    tokens: int = 24
    sampling: SamplingParams = GREEDY
    background: bool = False
    stop_ids: frozenset[int] = frozenset()
    salt: str = ""
    draft: bool = True
    logprobs: int | None = None
    score_prompt: bool = False
    labels: tuple[int, ...] = ()
    guide: Guide | None = None


class Client:
    """Submits requests with ids of its own."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self._count = 0

    def start(self, ask: Ask, **fields: Any) -> Reply:
        self._count += 1
        reply = Reply()
        request = EngineRequest(
            request_id=fields.pop("request_id", f"r{self._count}"),
            prompt_ids=ask.prompt,
            max_tokens=ask.tokens,
            sampling=ask.sampling,
            stop_ids=ask.stop_ids,
            background=ask.background,
            cache_salt=ask.salt,
            draft=ask.draft,
            logprobs=ask.logprobs,
            score_prompt=ask.score_prompt,
            labels=ask.labels,
            guide=ask.guide,
            **fields,
        )
        self.engine.submit(request, reply.sink)
        return reply

    def run(self, ask: Ask, **fields: Any) -> Reply:
        reply = self.start(ask, **fields)
        reply.stats()
        return reply

    def together(self, asks: Sequence[Ask]) -> list[Reply]:
        replies = [self.start(ask) for ask in asks]
        for reply in replies:
            reply.stats()
        return replies
