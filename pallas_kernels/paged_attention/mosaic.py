"""The Mosaic GPU form for Hopper (sm_90a): TMA brings pages from where they lie, wgmma multiplies.

A block of the grid has 64 query rows of one lane and one key-value head (columns by query heads, so that a group shares
its keys). It folds keys in blocks of 64 by absolute position, first to last, whatever the batch, the window's width or
the table's: a block without a seen key leaves a row's state as it was, so a row's bits depend on its own keys alone.
Softmax weights are rounded to bf16, as the XLA form rounds them to the cache's dtype.
"""

import functools
from dataclasses import dataclass
from typing import Any
from typing import NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic import SWIZZLED_BF16
from pallas_kernels.mosaic import SWIZZLED_F32
from pallas_kernels.mosaic import interpret

ROWS = 64
KEYS = 64
CHUNK = 64
NEGATIVE = -1e30
# An accumulator of 64 rows may have this many columns before registers run out; longer heads take several blocks.
WIDEST = 256


@dataclass(frozen=True)
class _Scores:
    """How products become scores, and which keys a query sees."""

    scale: float
    window: int | None
    soft_cap: float | None

    def of(self, products: jax.Array, query: jax.Array, block: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Scores of one block of keys and whether each counts: float32 and bool [ROWS, KEYS]."""
        scores = products * jnp.float32(self.scale)
        if self.soft_cap is not None:
            scores = jnp.float32(self.soft_cap) * jnp.tanh(scores * jnp.float32(1.0 / self.soft_cap))
        key = plgpu.broadcasted_iota(jnp.int32, scores.shape, 1, layout=plgpu.Layout.WGMMA) + block * KEYS
        query = lax.broadcast_in_dim(query, scores.shape, [0])
        seen = key <= query
        if self.window is not None:
            seen = seen & (query - key < self.window)
        return jnp.where(seen, scores, jnp.float32(NEGATIVE)), seen


def attend(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    start: jax.Array,
    length: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    form: str = "mosaic",
) -> jax.Array:
    """Attention as in `reference.attend`, of bf16 queries over bf16 pages; columns from `length` on are zeros.

    Args:
        form: "mosaic", or "mosaic-interpreted" to run the kernel's steps on a CPU.
    """
    lanes, columns, heads, dim = q.shape
    kv_heads = k_pages.shape[0]
    group = heads // kv_heads
    tiles = -(-columns * group // ROWS)
    height = tiles * ROWS
    rows = q.reshape(lanes, columns, kv_heads, group, dim).transpose(0, 2, 1, 3, 4)
    rows = rows.reshape(lanes, kv_heads, columns * group, dim)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, height - columns * group), (0, 0)))
    position = _positions(start, length, height, group)
    head_sinks = [] if sinks is None else [_by_row(sinks.astype(jnp.float32), kv_heads, height)]
    run = plgpu.kernel(
        functools.partial(_kernel, scores=_Scores(scale, window, soft_cap)),
        out_type=jax.ShapeDtypeStruct((lanes, kv_heads, height, dim), jnp.float32),
        grid=(tiles, kv_heads * (dim // min(dim, WIDEST)), lanes),
        grid_names=("tile", "head", "lane"),
        kernel_name="paged_attention",
        # tanh in approximate form is too coarse for soft caps; exp is not.
        compiler_params=plgpu.CompilerParams(approx_math=soft_cap is None),
        interpret=interpret(form),
    )
    out = run(rows, k_pages, v_pages, table, position, _blocks(position, window), *head_sinks)
    out = out[:, :, : columns * group].reshape(lanes, kv_heads, columns, group, dim)
    found: jax.Array = out.transpose(0, 2, 1, 3, 4).reshape(lanes, columns, heads, dim)
    return found


def _positions(start: jax.Array, length: jax.Array, height: int, group: int) -> jax.Array:
    """Where every query row stands: int32[lanes, height], -1 for rows that are padding."""
    column = jnp.arange(height, dtype=jnp.int32)[None, :] // group
    return jnp.where(column < length[:, None], start[:, None] + column, -1)


def _blocks(position: jax.Array, window: int | None) -> jax.Array:
    """The first block of keys that a tile of rows sees and the one after its last: int32[lanes, tiles, 2]."""
    tiles = position.reshape(position.shape[0], -1, ROWS)
    last = jnp.max(tiles, axis=2) // KEYS + 1
    least = jnp.min(jnp.where(tiles < 0, jnp.int32(2**30), tiles), axis=2)
    first = jnp.zeros_like(last) if window is None else jnp.maximum(least - (window - 1), 0) // KEYS
    return jnp.stack([jnp.minimum(first, last), last], axis=2)


def _by_row(sinks: jax.Array, kv_heads: int, height: int) -> jax.Array:
    """float32[heads] as every row of a key-value head sees it: float32[kv_heads, height]."""
    grouped = sinks.reshape(kv_heads, -1)
    return jnp.tile(grouped, (1, -(-height // grouped.shape[1])))[:, :height]


class _Place(NamedTuple):
    """Which tile of rows a block of the grid has, and the blocks of keys `first .. last - 1` that it folds."""

    lane: jax.Array
    head: jax.Array
    rows: Any
    columns: Any
    first: jax.Array
    last: jax.Array


class _Shared(NamedTuple):
    """Tiles in shared memory, and the barriers that say they have arrived."""

    q: Any
    k: Any
    v: Any
    weights: Any
    q_arrived: Any
    k_arrived: Any
    v_arrived: Any


class _Cache(NamedTuple):
    k_pages: Any
    v_pages: Any
    table: Any

    def fetch(self, block: jax.Array, slot: jax.Array, place: _Place, shared: _Shared) -> None:
        """Start to copy a block of keys and values: of one page, or of the several that it lies in."""
        page_size = self.k_pages.shape[2]
        piece = min(page_size, KEYS)
        for begin in range(0, KEYS, piece):
            key = block * KEYS + begin
            page = self.table[place.lane, lax.div(key, jnp.int32(page_size))]
            there = pl.ds(pl.multiple_of(lax.rem(key, jnp.int32(page_size)), piece), piece)
            here = pl.ds(begin, piece)
            k, v = self.k_pages.at[place.head, page, there], self.v_pages.at[place.head, page, there, place.columns]
            plgpu.copy_gmem_to_smem(k, shared.k.at[slot, here], shared.k_arrived.at[slot])
            plgpu.copy_gmem_to_smem(v, shared.v.at[slot, here], shared.v_arrived.at[slot])


def _kernel(
    q: Any, k_pages: Any, v_pages: Any, table: Any, position: Any, blocks: Any, *rest: Any, scores: _Scores
) -> None:
    """One tile of rows; `rest` is the sinks, where there are any, and the output."""
    sinks, out = rest if len(rest) == 2 else (None, *rest)
    dim, page_size = q.shape[3], k_pages.shape[2]
    width = min(dim, WIDEST)
    tile, lane, head = lax.axis_index("tile"), lax.axis_index("lane"), lax.axis_index("head")
    parts = jnp.int32(dim // width)
    place = _Place(
        lane=lane,
        head=lax.div(head, parts),
        rows=pl.ds(tile * ROWS, ROWS),
        columns=pl.ds(lax.rem(head, parts) * width, width),
        first=blocks[lane, tile, 0],
        last=blocks[lane, tile, 1],
    )
    stages = 2 if dim <= WIDEST else 1
    arrived = plgpu.Barrier(num_arrivals=max(KEYS // page_size, 1), num_barriers=stages)
    mixed = pl.run_scoped(
        lambda *shared: _fold(q, _Cache(k_pages, v_pages, table), position, sinks, place, _Shared(*shared), scores),
        plgpu.SMEM((ROWS, dim), q.dtype, transforms=SWIZZLED_BF16),
        plgpu.SMEM((stages, KEYS, dim), q.dtype, transforms=SWIZZLED_BF16),
        plgpu.SMEM((stages, KEYS, width), q.dtype, transforms=SWIZZLED_BF16),
        plgpu.SMEM((ROWS, KEYS), q.dtype, transforms=SWIZZLED_BF16),
        plgpu.Barrier(),
        arrived,
        arrived,
    )

    def store(buffer: Any) -> None:
        rows = out.at[lane, place.head, place.rows, place.columns]
        for i, part in enumerate(mixed):
            buffer[...] = part
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buffer, rows.at[:, pl.ds(i * CHUNK, CHUNK)])
            plgpu.wait_smem_to_gmem(0)

    pl.run_scoped(store, plgpu.SMEM((ROWS, CHUNK), jnp.float32, transforms=SWIZZLED_F32))


def _fold(
    q: Any, cache: _Cache, position: Any, sinks: Any, place: _Place, shared: _Shared, scores: _Scores
) -> list[jax.Array]:
    """Attention of the tile's rows, in chunks of columns: float32[ROWS, CHUNK] each."""
    stages = shared.k.shape[0]
    chunks = [pl.ds(begin, CHUNK) for begin in range(0, shared.v.shape[2], CHUNK)]
    plgpu.copy_gmem_to_smem(q.at[place.lane, place.head, place.rows], shared.q, shared.q_arrived)
    for ahead in range(stages):
        block = place.first + ahead
        pl.when(block < place.last)(functools.partial(cache.fetch, block, jnp.int32(ahead), place, shared))
    by_row = plgpu.Layout.WGMMA.reduce(1)
    query = plgpu.load(position.at[place.lane, place.rows], layout=by_row, optimized=False)
    plgpu.barrier_wait(shared.q_arrived)

    def step(block: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top, total, *out = state
        slot = lax.rem(block - place.first, jnp.int32(stages))
        plgpu.barrier_wait(shared.k_arrived.at[slot])
        found, seen = scores.of(_product(shared.q, shared.k.at[slot].T), query, block)
        higher = jnp.maximum(top, jnp.max(found, axis=1))
        weights = jnp.where(seen, jnp.exp(found - lax.broadcast_in_dim(higher, found.shape, [0])), jnp.float32(0))
        keep = jnp.exp(top - higher)
        total = total * keep + jnp.sum(weights, axis=1)
        shared.weights[...] = weights.astype(jnp.bfloat16)
        plgpu.commit_smem()
        plgpu.barrier_wait(shared.v_arrived.at[slot])
        for i, columns in enumerate(chunks):
            part = _product(shared.weights, shared.v.at[slot, :, columns])
            out[i] = out[i] * lax.broadcast_in_dim(keep, part.shape, [0]) + part
        ahead = block + stages
        pl.when(ahead < place.last)(functools.partial(cache.fetch, ahead, slot, place, shared))
        return higher, total, *out

    def filled(shape: tuple[int, ...], value: float, layout: Any) -> jax.Array:
        constant: jax.Array = plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)
        return constant

    if sinks is None:
        top, total = filled((ROWS,), NEGATIVE, by_row), filled((ROWS,), 0.0, by_row)
    else:
        # A sink is a key without a value: it has taken part in the softmax before the first block.
        top = plgpu.load(sinks.at[place.head, place.rows], layout=by_row, optimized=False)
        total = filled((ROWS,), 1.0, by_row)
    empty = filled((ROWS, CHUNK), 0.0, plgpu.Layout.WGMMA)
    _, total, *out = lax.fori_loop(place.first, place.last, step, (top, total, *(empty for _ in chunks)))
    total = lax.broadcast_in_dim(jnp.maximum(total, jnp.float32(1e-30)), empty.shape, [0])
    mixed: list[jax.Array] = [part / total for part in out]
    return mixed


def _product(left: Any, right: Any) -> jax.Array:
    """bf16[m, k] times bf16[k, n], both in shared memory: float32[m, n]."""

    def multiply(total: Any) -> jax.Array:
        plgpu.wgmma(total, left, right)
        product: jax.Array = total[...]
        return product

    result: jax.Array = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((left.shape[0], right.shape[1])))
    return result
