"""Products of rows with a plain matrix, summed in float32: a row's bits never depend on how many rows there are.

out[r, n] = sum_k x[r, k] weight[n, k]
"""

from pallas_kernels.dense_matmul.dispatch import dense_matmul
from pallas_kernels.dense_matmul.dispatch import implementation

__all__ = ["dense_matmul", "implementation"]
