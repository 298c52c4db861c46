"""Which form of each operation runs in this process: a fact that compiled programs depend on."""

from pallas_kernels import dense_matmul
from pallas_kernels import expert_matmul
from pallas_kernels import packed_attention
from pallas_kernels import page_write
from pallas_kernels import paged_attention
from pallas_kernels import quantised_matmul


def kernels() -> tuple[str, ...]:
    """One text for each operation that has several forms, e.g. "paged attention: ffi (avx2)"."""
    return (
        f"paged attention: {paged_attention.implementation()}",
        f"page write: {page_write.implementation()}",
        f"packed attention: {packed_attention.implementation()}",
        f"int8 product: {quantised_matmul.implementation()}",
        f"dense product: {dense_matmul.implementation()}",
        f"expert product: {expert_matmul.implementation()}",
    )
