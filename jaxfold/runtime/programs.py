"""The compiled programs: steps, draws and the slot reset, all ready before the engine says so.

A warm start loads serialised executables. They hold a pickle, so the cache directory is the engine's own with mode
0700, and the key covers everything the code depends on: JAX versions, device, flags, config, shapes and sources.
"""

import functools
import hashlib
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import as_completed
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxfold.models
import jaxfold.runtime.sampling
import pallas_kernels
from jaxfold.models.config import DecoderConfig
from jaxfold.models.decoder import Cache
from jaxfold.models.decoder import Weights
from jaxfold.models.decoder import forward
from jaxfold.models.decoder import logits
from jaxfold.models.layers.shards import Shards
from jaxfold.models.plan import Plan
from jaxfold.models.plan import abstract_plan
from jaxfold.runtime.placement import ONE_DEVICE
from jaxfold.runtime.placement import Placement
from jaxfold.runtime.program_store import obtain
from jaxfold.runtime.program_store import own_dir
from jaxfold.runtime.program_store import without_jax_cache
from jaxfold.runtime.sampling.draw import draw
from jaxfold.runtime.sampling.rows import BIAS_LIMIT
from jaxfold.runtime.sampling.rows import REALS
from jaxfold.runtime.sampling.rows import WORDS
from jaxfold.runtime.sampling.rows import DrawRows
from jaxfold.runtime.sampling.score import Scored
from jaxfold.runtime.sampling.state import DrawState
from jaxfold.runtime.sampling.state import reset_slot
from jaxfold.runtime.table import StepShape
from jaxfold.runtime.table import Table
from pallas_kernels.forms import kernels

LOG = logging.getLogger(__name__)
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCounter:
    """Counts the process's XLA compilations; `since_ready` must stay 0 while serving."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._mark = 0
        jax.monitoring.register_event_duration_secs_listener(self._seen)

    def _seen(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILE_EVENT:
            with self._lock:
                self._count += 1

    def mark_ready(self) -> None:
        with self._lock:
            self._mark = self._count

    @property
    def since_ready(self) -> int:
        with self._lock:
            return self._count - self._mark


def _step(
    weights: Weights,
    cache: Cache,
    plan: Plan,
    last: jax.Array,
    *,
    cfg: DecoderConfig,
    calls: tuple[int, ...],
    shards: Shards,
) -> tuple[tuple[jax.Array, ...], Cache]:
    """Hidden rows float32[R, hidden_size] for each of the draws, whose rows are `calls`, and the cache."""
    hidden, cache = forward(weights, cache, plan, cfg, last, shards)
    return tuple(jnp.split(hidden, list(accumulate(calls))[:-1])), cache


class Draw(NamedTuple):
    """One draw: `tokens` int32[R], what their log-probabilities are made of, `logits` float32[R, vocab or more].

    Over several devices the logits stay where they were computed, with columns of padding behind the vocabulary.
    """

    tokens: jax.Array
    scored: Scored
    logits: jax.Array


def _draw(
    weights: Weights,
    hidden: jax.Array,
    state: DrawState,
    rows: DrawRows,
    mask: jax.Array,
    *,
    cfg: DecoderConfig,
    shards: Shards,
) -> tuple[Draw, DrawState]:
    """The draw and the new lane state."""
    scores = logits(weights, hidden, cfg)
    drawn = draw(scores, state, rows, mask, cfg.vocab_size, shards.axis)
    return Draw(drawn.tokens, drawn.scored, scores), drawn.state


class Programs:
    """Every program of a table, compiled. Calls dispatch and return device arrays without waiting."""

    def __init__(self, cfg: DecoderConfig, table: Table, cache_dir: Path | None, place: Placement = ONE_DEVICE) -> None:
        self.cfg = cfg
        self.table = table
        self.place = place
        self.cache_dir = None if cache_dir is None else own_dir(cache_dir)
        self._steps: dict[StepShape, Callable[..., Any]] = {}
        self._draws: dict[int, Callable[..., Any]] = {}
        self._reset: Callable[..., Any] | None = None
        self._free: dict[int, jax.Array] = {}
        self._whole: dict[int, Callable[..., Any]] = {}

    def warm_up(
        self, weights: Weights, cache: Cache, state: DrawState, progress: Callable[[str], None] | None = None
    ) -> int:
        """Compile everything (or load it from the cache directory). Returns how many were compiled afresh."""
        spread = (self.place.sharing, self.cfg.vocab_size)
        arrays = (self.cfg, _shapes(weights), _shapes(cache), _shapes(state.last), spread)
        # A draw depends on little of the model, so models that differ elsewhere share it.
        head = repr((_shapes(_head(weights)), _shapes(state)))
        head += repr((self.cfg.compute_dtype, self.cfg.logit_soft_cap, self.cfg.norm_eps, spread))
        jobs = [
            (
                str(shape),
                repr((arrays, self.table.calls(shape), self.table.widths)),
                self._step_job(shape, weights, cache, state),
            )
            for shape in self.table.steps
        ]
        jobs += [(f"draw {n}", head, self._draw_job(n, weights, state)) for n in self.table.draws]
        if self.place.several_hosts:
            jobs += [(f"whole {n}", head, self._whole_job(n, state)) for n in self.table.draws]
        jobs.append(("reset", repr((_shapes(state), self.place.sharing.count)), self._reset_job(state)))
        missing = sum(not self._is_cached(name, facts) for name, facts, _ in jobs)
        if progress is not None and not missing:
            progress(f"loading {len(jobs)} compiled programs")
        compiled = 0
        with without_jax_cache(), ThreadPoolExecutor(max_workers=max(1, min(4, os.cpu_count() or 1))) as pool:
            pending = {pool.submit(self._obtain, *job): job[0] for job in jobs}
            if progress is not None and missing:
                progress(f"compiling {missing} programs, once for this model and machine: a minute or more")
            for done in as_completed(pending):
                program, fresh = done.result()
                self._keep(pending[done], program)
                compiled += fresh
                if progress is not None and fresh and compiled < missing:
                    progress(f"compiling, {compiled} of {missing} done")
        LOG.debug("%d programs: %d compiled, %d loaded", len(jobs), compiled, len(jobs) - compiled)
        return compiled

    def step(
        self, shape: StepShape, weights: Weights, cache: Cache, plan: Plan, last: jax.Array
    ) -> tuple[tuple[jax.Array, ...], Cache]:
        """Dispatch one step: hidden float32[R, hidden_size] for each of its draws, and the cache, which is donated."""
        hidden, cache = self._steps[shape](weights, cache, plan, last)
        return hidden, cache

    def draw(
        self, weights: Weights, hidden: jax.Array, state: DrawState, rows: DrawRows, mask: np.ndarray | None = None
    ) -> tuple[Draw, DrawState]:
        """Dispatch one draw of R rows: what was drawn, and the lane state; `state` is donated.

        `mask` int32[R, mask_words] is for rows with the word `MASKED`.
        """
        count = hidden.shape[0]
        drawn, state = self._draws[count](weights, hidden, state, rows, self._free[count] if mask is None else mask)
        return drawn, state

    @property
    def mask_words(self) -> int:
        """Words of a row's mask, with a bit for each token."""
        return -(-self.cfg.vocab_size // 32)

    def whole(self, logits: jax.Array) -> jax.Array:
        """A draw's logits where this host can read all of them; already there unless several hosts share them."""
        gather = self._whole.get(logits.shape[0])
        whole: jax.Array = logits if gather is None else gather(logits)
        return whole

    def reset(self, state: DrawState, slot: int, ids: np.ndarray, values: np.ndarray) -> DrawState:
        """Dispatch the reset of one slot's lane state; `state` is donated."""
        if self._reset is None:
            raise RuntimeError("warm_up has not run")
        done: DrawState = self._reset(state, np.int32(slot), np.int32(0), ids, values)
        return done

    def _step_job(self, shape: StepShape, weights: Weights, cache: Cache, state: DrawState) -> Callable[[], Any]:
        def lower() -> Any:
            calls = self.table.calls(shape)
            plan = abstract_plan(shape.parts, sum(calls), self.table.widths)
            step = functools.partial(
                _step, cfg=self.place.sharing.local(self.cfg), calls=calls, shards=self.place.shards
            )
            same, pages = self.place.spec(), self.place.cache_spec
            weight = self.place.weight_specs(self.cfg, weights.layers[0].qkv.dtype)
            jitted = self.place.jit(step, takes=(weight, pages, same, same), gives=(same, pages), donate=1)
            return jitted.lower(_shapes(weights), _shapes(cache), plan, _shapes(state.last))

        return lower

    def _draw_job(self, rows: int, weights: Weights, state: DrawState) -> Callable[[], Any]:
        def lower() -> Any:
            hidden = jax.ShapeDtypeStruct((rows, self.cfg.hidden_size), jnp.float32)
            # Thread-local and part of the trace: the draw is float64 inside, the steps are not.
            with jax.enable_x64(True):
                columns = DrawRows(
                    jax.ShapeDtypeStruct((rows, REALS), np.float64), jax.ShapeDtypeStruct((rows, WORDS), np.int64)
                )
                mask = jax.ShapeDtypeStruct((rows, self.mask_words), np.int32)
                same, kept = self.place.spec(), self.place.state_specs
                weight = _head(self.place.weight_specs(self.cfg, weights.layers[0].qkv.dtype))
                jitted = self.place.jit(
                    functools.partial(_draw, cfg=self.cfg, shards=self.place.shards),
                    takes=(weight, same, kept, same, same),
                    gives=(Draw(same, same, self.place.spec(None, "vocab")), kept),  # type: ignore[arg-type]
                    donate=2,
                )
                return jitted.lower(_shapes(_head(weights)), hidden, _shapes(state), columns, mask)

        return lower

    def _whole_job(self, rows: int, state: DrawState) -> Callable[[], Any]:
        def lower() -> Any:
            width = state.bias.shape[1]
            gather = functools.partial(self.place.shards.joined, width=width)
            takes, gives = self.place.spec(None, "vocab"), self.place.spec()
            jitted = self.place.jit(gather, takes=(takes,), gives=gives, donate=())
            return jitted.lower(jax.ShapeDtypeStruct((rows, width), jnp.float32))

        return lower

    def _reset_job(self, state: DrawState) -> Callable[[], Any]:
        def lower() -> Any:
            scalar = jax.ShapeDtypeStruct((), jnp.int32)
            ids = jax.ShapeDtypeStruct((BIAS_LIMIT,), jnp.int32)
            values = jax.ShapeDtypeStruct((BIAS_LIMIT,), jnp.float32)
            same, kept = self.place.spec(), self.place.state_specs
            reset = functools.partial(reset_slot, axis=self.place.shards.axis)
            jitted = self.place.jit(reset, takes=(kept, same, same, same, same), gives=kept, donate=0)
            return jitted.lower(_shapes(state), scalar, scalar, ids, values)

        return lower

    def _keep(self, name: str, program: Callable[..., Any]) -> None:
        if name == "reset":
            self._reset = program
        elif name.startswith("whole "):
            self._whole[int(name.removeprefix("whole "))] = program
        elif name.startswith("draw "):
            rows = int(name.removeprefix("draw "))
            self._free[rows] = self.place.replicated(np.zeros((rows, self.mask_words), np.int32))

            def call(weights: Weights, *args: Any) -> Any:
                with jax.enable_x64(True):
                    return program(_head(weights), *args)

            self._draws[rows] = call
        else:
            self._steps[next(shape for shape in self.table.steps if str(shape) == name)] = program

    def _file(self, name: str, facts: str) -> Path | None:
        return self.cache_dir / f"{program_key(name, facts)}.xla" if self.cache_dir else None

    def _is_cached(self, name: str, facts: str) -> bool:
        path = self._file(name, facts)
        return path is not None and path.exists()

    def _obtain(self, name: str, facts: str, lower: Callable[[], Any]) -> tuple[Any, bool]:
        """The executable, from the cache directory or compiled; and whether it was compiled."""
        return obtain(self._file(name, facts), lower, self.place.sharing.count)


def program_key(name: str, facts: str) -> str:
    """Hex digest of everything that compiled code depends on: versions, device, flags, sources and the given facts."""
    device = jax.devices()[0]
    parts = [
        jax.__version__,
        version("jaxlib"),
        device.platform,
        device.device_kind,
        str(len(jax.devices())),
        cpu_flags(),
        os.environ.get("XLA_FLAGS", ""),
        source_hash(),
        *kernels(),
        name,
        facts,
    ]
    if jax.process_count() > 1:
        parts.append(f"host {jax.process_index()} of {jax.process_count()}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _head(weights: Weights) -> Weights:
    """The part of the weights that scores need, so that a draw's call flattens few leaves."""
    return Weights(embed=weights.embed, layers=(), final_norm=weights.final_norm, head=weights.head)


def cpu_flags() -> str:
    """The processor's instruction sets: code compiled for one must not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


@functools.lru_cache(maxsize=1)
def source_hash() -> str:
    """Digest of the source files that programs are traced from."""
    digest = hashlib.sha256()
    for package in (jaxfold.models, jaxfold.runtime.sampling, pallas_kernels):
        for root in package.__path__:
            for file in sorted(path for kind in ("*.py", "*.cc", "*.h") for path in Path(root).rglob(kind)):
                digest.update(file.name.encode())
                digest.update(file.read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()
