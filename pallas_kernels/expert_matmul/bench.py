"""Times the experts' product: `python -m pallas_kernels.expert_matmul.bench`."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.expert_matmul import expert_matmul
from pallas_kernels.expert_matmul import implementation
from pallas_kernels.timing import measure
from pallas_kernels.timing import report

EXPERTS, K, N = 32, 1024, 1024
ROWS = (2, 16, 128)


def main() -> None:
    random = np.random.default_rng(0)
    weights = jnp.asarray(random.standard_normal((EXPERTS, N, K), dtype=np.float32), jnp.bfloat16)
    for rows in ROWS:
        x = jnp.asarray(random.standard_normal((rows, K), dtype=np.float32), jnp.bfloat16)
        expert = random.integers(0, EXPERTS, rows).astype(np.int32)
        took = measure(jax.jit(expert_matmul), x, weights, expert)
        read = len(set(expert.tolist())) * N * K * 2
        facts = {"experts": EXPERTS, "rows": rows, "k": K, "n": N}
        speed = read / (took["least_ms"] * 1e6)
        report(operation="expert product", form=implementation(), **facts, **took, weight_gigabytes_per_s=speed)


if __name__ == "__main__":
    main()
