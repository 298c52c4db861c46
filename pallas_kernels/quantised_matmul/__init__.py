"""Products with int8 weights: rows are quantised to 14 bits, sums are exact integers, so a row's bits never depend on
the batch, the chunking or the implementation.

    limit = min(8191, (2^31 - 1) // (127 k))          the largest |q| whose sum cannot leave int32
    q[r]  = round(x[r] * (limit / max|x[r]|))         int, ties to even; all 0 where max|x[r]| < 1e-30
    y     = float32(sum_k q w) * (max|x[r]| * (1 / limit) * scale[n])

Weights have one scale an output channel: w = round(W / scale), scale = max|W[n]| / 127.
"""

from pallas_kernels.quantised_matmul.dispatch import implementation
from pallas_kernels.quantised_matmul.dispatch import int8_matmul
from pallas_kernels.quantised_matmul.reference import quantise_weight

__all__ = ["implementation", "int8_matmul", "quantise_weight"]
