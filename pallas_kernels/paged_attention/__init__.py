"""Ragged attention of query windows over paged keys and values.

Layouts: pages are `[kv_heads, pages, page_size, head_dim]`; a lane's table lists its pages in logical order;
page 0 is scratch, which no valid row's keys lie in.  One formulation serves decode, verify windows and prefill chunks.
"""

from pallas_kernels.paged_attention.dispatch import attend
from pallas_kernels.paged_attention.dispatch import implementation

__all__ = ["attend", "implementation"]
