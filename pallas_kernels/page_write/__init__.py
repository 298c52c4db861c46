"""The write of new key or value rows into the pages of a cache, in place where the pages are donated.

Pages are `[kv_heads, pages, page_size, head_dim]`; page 0 is scratch, where padding rows write.
"""

from pallas_kernels.page_write.dispatch import implementation
from pallas_kernels.page_write.dispatch import write_rows

__all__ = ["implementation", "write_rows"]
