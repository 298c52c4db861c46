"""Products of rows with the matrix of the expert that each row goes to, for mixtures of experts.

    out[r, n] = sum_k x[r, k] weights[expert[r], n, k]

A row that goes to several experts is given several times. Its bits depend on the row and its expert alone.
"""

from pallas_kernels.expert_matmul.dispatch import expert_matmul
from pallas_kernels.expert_matmul.dispatch import implementation

__all__ = ["expert_matmul", "implementation"]
