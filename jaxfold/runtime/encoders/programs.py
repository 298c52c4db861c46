"""The encoder's compiled programs, one for each number of rows, all ready before the encoder says so."""

import os
from collections.abc import Callable
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxfold.models.encoder import Batch
from jaxfold.models.encoder import EncoderConfig
from jaxfold.models.encoder import EncoderWeights
from jaxfold.models.encoder import encode
from jaxfold.runtime.encoders.packing import PLACES
from jaxfold.runtime.program_store import obtain
from jaxfold.runtime.program_store import own_dir
from jaxfold.runtime.program_store import without_jax_cache
from jaxfold.runtime.programs import program_key


class EncoderPrograms:
    """Calls dispatch and return device arrays without waiting."""

    def __init__(self, cfg: EncoderConfig, counts: Sequence[int], cache_dir: Path | None) -> None:
        self.cfg = cfg
        self.counts = tuple(counts)
        self.cache_dir = None if cache_dir is None else own_dir(cache_dir)
        self._programs: dict[int, Callable[..., Any]] = {}

    def warm_up(self, weights: EncoderWeights, progress: Callable[[str], None] = lambda _: None) -> int:
        """Compile everything (or load it from the cache directory). Returns how many were compiled afresh.

        Of `weights` only shapes and dtypes are read.
        """
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), weights)
        facts = repr((self.cfg, shapes, PLACES))
        files = {rows: self._file(rows, facts) for rows in self.counts}
        missing = sum(file is None or not file.exists() for file in files.values())
        progress(f"compiling {missing} encoder programs" if missing else f"loading {len(files)} encoder programs")
        compiled = 0
        with without_jax_cache(), ThreadPoolExecutor(max_workers=max(1, min(4, os.cpu_count() or 1))) as pool:
            pending = {pool.submit(obtain, file, self._lower(rows, shapes)): rows for rows, file in files.items()}
            for done in as_completed(pending):
                self._programs[pending[done]], fresh = done.result()
                compiled += fresh
        return compiled

    def run(self, weights: EncoderWeights, batch: Batch) -> jax.Array:
        """Dispatch one call: float32[PLACES, hidden_size]."""
        pooled: jax.Array = self._programs[batch.tokens.shape[0]](weights, batch)
        return pooled

    def _lower(self, rows: int, shapes: EncoderWeights) -> Callable[[], Any]:
        def lower() -> Any:
            row, place = jax.ShapeDtypeStruct((rows,), jnp.int32), jax.ShapeDtypeStruct((PLACES,), jnp.int32)
            batch = Batch(row, row, row, row, place, place)  # type: ignore[arg-type]
            return jax.jit(encode, static_argnames="cfg").lower(shapes, batch, cfg=self.cfg)

        return lower

    def _file(self, rows: int, facts: str) -> Path | None:
        return None if self.cache_dir is None else self.cache_dir / f"{program_key(f'encode {rows}', facts)}.xla"
