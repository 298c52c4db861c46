"""Times every form of paged attention: `python -m pallas_kernels.paged_attention.bench`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.paged_attention import attend
from pallas_kernels.paged_attention import implementation
from pallas_kernels.timing import measure
from pallas_kernels.timing import report

PAGE, KEYS = 64, 2048
CASES = ((1, 1, 256), (8, 1, 256), (8, 1, 1500), (4, 4, 500), (1, 256, 0), (1, 256, 1700))
HEADS = ((3, 3, 64), (8, 4, 128))


def main() -> None:
    random = np.random.default_rng(0)
    forms = ["xla"] + (["ffi"] if implementation() != "xla" else [])
    for kv_heads, group, dim in HEADS:
        for lanes, columns, start in CASES:
            width = KEYS // PAGE
            shape = (kv_heads, 1 + lanes * width, PAGE, dim)
            keys, values = (
                jnp.asarray(random.standard_normal(shape, dtype=np.float32), jnp.bfloat16) for _ in range(2)
            )
            q = random.standard_normal((lanes, columns, kv_heads * group, dim), dtype=np.float32)
            table = jnp.arange(1, 1 + lanes * width, dtype=jnp.int32).reshape(lanes, width)
            where = jnp.full(lanes, start, jnp.int32), jnp.full(lanes, columns, jnp.int32)
            read = 2 * lanes * (start + columns) * kv_heads * dim * 2
            for form in forms:
                call = jax.jit(functools.partial(attend, scale=dim**-0.5, form=form))
                took = measure(call, jnp.asarray(q, jnp.bfloat16), keys, values, table, *where)
                facts = {"kv_heads": kv_heads, "group": group, "head_dim": dim, "lanes": lanes, "columns": columns}
                speed = read / (took["least_ms"] * 1e6)
                report(
                    operation="paged attention", form=form, **facts, start=start, **took, cache_gigabytes_per_s=speed
                )


if __name__ == "__main__":
    main()
