"""Compiled draws of one small shape, shared by the tests: pruned, whole, and split over two devices."""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.sampling import candidates
from jaxfold.runtime.sampling import element
from jaxfold.runtime.sampling.draw import Drawn
from jaxfold.runtime.sampling.draw import draw
from jaxfold.runtime.sampling.rows import DrawRows
from jaxfold.runtime.sampling.rows import prepare
from jaxfold.runtime.sampling.rows import rows_from
from jaxfold.runtime.sampling.shards import shard_of
from jaxfold.runtime.sampling.state import DrawState
from jaxfold.runtime.sampling.state import new_state
from jaxfold.runtime.sampling.whole import draw_whole

# Above the 1,024 candidates of the last narrow attempt, odd, and no multiple of a block.
VOCAB = 2987
ROWS = 16
HISTORY = 32


@dataclass(frozen=True)
class Batch:
    """One draw of `ROWS` rows: logits f32[R, V] and, for each row, its settings, seed and position."""

    logits: NDArray[np.float32]
    params: Sequence[SamplingParams]
    seeds: Sequence[int]
    positions: Sequence[int]

    @property
    def rows(self) -> DrawRows:
        prepared = [prepare(params, seed) for params, seed in zip(self.params, self.seeds, strict=True)]
        return rows_from(prepared, self.positions, list(range(len(prepared))), ROWS)


def whole_rows(logits: jax.Array, rows: DrawRows) -> jax.Array:
    """The rule over the whole vocabulary for every row, without any pruning."""
    shard = shard_of(VOCAB, None, None)
    settings = element.settings_of(rows)
    row = element.canonical(candidates.padded(logits, shard))
    best = candidates.best(row, candidates.block_max(row), shard)

    def one(index: jax.Array) -> jax.Array:
        mine = element.row_of(settings, index)
        return draw_whole(row[index], best.values[index], mine, shard)

    drawn = lax.map(one, jnp.arange(ROWS, dtype=jnp.int32))
    return jnp.where(settings.greedy | (best.values == element.NEVER), best.ids, drawn)


class Draws:
    """The compiled programs. Every method runs under 64-bit types and gives numpy arrays."""

    def __init__(self) -> None:
        self._pruned: Any = jax.jit(draw, donate_argnames="state")
        self._whole = jax.jit(whole_rows)
        mesh = jax.make_mesh((2,), ("vocab",), axis_types=(jax.sharding.AxisType.Auto,))
        columns, same = PartitionSpec(None, "vocab"), PartitionSpec()
        split = jax.shard_map(
            partial(draw, vocab=VOCAB, axis="vocab"),
            mesh=mesh,
            in_specs=(columns, DrawState(columns, columns, same, same, same), same, same),
            out_specs=Drawn(same, DrawState(columns, columns, same, same, same), same, same),
            check_vma=False,
        )
        self._split = jax.jit(split)

    def step(self, logits: NDArray[np.float32], state: DrawState, rows: DrawRows) -> tuple[Any, DrawState, Any]:
        with jax.enable_x64(True):
            out = self._pruned(jnp.asarray(logits), state, rows)
            return np.asarray(out.tokens), out.state, np.asarray(out.paths)

    def pruned(self, batch: Batch) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        tokens, _, paths = self.step(batch.logits, new_state(ROWS, VOCAB, HISTORY), batch.rows)
        return tokens, paths

    def whole(self, batch: Batch) -> NDArray[np.int32]:
        with jax.enable_x64(True):
            return np.asarray(self._whole(jnp.asarray(batch.logits), batch.rows))

    def split(self, batch: Batch) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        half = -(-VOCAB // 2)
        # Columns past the vocabulary hold what would win if they were looked at.
        logits = np.pad(batch.logits, ((0, 0), (0, 2 * half - VOCAB)), constant_values=1e30)
        with jax.enable_x64(True):
            free = jnp.zeros((ROWS, -(-VOCAB // 32)), jnp.int32)
            state = new_state(ROWS, 2 * half, HISTORY)
            tokens, _, paths, _ = self._split(jnp.asarray(logits), state, batch.rows, free)
            return np.asarray(tokens), np.asarray(paths)

    def scored(
        self, batch: Batch, rows: DrawRows, *, halves: bool, mask: NDArray[np.int32] | None = None
    ) -> tuple[NDArray[np.int32], Any]:
        """Tokens and scores of the draw, of one device or of two; biases and penalties are off where it is fresh."""
        half = -(-VOCAB // 2)
        width = 2 * half if halves else VOCAB
        logits = np.pad(batch.logits, ((0, 0), (0, width - VOCAB)), constant_values=1e30)
        mask = np.zeros((ROWS, -(-VOCAB // 32)), np.int32) if mask is None else mask
        with jax.enable_x64(True):
            program = self._split if halves else self._pruned
            out = program(jnp.asarray(logits), new_state(ROWS, width, HISTORY), rows, jnp.asarray(mask))
            return np.asarray(out.tokens), jax.tree.map(np.asarray, out.scored)


@pytest.fixture(scope="session")
def draws() -> Draws:
    return Draws()


def _some(rng: np.random.Generator, count: int) -> NDArray[np.bool_]:
    """A mask of `count` columns."""
    return rng.permutation(VOCAB) < count


# Rows that are hard in their own way: rng, normal noise f64[V] -> logits.
KINDS: tuple[Callable[[np.random.Generator, NDArray[np.float64]], NDArray[np.float64]], ...] = (
    lambda rng, noise: noise * rng.choice([0.1, 1.0, 3.0, 10.0]),  # ordinary
    lambda rng, noise: np.full(VOCAB, rng.choice([0.0, -0.0, 7.5, -1e30])),  # all equal
    lambda rng, noise: np.round(noise * 2.0),  # ties at every boundary
    lambda rng, noise: np.where(np.arange(VOCAB) % 3 == 0, 5.0, rng.choice([4.999999, 4.0, -10.0])),  # two levels
    lambda rng, noise: np.where(_some(rng, rng.choice([63, 64, 65, 1024, 1025])), 5.0, 4.5),  # as large as a cut
    lambda rng, noise: noise * 1e30,  # huge spread
    lambda rng, noise: noise * 1e38,  # overflows to infinities
    lambda rng, noise: np.where(_some(rng, 30), noise, rng.choice([-1e30, -np.inf])),  # masked
    lambda rng, noise: np.where(_some(rng, 900), rng.choice([np.nan, np.inf, -np.inf], VOCAB), noise),  # odd values
    lambda rng, noise: np.full(VOCAB, rng.choice([np.nan, -np.inf])),  # nothing to draw
    lambda rng, noise: noise * 1e-39,  # subnormal
    lambda rng, noise: noise + 14.0 * _some(rng, 5),  # peaked
    lambda rng, noise: -np.arange(VOCAB) * 0.01,  # in order
    lambda rng, noise: 1000.0 + np.arange(VOCAB) % 7 * 2.0**-14,  # neighbouring floats
)


def _logits(rng: np.random.Generator) -> NDArray[np.float32]:
    row = KINDS[int(rng.integers(len(KINDS)))](rng, rng.normal(size=VOCAB))
    with np.errstate(over="ignore"):
        return row.astype(np.float32)


def hard_batch(seed: int) -> Batch:
    """Rows of every kind under settings from the edges of what they may be."""
    rng = np.random.default_rng(seed)

    def pick(*values: float) -> float:
        return values[int(rng.integers(len(values)))]

    params = [
        SamplingParams(
            temperature=pick(0.0, 1e-9, 1e-6, 0.01, 0.8, 1.0, 1.0, 2.0, 100.0, 1e7),
            top_k=int(pick(0, 0, 0, 0, 1, 2, 40, 63, 64, 65, 300, 1024, 1025, VOCAB - 1, VOCAB, VOCAB + 1)),
            top_p=pick(1.0, 1.0, 1.0, 1e-9, 5e-324, 0.0, 0.1, 0.5, 0.9, 0.95, 1 - 1e-12, 1.5),
            min_p=pick(0.0, 0.0, 0.0, 1e-9, 0.05, 0.5, 1.0),
        )
        for _ in range(ROWS)
    ]
    return Batch(
        logits=np.stack([_logits(rng) for _ in range(ROWS)]),
        params=params,
        seeds=[int(pick(0, (1 << 63) - 1, (1 << 63) + 1, int(rng.integers(1 << 62)))) for _ in range(ROWS)],
        positions=[int(pick(0, 1, (1 << 31) - 1, (1 << 31) + 1, int(rng.integers(1 << 20)))) for _ in range(ROWS)],
    )


@pytest.fixture(scope="session")
def hard_batches() -> list[Batch]:
    return [hard_batch(seed) for seed in range(60)]
