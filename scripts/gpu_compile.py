"""Compiles the GPU kernels and an 8B-shaped model down to machine code for an H200, on a machine without a GPU.

    python scripts/gpu_compile.py            the kernels: registers and spills of each, as ptxas tells them
    python scripts/gpu_compile.py --model    and whole steps, with the memory they need

It needs JAX's CUDA plugin (`pip install -e '.[cuda]'`) and ptxas on the PATH, no driver. A JSON line a program; exit
status 1 where one does not compile. Lowering alone is tested in tests/pallas_kernels, without the plugin.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import gpu_check
import jax
import jax.numpy as jnp
from jax.experimental import topologies

from jaxfold.models import decoder
from jaxfold.models.config import FULL
from jaxfold.models.params import abstract
from pallas_kernels.dense_matmul import dense_matmul
from pallas_kernels.page_write import write_rows

# What XLA asks of a device before it compiles for it; an H200 by its data sheet and CUDA's occupancy tables.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 memory_bandwidth: 4800000000000 l2_cache_size: 52428800
  device_memory_size: 151397597184 registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64 device_address_bits: 64
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  device_vendor: "NVIDIA Corporation" name: "NVIDIA H200" platform_version: "Compute Capability 9.0a"
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H200"
"""
PTXAS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads\s+ptxas info\s+: Used (\d+) registers")
Program = tuple[str, Any, tuple[Any, ...], dict[str, Any]]


def kernels() -> Iterator[Program]:
    """Name, jitted function, shapes and options of every kernel that is compiled."""

    def bf16(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    def int32(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    for rows, k, n in ((8, 4096, 28672), (256, 4096, 6144), (300, 64, 192)):
        yield f"dense product {rows} x {k} x {n}", jax.jit(dense_matmul), (bf16(rows, k), bf16(n, k)), {}
    for kv_heads, dim in ((8, 128), (8, 64), (1, 512)):
        arrays = bf16(kv_heads, 1000, 64, dim), bf16(32, kv_heads, dim), int32(32), int32(32)
        yield f"page write {kv_heads} x {dim}", jax.jit(write_rows, donate_argnums=0), arrays, {}
    for case in gpu_check.attention_cases(gpu_check.Run(small=False, form="mosaic")):
        table = int32(case.lanes, 2048 // case.page), int32(case.lanes), int32(case.lanes)
        pages = bf16(case.kv_heads, 1000, case.page, case.dim)
        q = bf16(case.lanes, case.columns, case.kv_heads * case.group, case.dim)
        options: dict[str, Any] = {"scale": 0.1, "window": case.window, "soft_cap": case.soft_cap}
        if case.sinks:
            options["sinks"] = jax.ShapeDtypeStruct((case.kv_heads * case.group,), jnp.float32)
        yield f"attention {case.facts()}", gpu_check.attend("mosaic"), (q, pages, pages, *table), options


def steps() -> Iterator[Program]:
    """Decode and prefill steps of an 8B-shaped model."""
    cfg = gpu_check.model_config(gpu_check.Run(small=False, form="mosaic"))
    bf16 = jnp.dtype(jnp.bfloat16)
    weights = abstract(decoder.declare(cfg), bf16)
    cache = jax.eval_shape(lambda: decoder.new_cache(cfg, {FULL: 1 + 32 * 32}, 64, bf16))
    for lanes, columns in ((1, 1), (32, 1), (1, 512)):
        tokens, lane = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((lanes, columns), (lanes,)))
        yield f"step {lanes} x {columns}", gpu_check.step, (weights, cache, tokens, lane, lane), {"cfg": cfg}


def compile_all(programs: Iterator[Program]) -> bool:
    """Compile each for an H200 that is not here; one JSON line each, after what ptxas prints of its kernels."""
    topology = topologies.get_topology_desc("h200", platform="cuda", topology="1x1x1", target_config=H200)
    sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    good = True

    def put(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    for name, function, shapes, options in programs:
        begun, facts = time.monotonic(), {}
        try:
            with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
                lowered = function.lower(*jax.tree.map(put, shapes), **{k: put(v) for k, v in options.items()})
            memory = lowered.compile().memory_analysis()
            facts = {
                "ok": True,
                "temp_mb": memory.temp_size_in_bytes / 1e6,
                "in_place_mb": memory.alias_size_in_bytes / 1e6,
            }
        except Exception as error:
            good, facts = False, {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps({"program": name, **facts, "seconds": round(time.monotonic() - begun, 1)}), flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", action="store_true", help="whole steps too: half a minute each")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        good = compile_all(kernels())
        return 0 if (not options.model or compile_all(steps())) and good else 1
    # The kernels' compiler prints to the process's own output: so there is a process whose output can be read.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "MOSAIC_GPU_DUMP_PTXAS": "1"}
    command = [sys.executable, __file__, "--worker", *(["--model"] if options.model else [])]
    worker = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said: list[str] = []
    for line in worker.stdout or ():
        if not line.startswith('{"program"'):
            said.append(line)
            continue
        found = PTXAS.findall("".join(said))
        used = (
            {"registers": max(int(f[2]) for f in found), "spilled_bytes": max(int(f[0]) for f in found)}
            if found
            else {}
        )
        print(json.dumps(json.loads(line) | used), flush=True)
        said = []
    if worker.wait() != 0:
        print("".join(said[-20:]), file=sys.stderr)
    return worker.returncode


if __name__ == "__main__":
    sys.exit(main())
