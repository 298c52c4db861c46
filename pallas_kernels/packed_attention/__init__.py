"""Attention inside sequences that lie one after the other in one array of rows: what encoders need, without padding.

    out[t, h] = sum_j softmax_j(scale q[t, h] . k[j, h]) v[j, h],    j in begin[t] .. end[t] - 1

A row's result depends on its own sequence alone: not on where that lies, nor on what else is in the array.
"""

from pallas_kernels.packed_attention.dispatch import alignment
from pallas_kernels.packed_attention.dispatch import attend
from pallas_kernels.packed_attention.dispatch import implementation

__all__ = ["alignment", "attend", "implementation"]
