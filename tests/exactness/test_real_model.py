"""The real SmolLM2 in the engine as it is served: what else runs, and what ran before, changes no token."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxfold.chat.service import ChatService
from jaxfold.chat.template import ChatTemplate
from jaxfold.chat.types import ChatRequest
from jaxfold.chat.types import Limits
from jaxfold.chat.types import Message
from jaxfold.checkpoints import open_checkpoint
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.convert import convert
from jaxfold.runtime.loader import LoadedModel
from jaxfold.runtime.loader import load_engine
from jaxfold.runtime.options import EngineOptions
from jaxfold.runtime.weights import load_weights
from jaxfold.runtime.weights import read_config
from tests.models.golden_support import GOLDEN
from tests.models.golden_support import read_json
from tests.smollm2 import CONTEXT
from tests.smollm2 import LANES
from tests.smollm2 import smollm2_cache
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import FreeWindows

# The first test to come compiles the programs, which takes minutes where the cores are shared.
pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.timeout(900)]

SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=7),
    SamplingParams(temperature=0.0, repeat_penalty=1.2),
    SamplingParams(temperature=1.2, min_p=0.05, seed=11),
    SamplingParams(temperature=0.7, top_p=0.9, presence_penalty=0.5, seed=2),
)


@pytest.fixture(scope="module")
def real_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The session's folder of this model's programs; the command line's tests use the same one."""
    return smollm2_cache(tmp_path_factory)


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path, real_cache: Path) -> Iterator[LoadedModel]:
    options = EngineOptions(
        model=smollm2_path,
        context=CONTEXT,
        parallel=LANES,
        compile_cache_dir=real_cache / "programs",
        weight_cache_dir=real_cache / "weights",
    )
    model = load_engine(options)
    yield model
    model.engine.close()


@pytest.fixture(scope="module")
def client(loaded: LoadedModel) -> Client:
    return Client(loaded.engine)


@pytest.fixture(scope="module")
def text(loaded: LoadedModel) -> list[int]:
    """Some 1,900 tokens of prose."""
    return list(loaded.tokenizer.encode((GOLDEN / "smollm2" / "text.txt").read_text(encoding="utf-8")))


def test_the_shipped_default_is_level_a(loaded: LoadedModel) -> None:
    info = loaded.engine.info
    assert (info.exactness, info.weight_dtype, info.compute_dtype, info.kv_dtype) == ("A", "int8", "bf16", "bf16")
    assert (info.vocab_size, info.context_length, info.lanes, info.programs) == (49152, CONTEXT, LANES, 12)


def test_alone_equals_beside_five_others(client: Client, text: list[int]) -> None:
    """Six requests on four lanes, of different lengths and settings, each under salts that share nothing."""
    lengths = (5, 300, 40, 129, 64, 1)

    def asks(salt: str) -> list[Ask]:
        return [
            Ask(tuple(text[100 * i : 100 * i + length]), 10 + 2 * i, SAMPLINGS[i], salt=f"{salt} {i}")
            for i, length in enumerate(lengths)
        ]

    alone = [client.run(ask).ids for ask in asks("alone")]
    together = client.together(asks("together"))
    assert [reply.ids for reply in together] == alone
    assert {reply.stats().cached_tokens for reply in together} == {0}
    assert len({tuple(ids) for ids in alone}) == len(alone)
    assert client.engine.snapshot().compiles_after_ready == 0


@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[2]], ids=["greedy", "sampled"])
def test_warm_equals_cold_and_a_follow_up_turn_equals_a_fresh_one(
    client: Client, text: list[int], sampling: SamplingParams
) -> None:
    name = str(sampling)
    first = Ask(tuple(text[680:920]), 20, sampling, salt=name)
    runs = [client.run(first) for _ in range(3)]
    assert [run.stats().cached_tokens for run in runs] == [0, 192, 192]
    assert runs[0].ids == runs[1].ids == runs[2].ids
    turn = Ask((*first.prompt, *runs[0].ids, *text[:20]), 10, sampling, salt=name)
    warm = client.run(turn)
    # Four whole pages: the fourth was filled by the reply itself.
    assert warm.stats().cached_tokens == 256
    fresh = client.run(Ask(turn.prompt, 10, sampling, salt=f"{name} fresh"))
    assert fresh.stats().cached_tokens == 0
    assert warm.ids == fresh.ids


def test_copies_change_no_token(client: Client, text: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that begins again is copied, alone and by two at once; the replies are those without drafts."""
    planner = client.engine.core.planner
    assert planner is not None
    monkeypatch.setattr(planner, "costs", FreeWindows())
    asks = [
        Ask((*text[i : i + 100], *text[i : i + 30]), 24, sampling, salt=f"copies {i}", draft=False)
        for i, sampling in zip((0, 300, 600, 900), SAMPLINGS, strict=False)
    ]
    plain = [client.run(ask).ids for ask in asks]
    drafting = [replace(ask, draft=True) for ask in asks]
    alone = [client.run(ask) for ask in drafting]
    assert [reply.ids for reply in alone] == plain
    assert sum(reply.stats().accepted for reply in alone) > 20
    assert [reply.ids for pair in (drafting[:2], drafting[2:]) for reply in client.together(pair)] == plain
    assert client.engine.snapshot().compiles_after_ready == 0


def test_greedy_replies_are_nearly_those_of_the_float32_reference(client: Client) -> None:
    """bfloat16 may turn near ties; where the reference's gap is clear, the whole reply is the same."""
    cases = [case for case in read_json(GOLDEN / "smollm2" / "greedy.json") if case["least_gap"] > 0.25]
    assert len(cases) >= 2
    for case in cases:
        ask = Ask(tuple(case["prompt_ids"]), len(case["greedy_ids"]))
        assert client.run(ask).ids == case["greedy_ids"], case["text"]


def test_chats_become_the_reference_prompts(loaded: LoadedModel) -> None:
    """Ids of the committed chats, which the reference tokenizer made of the template's text.

    The committed chats without a system message are rendered without one; the model's own template puts one there.
    """
    template = ChatTemplate(loaded.chat_template, loaded.tokenizer)
    service = ChatService(loaded.engine, loaded.tokenizer, template)
    default = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    added = loaded.tokenizer.encode(default, parse_special=True)
    cases = [case for case in read_json(GOLDEN / "smollm2" / "greedy.json") if case["is_chat"]]
    assert len(cases) == 7
    try:
        for case in cases:
            messages = messages_of(case["text"])
            prepared = service.prepare_chat_now(ChatRequest(messages, SamplingParams(), Limits(max_tokens=8)))
            leading = [] if messages[0].role == "system" else added
            assert list(prepared.prompt_ids) == [*leading, *case["prompt_ids"]], case["text"]
    finally:
        service.close()


def messages_of(text: str) -> tuple[Message, ...]:
    """The messages of a rendered prompt."""
    parts = [part.removesuffix("<|im_end|>\n") for part in text.split("<|im_start|>") if part]
    assert parts.pop() == "assistant\n"
    return tuple(Message(*part.split("\n", 1)) for part in parts)  # type: ignore[arg-type]


def test_a_converted_copy_has_the_bits_of_the_source(smollm2_path: Path, tmp_path: Path) -> None:
    convert(smollm2_path, tmp_path / "copy", shards=4)
    trees = []
    for path in (smollm2_path, tmp_path / "copy"):
        checkpoint = open_checkpoint(path)
        cfg, family = read_config(checkpoint)
        trees.append(load_weights(checkpoint, cfg, family, jax.numpy.dtype("int8"), None))
    for a, b in zip(*map(jax.tree.leaves, trees), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
