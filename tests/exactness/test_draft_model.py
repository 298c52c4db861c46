"""A draft model changes speed and nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint
from jaxfold.runtime.draft_loader import DraftSource
from jaxfold.runtime.draft_loader import check_same_tokens
from jaxfold.runtime.draft_loader import load_draft
from jaxfold.runtime.drafting.model import DraftModel
from jaxfold.runtime.loader import choose_dtypes
from jaxfold.runtime.options import EngineOptions
from jaxfold.runtime.options import OptionsError
from jaxfold.runtime.table import StepShape
from jaxfold.runtime.weights import read_config
from tests.byte_tokenizer import ByteTokenizer
from tests.exactness.test_engine_exact import SAMPLINGS
from tests.exactness.test_engine_exact import mixed
from tests.exactness.test_engine_exact import prompt
from tests.exactness.test_engine_exact import wait_idle
from tests.tiny_engines import CONTEXT
from tests.tiny_engines import LANES
from tests.tiny_engines import TINY
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import FreeWindows
from tests.tiny_engines import tiny_engine


class Free(FreeWindows):
    """Drafts cost next to nothing, whatever the machine."""

    def of(self, shape: StepShape) -> float:
        return 0.001


def draft_model(family: str, programs_dir: Path) -> DraftModel:
    options = EngineOptions(model=TINY / family, parallel=LANES, page_size=16, compile_cache_dir=programs_dir)
    checkpoint = open_checkpoint(TINY / family)
    cfg, how = read_config(checkpoint)
    cfg = replace(cfg, compute_dtype="bfloat16", max_position=CONTEXT)
    source = DraftSource(checkpoint, cfg, how, choose_dtypes(options, False))
    model = load_draft(source, options, CONTEXT, cfg.vocab_size, lambda _: None)
    model._costs = Free()
    return model


@pytest.fixture(scope="module")
def fresh(programs_dir: Path) -> Iterator[Client]:
    engine = tiny_engine("llama", programs_dir, overlap=False, prefix_cache=False, draft=False)
    yield Client(engine)
    engine.close()


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def drafted(request: pytest.FixtureRequest, programs_dir: Path) -> Iterator[Client]:
    """The llama with itself as draft model, which is right nearly always, or with another, which hardly ever is."""
    engine = tiny_engine("llama", programs_dir, drafter=draft_model(request.param, programs_dir))
    assert engine.core.planner is not None
    engine.core.planner.costs = FreeWindows()
    client = Client(engine)
    client.right = request.param == "llama"  # type: ignore[attr-defined]
    yield client
    engine.close()


def test_drafted_equals_plain_alone_and_together(drafted: Client, fresh: Client) -> None:
    asks = mixed(8, base=1500)
    before = drafted.engine.snapshot().compiles_after_ready
    alone = [fresh.run(ask).ids for ask in asks]
    assert [drafted.run(ask).ids for ask in asks] == alone
    assert [reply.ids for reply in drafted.together(asks)] == alone
    assert drafted.engine.snapshot().compiles_after_ready == before
    wait_idle(drafted)


def test_the_same_noise_is_met(drafted: Client, fresh: Client) -> None:
    """Greedy or sampled, a model that drafts for itself is right, and another model is not."""
    made = right = 0
    for i, sampling in enumerate(SAMPLINGS[:4]):
        ask = Ask(prompt(1600 + i, 40), 60, sampling)
        reply = drafted.run(ask)
        assert reply.ids == fresh.run(ask).ids
        drafts = reply.stats().drafts.get("model", (0, 0))
        made, right = made + drafts[0], right + drafts[1]
    assert made > 20
    assert right > 0.8 * made if drafted.right else right < 0.5 * made  # type: ignore[attr-defined]


def test_a_long_prompt_and_a_full_window(drafted: Client, fresh: Client) -> None:
    for length in (1, 255, 256, 300, CONTEXT - 20):
        ask = Ask(prompt(1700, length), min(60, CONTEXT - length))
        assert drafted.run(ask).ids == fresh.run(ask).ids, length


def test_preempted_replies_are_drafted_again(drafted: Client, fresh: Client) -> None:
    back = [Ask(prompt(1800 + i, 60), 100, SAMPLINGS[i], background=True) for i in range(LANES)]
    slow = [drafted.start(ask) for ask in back]
    quick = drafted.together([Ask(prompt(1810, 20), 8)])
    assert quick[0].ids == fresh.run(Ask(prompt(1810, 20), 8)).ids
    for reply, ask in zip(slow, back, strict=True):
        reply.stats()
        assert reply.ids == fresh.run(ask).ids


def test_a_context_that_ends_before_the_reply(drafted: Client, fresh: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft model holds less than the model: drafts end, the reply goes on."""
    assert drafted.engine.core.planner is not None
    monkeypatch.setattr(drafted.engine.core.planner._drafter, "context", 64)
    ask = Ask(prompt(1900, 40), 80)
    reply = drafted.run(ask)
    assert reply.ids == fresh.run(ask).ids
    assert 0 < reply.stats().drafts["model"][0] <= 64


def test_a_failed_step_begins_anew(drafted: Client, fresh: Client) -> None:
    core = drafted.engine.core
    wait_idle(drafted)
    assert core.planner is not None
    core.planner.rebuild()
    ask = Ask(prompt(1950, 30), 40)
    assert drafted.run(ask).ids == fresh.run(ask).ids


class Other(ByteTokenizer):
    def token_bytes(self, token_id: int) -> bytes:
        return b"?" if token_id == 7 else super().token_bytes(token_id)


def test_another_tokenizer_is_refused() -> None:
    checkpoint = open_checkpoint(TINY / "llama")
    check_same_tokens(checkpoint, ByteTokenizer(), ByteTokenizer())
    with pytest.raises(CheckpointError, match="token 7 is not the same"):
        check_same_tokens(checkpoint, Other(), ByteTokenizer())


def test_a_draft_model_without_drafts_is_refused() -> None:
    with pytest.raises(OptionsError, match="draft_model is of no use"):
        EngineOptions(model=Path("x"), draft=False, draft_model=Path("y"))
