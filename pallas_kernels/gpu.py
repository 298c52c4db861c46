"""Which GPU programs are compiled for. Nothing here imports Mosaic: a server on a CPU does not wait for it."""

import jax

HOPPER_NAMES = ("NVIDIA H100", "NVIDIA H200", "NVIDIA GH200", "NVIDIA H800", "NVIDIA H20")


def hopper() -> bool:
    """Whether the kernels compile for this process's devices, or for the abstract device of a mesh that is in force."""
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    if abstract is not None:
        return bool(abstract.device_kind.startswith(HOPPER_NAMES))
    if jax.default_backend() != "gpu":
        return False
    return getattr(jax.devices()[0], "compute_capability", None) == "9.0"


def implementation(cpu: str | None = None) -> str:
    """How an operation with a Mosaic form names what runs here: "mosaic (sm_90a)", `cpu` where given, else "xla"."""
    if hopper():
        return "mosaic (sm_90a)"
    return "xla" if cpu is None or jax.default_backend() != "cpu" else cpu
