"""Ragged attention of query windows over paged keys and values, and the write of new rows into pages.

Layouts: pages are `[kv_heads, pages, page_size, head_dim]`; a lane's table lists its pages in logical order;
page 0 is scratch, where padding rows write.  One formulation serves decode, verify windows and prefill chunks.
"""

from pallas_kernels.paged_attention.dispatch import attend
from pallas_kernels.paged_attention.dispatch import implementation
from pallas_kernels.paged_attention.dispatch import write_rows

__all__ = ["attend", "implementation", "write_rows"]
