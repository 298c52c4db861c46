"""Times every form of the int8 product beside XLA's bf16 one: `python -m pallas_kernels.quantised_matmul.bench`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.quantised_matmul import implementation
from pallas_kernels.quantised_matmul import int8_matmul
from pallas_kernels.quantised_matmul import quantise_weight
from pallas_kernels.timing import measure
from pallas_kernels.timing import report

SHAPES = ((960, 576), (3072, 576), (576, 1536), (4096, 4096))
ROWS = (2, 8, 16, 256)


def main() -> None:
    random = np.random.default_rng(0)
    forms = ["xla"] + (["ffi"] if implementation() != "xla" else [])
    for n, k in SHAPES:
        weight = random.standard_normal((n, k), dtype=np.float32)
        values, scales = map(jnp.asarray, quantise_weight(weight))
        plain = jnp.asarray(weight).astype(jnp.bfloat16)
        for rows in ROWS:
            x = jnp.asarray(random.standard_normal((rows, k), dtype=np.float32))
            times = {
                form: measure(jax.jit(functools.partial(int8_matmul, form=form)), x, values, scales) for form in forms
            }
            times["bf16"] = measure(jax.jit(_bf16), x, plain)
            for form, took in times.items():
                work = n * k * rows / (took["least_ms"] * 1e6)
                report(operation="int8 product", form=form, n=n, k=k, rows=rows, **took, giga_products_per_s=work)


def _bf16(x: jax.Array, weight: jax.Array) -> jax.Array:
    contract = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(x.astype(weight.dtype), weight, contract, preferred_element_type=jnp.float32)


if __name__ == "__main__":
    main()
