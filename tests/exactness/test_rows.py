"""A row's logits have the same bits in every form of step: whole, chunked, decoded alone or not, verified, mixed.

The head shapes matter: sums whose order the compiler chooses agree by luck for some (3 x 3) and not for others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfold.models import Cache
from jaxfold.models import DecoderConfig
from jaxfold.models import Part
from jaxfold.models import Plan
from jaxfold.models import Weights
from jaxfold.models import declare
from jaxfold.models import forward
from jaxfold.models import logits
from jaxfold.models import new_cache
from jaxfold.models.config import FULL
from jaxfold.models.config import WINDOW
from jaxfold.models.config import RopeConfig
from jaxfold.models.params import initial
from jaxfold.models.plan import PartShape
from jaxfold.models.plan import empty_part
from pallas_kernels.paged_attention.xla import BLOCK

# (KV heads, query heads of each, head size)
SHAPES = ((3, 3, 64), (8, 4, 64), (8, 8, 128), (1, 4, 256), (2, 2, 64), (4, 1, 128), (2, 7, 64))
PAGE = 32
TOKENS = BLOCK + 24
FIRST = BLOCK - 6  # the compared rows cross the boundary of a key block
ROWS = 12
LANES = 5
WIDTH = 2 * BLOCK // PAGE


def config(kv_heads: int, group: int, dim: int, window: bool) -> DecoderConfig:
    rope = RopeConfig(1e4, (1.0,) * (dim // 2))
    return DecoderConfig(
        model_type="llama",
        vocab_size=256,
        hidden_size=96,
        intermediate_size=160,
        num_layers=2,
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=dim,
        norm_eps=1e-5,
        max_position=2 * BLOCK,
        rope=((FULL, rope), (WINDOW, rope)),
        layer_groups=(WINDOW, FULL) if window else (FULL, FULL),
        window=100 if window else None,
        compute_dtype="bfloat16",
    )


@dataclass
class Runner:
    """Steps over one text in lane 0; the other lanes run other tokens."""

    cfg: DecoderConfig
    weights: Weights
    tokens: np.ndarray
    cache: Cache

    def part(self, lanes: Sequence[tuple[int, int, np.ndarray]], columns: int) -> Part:
        """A part of (lane, start, tokens) entries."""
        part = empty_part(PartShape(len(lanes), columns), dict.fromkeys(self.cfg.groups, WIDTH))
        for i, (lane, start, ids) in enumerate(lanes):
            part["tokens"][i, : len(ids)] = ids
            part["start"][i], part["length"][i] = start, len(ids)
            for table in part["tables"].values():
                table[i] = np.arange(1 + lane * WIDTH, 1 + (lane + 1) * WIDTH)
        return Part(**part)

    def run(self, parts: Sequence[Part], rows: Sequence[int]) -> np.ndarray:
        """Logit bits of these flat rows."""
        plan = Plan(tuple(parts), np.asarray(rows, np.int32))
        scores, self.cache = _step(self.weights, self.cache, plan, cfg=self.cfg)
        return np.asarray(scores).view(np.uint32)

    def prefill(self, size: int, columns: int, stop: int = TOKENS) -> np.ndarray:
        """Logit bits of every token, in chunks of `size`; the rows past a short chunk are dropped."""
        found = []
        for start in range(0, stop, size):
            ids = self.tokens[start : min(start + size, stop)]
            found.append(self.run([self.part([(0, start, ids)], columns)], range(columns))[: len(ids)])
        return np.concatenate(found)

    def company(self, position: int, lanes: int, columns: int = 1) -> list[tuple[int, int, np.ndarray]]:
        """Other lanes at other positions."""
        starts = [(position * (i + 3)) % 90 for i in range(1, lanes)]
        return [(i + 1, start, self.tokens[start : start + columns]) for i, start in enumerate(starts)]


@partial(jax.jit, static_argnames="cfg", donate_argnames="cache")
def _step(weights: Weights, cache: Cache, plan: Plan, *, cfg: DecoderConfig) -> tuple[jax.Array, Cache]:
    hidden, cache = forward(weights, cache, plan, cfg)
    return logits(weights, hidden, cfg), cache


@pytest.mark.parametrize(
    ("kv_heads", "group", "dim", "window"),
    # Windows change masks and loop bounds, not products: a layer of three of the models has one.
    [(*shape, shape in ((3, 3, 64), (8, 4, 64), (1, 4, 256))) for shape in SHAPES],
)
def test_rows_have_the_same_bits_in_every_form(kv_heads: int, group: int, dim: int, window: bool) -> None:
    cfg = config(kv_heads, group, dim, window)
    weights = initial(declare(cfg), jax.random.key(1), jnp.dtype(jnp.bfloat16), 0.08)
    tokens = np.random.default_rng(2).integers(0, cfg.vocab_size, TOKENS).astype(np.int32)
    cache = new_cache(cfg, dict.fromkeys(cfg.groups, 1 + WIDTH * (LANES + 1)), PAGE, jnp.dtype(jnp.bfloat16))
    runner = Runner(cfg, weights, tokens, cache)
    whole = runner.prefill(TOKENS, TOKENS)
    assert np.isfinite(whole.view(np.float32)).all() and len(np.unique(whole[:, 0])) > TOKENS // 2
    assert _differing(runner.prefill(64, 64), whole) == 0, "prefill in chunks"
    assert _differing(runner.prefill(48, 64), whole) == 0, "prefill in padded chunks off the page grid"
    wanted = whole[FIRST : FIRST + ROWS]
    for lanes in (1, LANES):
        runner.prefill(64, 64, FIRST)
        found = [
            runner.run([runner.part([(0, p, tokens[p : p + 1]), *runner.company(p, lanes)], 1)], [0])[0]
            for p in range(FIRST, FIRST + ROWS)
        ]
        assert _differing(np.stack(found), wanted) == 0, f"decode with {lanes} lanes"
    runner.prefill(64, 64, FIRST)
    found = [
        runner.run([runner.part([(0, p, tokens[p : p + 4]), *runner.company(p, 2, 4)], 4)], range(4))
        for p in range(FIRST, FIRST + ROWS, 4)
    ]
    assert _differing(np.concatenate(found), wanted) == 0, "verify windows of 4"
    runner.prefill(64, 64, FIRST)
    found = [
        runner.run(
            [
                runner.part([(0, p, tokens[p : p + 1]), *runner.company(p, 2)], 1),
                runner.part([(3, 0, tokens[:30])], 32),
            ],
            [0],
        )[0]
        for p in range(FIRST, FIRST + ROWS)
    ]
    assert _differing(np.stack(found), wanted) == 0, "decode beside a prefill chunk"


def _differing(found: np.ndarray, wanted: np.ndarray) -> int:
    assert found.shape == wanted.shape
    return int((found != wanted).any(axis=1).sum())
