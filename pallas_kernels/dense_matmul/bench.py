"""Times every form of the dense product: `python -m pallas_kernels.dense_matmul.bench`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.dense_matmul import dense_matmul
from pallas_kernels.dense_matmul import implementation
from pallas_kernels.timing import measure
from pallas_kernels.timing import report

SHAPES = ((576, 960), (1536, 576), (4096, 6144), (4096, 4096))
ROWS = (2, 8, 64, 256)


def main() -> None:
    random = np.random.default_rng(0)
    forms = ["xla", "xla-tiled"] + (["mosaic"] if implementation().startswith("mosaic") else [])
    for k, n in SHAPES:
        weight = jnp.asarray(random.standard_normal((n, k), dtype=np.float32), jnp.bfloat16)
        for rows in ROWS:
            x = jnp.asarray(random.standard_normal((rows, k), dtype=np.float32), jnp.bfloat16)
            for form in forms:
                took = measure(jax.jit(functools.partial(dense_matmul, form=form)), x, weight)
                speed = 2 * n * k / (took["least_ms"] * 1e6), 2 * rows * n * k / (took["least_ms"] * 1e9)
                report(
                    operation="dense product", form=form, rows=rows, k=k, n=n, **took,
                    weight_gigabytes_per_s=speed[0], teraflops_per_s=speed[1],
                )  # fmt: skip


if __name__ == "__main__":
    main()
