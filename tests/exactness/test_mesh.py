"""A model split over several devices gives the bits and the replies of one device, in bf16 and in int8."""

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from functools import lru_cache
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfold.checkpoints import open_checkpoint
from jaxfold.models.decoder import Cache
from jaxfold.models.decoder import Weights
from jaxfold.models.decoder import forward
from jaxfold.models.decoder import logits
from jaxfold.models.decoder import new_cache
from jaxfold.models.plan import Part
from jaxfold.models.plan import PartShape
from jaxfold.models.plan import Plan
from jaxfold.models.plan import empty_part
from jaxfold.runtime.api import Guide
from jaxfold.runtime.constraints.grammars import XGrammars
from jaxfold.runtime.placement import place
from jaxfold.runtime.weights import load_weights
from jaxfold.runtime.weights import read_config
from tests.exactness.test_constraints import ENDS
from tests.exactness.test_constraints import SPECS
from tests.exactness.test_constraints import Shifted
from tests.exactness.test_drafting import Knowing
from tests.exactness.test_engine_exact import mixed
from tests.exactness.test_engine_exact import prompt
from tests.exactness.test_engine_exact import wait_idle
from tests.tiny_engines import CONTEXT
from tests.tiny_engines import PAGE
from tests.tiny_engines import TINY
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import tiny_engine

WIDTH = CONTEXT // PAGE
TOKENS = 270  # past the first key block
# Of 3, 1, 2, 2 and 1 key-value heads: padded, padded (7 query heads do not divide), one each, held twice, held twice.
SPLITS = [
    ("llama", 2, "bfloat16"),
    ("llama", 2, "int8"),
    ("llama", 4, "bfloat16"),
    ("llama", 4, "int8"),
    ("qwen2", 2, "int8"),
    ("qwen3", 2, "bfloat16"),
    ("qwen3", 4, "bfloat16"),
    ("gemma3", 2, "bfloat16"),
]


def parts_of(groups: Any, columns: int, lanes: list[tuple[int, np.ndarray]]) -> Plan:
    """A step over one part: lane i runs these tokens from this position on."""
    part = empty_part(PartShape(len(lanes), columns), dict.fromkeys(groups, WIDTH))
    for i, (start, tokens) in enumerate(lanes):
        part["tokens"][i, : len(tokens)] = tokens
        part["start"][i], part["length"][i] = start, len(tokens)
        for table in part["tables"].values():
            table[i] = np.arange(1 + i * WIDTH, 1 + (i + 1) * WIDTH)
    return Plan((Part(**part),), np.arange(len(lanes) * columns, dtype=np.int32))  # type: ignore[arg-type]


@lru_cache(maxsize=16)
def bits(family: str, dtype: str, count: int) -> list[np.ndarray]:
    """Bits of hidden rows and logits of a prefill and of a decode step behind it, on `count` devices."""
    checkpoint = open_checkpoint(TINY / family)
    cfg, how = read_config(checkpoint)
    cfg = replace(cfg, compute_dtype="bfloat16", max_position=CONTEXT)
    on, kind = place(cfg, count), jnp.dtype(dtype)
    weights = load_weights(checkpoint, cfg, how, kind, None, place=on)
    pages = dict.fromkeys(cfg.groups, 1 + 2 * WIDTH)
    cache = on.maker(partial(new_cache, on.sharing.stored(cfg), pages, PAGE, jnp.dtype(jnp.bfloat16)), on.cache_spec)()

    def step(weights: Weights, cache: Cache, plan: Plan) -> tuple[tuple[jax.Array, jax.Array], Cache]:
        hidden, cache = forward(weights, cache, plan, on.sharing.local(cfg), None, on.shards)
        return (hidden, logits(weights, hidden, cfg)), cache

    run = on.jit(
        step,
        takes=(on.weight_specs(cfg, kind), on.cache_spec, on.spec()),
        gives=((on.spec(), on.spec(None, "vocab")), on.cache_spec),
        donate=1,
    )
    tokens = np.random.default_rng(0).integers(0, cfg.vocab_size, TOKENS).astype(np.int32)
    found = []
    for plan in (
        parts_of(cfg.groups, TOKENS, [(0, tokens)]),
        parts_of(cfg.groups, 1, [(TOKENS, tokens[:1]), (0, tokens[1:2])]),
    ):
        (hidden, scores), cache = run(weights, cache, plan)
        found += [np.asarray(hidden), np.asarray(scores)[:, : cfg.vocab_size]]
    return [array.view(np.uint32) for array in found]


@pytest.mark.parametrize(("family", "count", "dtype"), SPLITS)
def test_hidden_rows_and_logits_have_the_bits_of_one_device(family: str, count: int, dtype: str) -> None:
    alone, split = bits(family, dtype, 1), bits(family, dtype, count)
    assert len({row.tobytes() for row in alone[1]}) > TOKENS // 2, "the logits say nothing"
    for found, wanted in zip(split, alone, strict=True):
        np.testing.assert_array_equal(found, wanted)


@dataclass
class Pair:
    """The plainest engine on one device, and one over several as it is served, drafting as often as it can."""

    one: Client
    several: Client
    start: Callable[[], Client]


@pytest.fixture(scope="module", params=[("llama", "int8", 2)], ids=str)
def pair(request: pytest.FixtureRequest, programs_dir: Path) -> Iterator[Pair]:
    family, dtype, count = request.param
    one = tiny_engine(family, programs_dir, dtype=dtype, overlap=False, prefix_cache=False, draft=False)

    def start() -> Client:
        return Client(tiny_engine(family, programs_dir, dtype=dtype, tp=count))

    several = start()
    several.engine.core.planner = Knowing(several.engine)
    yield Pair(Client(one), several, start)
    for engine in (one, several.engine):
        engine.close()


@pytest.mark.heavy
def test_replies_are_those_of_one_device(pair: Pair) -> None:
    """Greedy, sampled, cut, penalised and biased ones, drafted and in company."""
    asks = mixed(7)
    wanted = [pair.one.run(ask).ids for ask in asks]
    planner = pair.several.engine.core.planner
    assert isinstance(planner, Knowing)
    for ask, ids in zip(asks, wanted, strict=True):
        planner.learn(ask, ids)
    before = pair.several.engine.snapshot()
    assert [reply.ids for reply in pair.several.together(asks)] == wanted
    assert [pair.several.run(replace(ask, draft=False)).ids for ask in asks[:3]] == wanted[:3]
    after = pair.several.engine.snapshot()
    assert after.accepted_total > before.accepted_total, "no draft was right: the test shows nothing of drafts"
    assert after.compiles_after_ready == before.compiles_after_ready


@pytest.mark.heavy
def test_a_reused_prefix_changes_nothing(pair: Pair) -> None:
    first = Ask(prompt(100, 90), 30, mixed(2)[1].sampling)
    cold = pair.one.run(first).ids
    warm = [pair.several.run(first) for _ in range(2)]
    assert [reply.ids for reply in warm] == [cold, cold] and warm[1].stats().cached_tokens == 80
    follow = Ask((*first.prompt, *cold, *prompt(101, 30)), 12, first.sampling)
    again = pair.several.run(follow)
    assert again.ids == pair.one.run(follow).ids
    assert pair.several.engine.info.exactness == "A" and again.stats().cached_tokens > 90


@pytest.mark.heavy
def test_scores_and_labels_are_those_of_one_device(pair: Pair) -> None:
    asks = [
        Ask(prompt(7, 40), 6, mixed(3)[2].sampling, logprobs=5),
        Ask(prompt(8, 50), 1, logprobs=3, score_prompt=True),
        Ask(prompt(9, 20), 1, labels=(1, 5, 280)),
    ]
    for ask in asks:
        found, wanted = pair.several.run(ask), pair.one.run(ask)
        assert found.scores == wanted.scores and found.labels == wanted.labels
        assert found.prompt_scores == wanted.prompt_scores


@pytest.mark.heavy
def test_masks_reach_every_part_of_the_vocabulary(pair: Pair) -> None:
    names = tuple(f"<{i}>" for i in range(3))
    grammars = XGrammars(Shifted(control=names, added=(), eos=names[:1], bos=None), 288)
    try:
        for spec, sampling in zip(SPECS, (ask.sampling for ask in mixed(4)), strict=True):
            guide = Guide(grammar=grammars.compile(spec), end_ids=ENDS)
            ask = Ask(prompt(11, 30), 16, sampling, stop_ids=ENDS, guide=guide)
            assert pair.several.run(ask).ids == pair.one.run(ask).ids
    finally:
        grammars.close()


@pytest.mark.heavy
def test_a_second_start_loads_what_the_first_compiled(pair: Pair) -> None:
    wait_idle(pair.several)
    ask = mixed(3)[2]
    again = pair.start()
    try:
        again.engine.core.device.rebuild()  # as after a failed step
        assert again.run(ask).ids == pair.one.run(ask).ids
        info = again.engine.info
        assert info.tp == len(again.engine.core.device.cache.keys[0].devices()) > 1
        assert again.engine.snapshot().compiles_after_ready == 0
    finally:
        again.engine.close()
