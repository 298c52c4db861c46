"""Checks the kernels and a whole model on a GPU: versions, results, exactness, speed. `scripts/gpu_check.sh` runs it.

A JSON line a result. "ok" is there where something can be wrong: an error above the stated tolerance, bits that differ.
Speeds stand beside what this very machine reaches in a plain copy and in a plain product, measured in the same run.
With `--small` the sizes fit a CPU, and the Mosaic kernels are interpreted where there is no GPU.
"""

import argparse
import functools
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfold.models import decoder
from jaxfold.models.config import FULL
from jaxfold.models.config import DecoderConfig
from jaxfold.models.config import RopeConfig
from jaxfold.models.params import initial
from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan
from pallas_kernels import dense_matmul
from pallas_kernels import expert_matmul
from pallas_kernels import gpu
from pallas_kernels import page_write
from pallas_kernels import paged_attention
from pallas_kernels.dense_matmul import reference as dense_reference
from pallas_kernels.expert_matmul import reference as expert_reference
from pallas_kernels.forms import kernels
from pallas_kernels.page_write import reference as write_reference
from pallas_kernels.paged_attention import reference as attention_reference

Facts = dict[str, Any]
# After this many seconds no further check begins, so that the whole run stays under eight minutes.
BUDGET_S = 400
# Error of a float32 sum of bf16 products, as a part of the largest result: tensor cores cut off, they do not round.
BF16_SUM = 1e-4


@dataclass
class Run:
    """What the checks share: sizes, forms, the ceilings once they are measured, and which checks failed."""

    small: bool
    form: str
    begun: float = field(default_factory=time.monotonic)
    copy_gb_s: float = 0.0
    matmul_tflop_s: float = 0.0
    failed: list[str] = field(default_factory=list)

    @property
    def interpreted(self) -> bool:
        return self.form == "mosaic-interpreted"

    def report(self, check: str, ok: bool | None = None, **facts: Any) -> None:
        """Print one result; floats to four digits."""
        line: Facts = {"check": check} | ({} if ok is None else {"ok": bool(ok)})
        for name, value in facts.items():
            line[name] = float(f"{value:.4g}") if isinstance(value, float) else value
        print(json.dumps(line), flush=True)
        if ok is not None and not ok:
            self.failed.append(check)

    def speed(self, check: str, seconds: float, read: int, flop: int = 0, **facts: Any) -> None:
        """Report a time with the bytes it needs and what it computes, each beside its ceiling."""
        gb_s, tflop_s = read / seconds / 1e9, flop / seconds / 1e12
        if flop:
            facts |= {"tflop_s": tflop_s, "of_matmul": tflop_s / self.matmul_tflop_s}
        self.report(check, ms=seconds * 1e3, gb_s=gb_s, of_copy=gb_s / self.copy_gb_s, **facts)


def seconds_of(run: Run, call: Callable[..., Any], *args: Any) -> float:
    """Seconds a call takes: the median of three batches of calls, queued one behind the other."""
    jax.block_until_ready(call(*args))
    calls = 1 if run.small else 20
    batches = []
    for _ in range(1 if run.small else 3):
        begun = time.perf_counter()
        jax.block_until_ready([call(*args) for _ in range(calls)])
        batches.append((time.perf_counter() - begun) / calls)
    return statistics.median(batches)


def normal(key: int, shape: tuple[int, ...], dtype: Any = jnp.bfloat16) -> jax.Array:
    """Random values: small arrays come from the host, which has nothing to compile."""
    if math.prod(shape) < 2**22:
        drawn = np.random.default_rng(key).standard_normal(shape, dtype=np.float32)
        return jnp.asarray(drawn.astype(dtype))
    return jax.random.normal(jax.random.key(key), shape, jnp.float32).astype(dtype)


def versions(run: Run) -> None:
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit", 0)
    run.report(
        "versions", python=platform.python_version(), jax=jax.__version__, jaxlib=version("jaxlib"),
        platform=device.platform, device=device.device_kind, devices=len(jax.devices()),
        compute_capability=str(getattr(device, "compute_capability", "")), backend=device.client.platform_version,
        memory_gib=memory / 2**30, kernels=list(kernels()), mosaic_form=run.form, small=run.small,
    )  # fmt: skip


def ceilings(run: Run) -> None:
    """What a plain copy and a plain product reach here; every other speed is a part of these."""
    size = 2**20 if run.small else 2**30
    source = normal(0, (size // 2,))
    took = seconds_of(run, jax.jit(lambda x: -x), source)
    run.copy_gb_s = 2 * size / took / 1e9
    run.report("ceiling copy", bytes=2 * size, ms=took * 1e3, gb_s=run.copy_gb_s)
    n = 256 if run.small else 8192
    left, right = normal(1, (n, n)), normal(2, (n, n))
    took = seconds_of(run, jax.jit(functools.partial(jnp.matmul, preferred_element_type=jnp.float32)), left, right)
    run.matmul_tflop_s = 2 * n**3 / took / 1e12
    run.report("ceiling matmul", shape=[n, n, n], dtype="bfloat16", ms=took * 1e3, tflop_s=run.matmul_tflop_s)


def close(run: Run, check: str, found: Any, wanted: Any, tolerance: float, **facts: Any) -> None:
    """Report the largest error relative to the largest value wanted."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    error = float(np.max(np.abs(found - wanted)) / max(float(np.max(np.abs(wanted))), 1e-30))
    run.report(check, ok=error <= tolerance, error=error, tolerance=tolerance, **facts)


def forms_of(run: Run, dtype: str, others: tuple[str, ...]) -> tuple[str, ...]:
    return (run.form, *others) if dtype == "bfloat16" and run.form != "xla" else others


def dense_results(run: Run) -> None:
    rows = (3, 70) if run.small else (1, 8, 64, 65, 256, 300)
    for k, n in ((192, 128),) if run.small else ((4096, 6144), (14336, 4096)):
        for dtype, tolerance in (("bfloat16", BF16_SUM), ("float32", 2e-3 if gpu.hopper() else 1e-5)):
            weight, x = normal(k, (n, k), dtype), normal(n, (max(rows), k), dtype)
            wanted = dense_reference.dense_matmul(x.astype(jnp.float32), weight.astype(jnp.float32))
            for form in forms_of(run, dtype, ("xla-tiled",)):
                call = jax.jit(functools.partial(dense_matmul.dense_matmul, form=form))
                for count in rows:
                    facts = {"form": form, "dtype": dtype, "rows": count, "k": k, "n": n}
                    close(run, "dense result", call(x[:count], weight), wanted[:count], tolerance, **facts)


def expert_results(run: Run) -> None:
    rows, experts, k, n = (40, 4, 64, 32) if run.small else (96, 16, 2048, 1024)
    x, weights = normal(1, (rows, k)), normal(2, (experts, n, k))
    expert = np.random.default_rng(0).integers(0, experts, rows).astype(np.int32)
    call = jax.jit(expert_matmul.expert_matmul)
    found = np.asarray(call(x, weights, expert))
    wanted = expert_reference.expert_matmul(x.astype(jnp.float32), weights.astype(jnp.float32), expert)
    facts: Facts = {"form": expert_matmul.implementation(), "rows": rows, "experts": experts, "k": k, "n": n}
    close(run, "expert result", found, wanted, BF16_SUM, dtype="bfloat16", **facts)
    differ = [i for i in range(rows) if not same(call(x[i : i + 1], weights, expert[i : i + 1])[0], found[i])]
    run.report("expert exactness", ok=not differ, rows_that_differ=len(differ), **facts)


@dataclass(frozen=True)
class Attention:
    """One shape of attention over pages."""

    lanes: int
    columns: int
    kv_heads: int
    group: int
    dim: int
    keys: int
    page: int = 64
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False

    def arrays(self, dtype: Any = jnp.bfloat16) -> tuple[Any, ...]:
        """Queries that stand at the end of `keys` keys, pages, table, start, length."""
        width = -(-self.keys // 256) * 256 // self.page
        pages = (self.kv_heads, 1 + self.lanes * width, self.page, self.dim)
        order = 1 + np.random.default_rng(0).permutation(self.lanes * width)
        table = jnp.asarray(order.reshape(self.lanes, width), jnp.int32)
        start = jnp.full(self.lanes, self.keys - self.columns, jnp.int32)
        # Lanes of several lengths, as in a crowd.
        start = jnp.maximum(start - jnp.arange(self.lanes, dtype=jnp.int32) * (self.keys // 7 // self.lanes), 0)
        q = normal(3, (self.lanes, self.columns, self.kv_heads * self.group, self.dim), dtype)
        length = jnp.full(self.lanes, self.columns, jnp.int32)
        return q, normal(1, pages, dtype), normal(2, pages, dtype), table, start, length

    def options(self) -> Facts:
        found: Facts = {"scale": self.dim**-0.5, "window": self.window, "soft_cap": self.soft_cap}
        if self.sinks:
            found["sinks"] = normal(4, (self.kv_heads * self.group,), jnp.float32)
        return found

    def facts(self) -> Facts:
        return {name: value for name, value in vars(self).items() if value not in (None, False)}


def attention_cases(run: Run) -> Iterator[Attention]:
    if run.small:
        yield Attention(2, 2, 1, 2, 64, 200, page=32, window=100, soft_cap=20.0, sinks=True)
        return
    yield Attention(8, 1, 8, 4, 128, 2000)
    yield Attention(4, 8, 8, 4, 64, 1000, page=16, sinks=True)
    yield Attention(1, 256, 8, 4, 128, 1500)
    yield Attention(2, 40, 4, 2, 256, 900, window=512, soft_cap=50.0)
    yield Attention(4, 4, 1, 8, 512, 700, page=128)


def attention_results(run: Run) -> None:
    wanted_of = jax.jit(attention_reference.attend, static_argnames=("scale", "window", "soft_cap"))
    for case in attention_cases(run):
        for dtype, tolerance in (("bfloat16", 2e-2), ("float32", 2e-3 if gpu.hopper() else 2e-5)):
            arrays, options = case.arrays(dtype), case.options()
            wanted = wanted_of(*(array.astype(jnp.float32) for array in arrays[:3]), *arrays[3:5], **options)
            for form in forms_of(run, dtype, ("xla",)):
                found = attend(form)(*arrays, **options)
                facts = {"form": form, "dtype": dtype, **case.facts()}
                close(run, "attention result", found, wanted, tolerance, **facts)


@functools.cache
def attend(form: str) -> Callable[..., jax.Array]:
    call = functools.partial(paged_attention.attend, form=form)
    return jax.jit(call, static_argnames=("scale", "window", "soft_cap"))


def write_results(run: Run) -> None:
    for kv_heads, dim, rows in ((2, 64, 3),) if run.small else ((8, 128, 1), (8, 64, 300), (1, 512, 32)):
        pages = normal(0, (kv_heads, 40, 16, dim))
        order = np.random.default_rng(0).permutation(39 * 16)[:rows]
        where = (1 + order // 16).astype(np.int32), (order % 16).astype(np.int32)
        values = normal(1, (rows, kv_heads, dim), jnp.float32)
        wanted = write_reference.write_rows(pages, values.astype(jnp.bfloat16), *where)
        for form in forms_of(run, "bfloat16", ("xla",)):
            found = jax.jit(functools.partial(page_write.write_rows, form=form))(pages, values, *where)
            ok = np.array_equal(np.asarray(found).view(np.int16), wanted.view(np.int16))
            run.report("write result", ok=ok, form=form, kv_heads=kv_heads, dim=dim, rows=rows)


def same(left: Any, right: Any) -> bool:
    """Whether two float32 arrays have the same bits."""
    return np.array_equal(np.asarray(left).view(np.int32), np.asarray(right).view(np.int32))


def dense_exactness(run: Run) -> None:
    """A row alone, in part of a batch and in the whole of it. A simulated product needs a row to keep its place."""
    rows, k, n = (70, 192, 128) if run.small else (300, 4096, 6144)
    x, weight = normal(1, (rows, k)), normal(2, (n, k))
    for form in forms_of(run, "bfloat16", ("xla-tiled",)):
        call = jax.jit(functools.partial(dense_matmul.dense_matmul, form=form))
        whole = call(x, weight)
        firsts = (0, 64) if run.interpreted else (0, 1, 7, 8, 31, 63, 64, 65, 127, 128, rows - 1)
        ends = (1,) if run.small else (1, 2, 8, 64, 65, 130)
        spans = [(first, min(first + count, rows)) for first in firsts if first < rows for count in ends]
        differ = [span for span in spans if not same(call(x[slice(*span)], weight)[0], whole[span[0]])]
        facts: Facts = {"form": form, "rows": rows, "k": k, "n": n}
        run.report("dense exactness", ok=not differ, spans=len(spans), differ=differ, **facts)


def attention_exactness(run: Run) -> None:
    """A query of a window of several lanes, alone: as a decode step, as a shorter window, in a shorter table."""
    for case in attention_cases(run):
        arrays, options = case.arrays(), case.options()
        q, keys, values, table, start = arrays[:5]
        for form in forms_of(run, "bfloat16", ()):
            whole = attend(form)(*arrays, **options)
            lane, differ = case.lanes - 1, []
            firsts = (0,) if run.interpreted else sorted({0, case.columns // 2, case.columns - 1})
            for first in firsts:
                for count in {1, min(2, case.columns - first)}:
                    some = q[lane : lane + 1, first : first + count]
                    alone = (table[lane : lane + 1], start[lane : lane + 1] + first, jnp.full(1, count, jnp.int32))
                    found = attend(form)(some, keys, values, *alone, **options)
                    if not same(found[0], whole[lane, first : first + count]):
                        differ.append([first, count])
            run.report("attention exactness", ok=not differ, form=form, differ=differ, **case.facts())


def kernel_speeds(run: Run) -> None:
    k, n = (128, 128) if run.small else (4096, 28672)
    weight = normal(1, (n, k))
    for rows in (8,) if run.small else (1, 8, 64, 256, 2048):
        x = normal(2, (rows, k))
        for form in forms_of(run, "bfloat16", ("xla", "xla-tiled")):
            took = seconds_of(run, jax.jit(functools.partial(dense_matmul.dense_matmul, form=form)), x, weight)
            read, flop = 2 * (n * k + rows * k) + 4 * rows * n, 2 * rows * n * k
            run.speed("dense speed", took, read, flop, form=form, rows=rows, k=k, n=n)
    cases = (Attention(1, 1, 1, 2, 64, 100),) if run.small else (
        Attention(1, 1, 8, 4, 128, 8000), Attention(8, 1, 8, 4, 128, 4000), Attention(32, 1, 8, 4, 128, 4000),
        Attention(4, 8, 8, 4, 128, 4000), Attention(1, 512, 8, 4, 128, 512), Attention(1, 512, 8, 4, 128, 4096),
    )  # fmt: skip
    for case in cases:
        arrays, options = case.arrays(), case.options()
        seen = int(jnp.sum(arrays[4])) + case.lanes * case.columns
        pairs = int(jnp.sum(arrays[4] + case.columns // 2 + 1)) * case.columns * case.kv_heads * case.group
        for form in forms_of(run, "bfloat16", ("xla",)):
            took = seconds_of(run, functools.partial(attend(form), **options), *arrays)
            read = 2 * 2 * seen * case.kv_heads * case.dim
            run.speed("attention speed", took, read, 4 * pairs * case.dim, form=form, **case.facts())


def write_speeds(run: Run) -> None:
    """Pages are donated from call to call, as in a step: nothing but the rows moves."""
    pages = normal(0, (2, 20, 64, 64) if run.small else (8, 4000, 64, 128))
    kv_heads, count, size, dim = pages.shape
    for rows in (2,) if run.small else (8, 512):
        order = np.random.default_rng(0).permutation((count - 1) * size)[:rows]
        where = jnp.asarray(1 + order // size, jnp.int32), jnp.asarray(order % size, jnp.int32)
        values = normal(1, (rows, kv_heads, dim))
        for form in forms_of(run, "bfloat16", ("xla",)):
            call = jax.jit(functools.partial(page_write.write_rows, form=form), donate_argnums=0)
            pages = jax.block_until_ready(call(pages, values, *where))
            calls, begun = (1 if run.small else 100), time.perf_counter()
            for _ in range(calls):
                pages = call(pages, values, *where)
            jax.block_until_ready(pages)
            took = (time.perf_counter() - begun) / calls
            run.speed("write speed", took, 2 * 2 * rows * kv_heads * dim, form=form, rows=rows, pages=count)


def model_config(run: Run) -> DecoderConfig:
    """The shape of an 8B llama; in small, of next to nothing."""
    layers, hidden, inner, heads, kv, dim, vocab = (
        (1, 128, 256, 2, 1, 64, 512) if run.small else (32, 4096, 14336, 32, 8, 128, 128256)
    )
    return DecoderConfig(
        model_type="llama", vocab_size=vocab, hidden_size=hidden, intermediate_size=inner, num_layers=layers,
        num_heads=heads, num_kv_heads=kv, head_dim=dim, norm_eps=1e-5, max_position=8192,
        rope=((FULL, RopeConfig(500000.0, (1.0,) * (dim // 2))),), layer_groups=(FULL,) * layers, tied_head=False,
        compute_dtype="bfloat16",
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("cfg",), donate_argnames="cache")
def step(weights: Any, cache: Any, tokens: jax.Array, slot: jax.Array, start: jax.Array, *, cfg: DecoderConfig) -> Any:
    """One part of tokens int32[lanes, columns]: logits of each lane's last column, and the cache."""
    lanes, columns = tokens.shape
    width = 2048 // 64
    table = 1 + slot[:, None] * width + jnp.arange(width, dtype=jnp.int32)[None, :]
    length, keep = jnp.full(lanes, columns, jnp.int32), jnp.zeros(lanes, jnp.int32)
    part = Part(tokens, slot, start, length, keep, {FULL: table})
    last = jnp.arange(lanes, dtype=jnp.int32) * columns + (columns - 1)
    hidden, cache = decoder.forward(weights, cache, Plan((part,), last), cfg)
    return decoder.logits(weights, hidden, cfg), cache


def end_to_end(run: Run) -> None:
    """Prefill and decode of a whole model with random weights: speed, and a lane's bits alone and in company."""
    cfg = model_config(run)
    most, chunk, context = (2, 8, 16) if run.small else (32, 512, 1024)
    begun = time.monotonic()
    weights = initial(decoder.declare(cfg), jax.random.key(0), jnp.dtype(jnp.bfloat16), scale=0.02)
    cache = decoder.new_cache(cfg, {FULL: 1 + most * 2048 // 64}, 64, jnp.dtype(jnp.bfloat16))
    jax.block_until_ready(weights)
    size = sum(array.nbytes for array in jax.tree.leaves(weights))
    run.report("model", weights_gb=size / 1e9, seconds=time.monotonic() - begun)
    embedding = cfg.vocab_size * cfg.hidden_size * 2
    tokens = jax.random.randint(jax.random.key(1), (most, context + 1), 0, cfg.vocab_size, jnp.int32)

    def call(cache: Any, lanes: list[int], first: int, count: int) -> Any:
        slot = jnp.asarray(lanes, jnp.int32)
        start = jnp.full(len(lanes), first, jnp.int32)
        return step(weights, cache, tokens[slot, first : first + count], slot, start, cfg=cfg)

    def timed(cache: Any, lanes: list[int], first: int, count: int) -> tuple[float, Any]:
        cache = jax.block_until_ready(call(cache, lanes, first, count)[1])
        calls, begun = (1 if run.small else 10), time.perf_counter()
        for _ in range(calls):
            scores, cache = call(cache, lanes, first, count)
        jax.block_until_ready(scores)
        return (time.perf_counter() - begun) / calls, cache

    for lane in range(most):
        for first in range(0, context, chunk):
            _, cache = call(cache, [lane], first, chunk)
    for first in (0, context - chunk):
        took, cache = timed(cache, [0], first, chunk)
        flop = 2 * chunk * (size - 2 * embedding) // 2
        run.speed("prefill", took, size - embedding, flop, tokens=chunk, context=first, tokens_s=chunk / took)
    wholes: list[jax.Array] = []
    for lanes in (2,) if run.small else (32, 8, 2, 1):
        took, cache = timed(cache, list(range(lanes)), context, 1)
        read = size - embedding + lanes * context * cfg.kv_bytes_per_token(2)[FULL]
        run.speed("decode", took, read, lanes=lanes, context=context, tokens_s=lanes / took)
        scores, cache = call(cache, list(range(lanes)), context, 1)
        wholes.append(scores)
        differ = [i for i in range(lanes) if not same(scores[i], wholes[0][i])]
        run.report("decode exactness", ok=not differ, lanes=lanes, against=len(wholes[0]), differ=differ)
    # The same last token at the end of a chunk: a window and a decode step give the same bits.
    scores, _ = call(cache, [0], context + 1 - chunk, chunk)
    run.report("chunk exactness", ok=same(scores[0], wholes[0][0]), columns=chunk)


CHECKS = (
    versions, ceilings, dense_results, attention_results, write_results, expert_results, dense_exactness,
    attention_exactness, kernel_speeds, write_speeds, end_to_end,
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="small sizes, for a machine without a GPU")
    parser.add_argument("--only", nargs="*", default=[], help=f"of {', '.join(c.__name__ for c in CHECKS)}")
    options = parser.parse_args(arguments)
    if not options.small and jax.default_backend() != "gpu":
        print("there is no GPU that JAX can use here; --small runs the checks in small on a CPU", file=sys.stderr)
        return 2
    on_cpu = "mosaic-interpreted" if jax.default_backend() == "cpu" else "xla"
    run = Run(small=options.small, form="mosaic" if gpu.hopper() else on_cpu)
    skipped = []
    for check in CHECKS:
        if options.only and check.__name__ not in (*options.only, "versions", "ceilings"):
            continue
        if time.monotonic() - run.begun > BUDGET_S:
            skipped.append(check.__name__)
            continue
        try:
            check(run)
        except Exception as error:
            # One broken check must not hide the others.
            run.report(check.__name__, ok=False, error=f"{type(error).__name__}: {error}"[:2000])
    seconds = time.monotonic() - run.begun
    run.report("summary", ok=not (run.failed or skipped), failed=run.failed, skipped=skipped, seconds=seconds)
    return 1 if run.failed or skipped else 0


if __name__ == "__main__":
    sys.exit(main())
