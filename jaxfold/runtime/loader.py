"""From options to a running engine: checkpoint, weights, cache, programs, self-check, in that order."""

import hashlib
import logging
import time
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import Literal

import jax
import jax.numpy as jnp

from jaxfold.checkpoints import Checkpoint
from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint
from jaxfold.models.config import DecoderConfig
from jaxfold.models.decoder import Weights
from jaxfold.models.decoder import new_cache
from jaxfold.runtime import self_check
from jaxfold.runtime.api import EngineInfo
from jaxfold.runtime.core import Core
from jaxfold.runtime.device import Device
from jaxfold.runtime.draft_loader import load_draft
from jaxfold.runtime.draft_loader import open_draft
from jaxfold.runtime.drafting import costs
from jaxfold.runtime.drafting.costs import measured
from jaxfold.runtime.drafting.drafter import Drafter
from jaxfold.runtime.drafting.planner import Planner
from jaxfold.runtime.engine import LocalEngine
from jaxfold.runtime.hosts.follower import follow
from jaxfold.runtime.hosts.group import Follower
from jaxfold.runtime.hosts.group import Group
from jaxfold.runtime.hosts.group import Leader
from jaxfold.runtime.lanes import Job
from jaxfold.runtime.lanes import LanePages
from jaxfold.runtime.memory import RESERVE_BYTES
from jaxfold.runtime.memory import CachePlan
from jaxfold.runtime.memory import free_bytes
from jaxfold.runtime.memory import plan_cache
from jaxfold.runtime.memory import return_freed_memory
from jaxfold.runtime.options import EngineOptions
from jaxfold.runtime.pages import PagePool
from jaxfold.runtime.placement import Placement
from jaxfold.runtime.placement import place
from jaxfold.runtime.prefix_tree import GroupSpec
from jaxfold.runtime.programs import CompileCounter
from jaxfold.runtime.programs import Programs
from jaxfold.runtime.programs import program_key
from jaxfold.runtime.queue import RequestQueue
from jaxfold.runtime.sampling.state import new_state
from jaxfold.runtime.schedule import DecodeShare
from jaxfold.runtime.table import make_table
from jaxfold.runtime.weights import check_shapes
from jaxfold.runtime.weights import is_quantised
from jaxfold.runtime.weights import load_weights
from jaxfold.runtime.weights import read_config
from jaxfold.runtime.weights import tree_bytes
from jaxfold.tokenizers import Tokenizer
from jaxfold.tokenizers import TokenizerError
from jaxfold.tokenizers import load_tokenizer
from pallas_kernels.paged_attention.xla import BLOCK

LOG = logging.getLogger(__name__)
Progress = Callable[[str], None]
Accept = Callable[[Checkpoint, Tokenizer], None]
_DTYPES: Mapping[str, Any] = {"f32": jnp.float32, "bf16": jnp.bfloat16, "int8": jnp.int8}
_SHORT: Mapping[str, str] = {"float32": "f32", "bfloat16": "bf16", "int8": "int8"}


@dataclass(frozen=True)
class LoadedModel:
    """A running engine and what the chat layer needs to talk to it."""

    engine: LocalEngine
    tokenizer: Tokenizer
    chat_template: str | None
    generation_config: Mapping[str, Any]
    name: str
    checkpoint: Checkpoint
    verdict: self_check.Verdict | None


@dataclass(frozen=True)
class _Prepared:
    """A model whose programs are compiled and whose weights are on their devices. `options` are those in force."""

    options: EngineOptions
    checkpoint: Checkpoint
    cfg: DecoderConfig
    tokenizer: Tokenizer
    weights: Weights
    plan: CachePlan
    kv_dtype: jnp.dtype
    programs: Programs
    drafter: Drafter | None


def load_engine(
    options: EngineOptions,
    progress: Progress = lambda _: None,
    accept: Accept = lambda *_: None,
    hosts: Leader | None = None,
) -> LoadedModel:
    """Load a model and start its engine; every program is compiled when this returns.

    `accept` is called once checkpoint and tokenizer are open, before the long work: what it raises is raised here.
    `hosts` are those that share the model with this one.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        CapacityError: the context asked for does not fit.
        HostError: the other hosts do not come, are not like this one, or were lost.
    """
    ready = _prepare(options, progress, accept, hosts)
    engine, verdict = start_engine(
        ready.cfg, ready.weights, ready.plan, ready.kv_dtype, ready.options, ready.checkpoint.fingerprint, progress,
        ready.programs, ready.drafter, hosts,
    )  # fmt: skip
    return LoadedModel(
        engine=engine,
        tokenizer=ready.tokenizer,
        chat_template=ready.checkpoint.chat_template,
        generation_config=ready.checkpoint.generation_config,
        name=options.model.stem if options.model.suffix == ".gguf" else options.model.name,
        checkpoint=ready.checkpoint,
        verdict=verdict,
    )


def follow_engine(options: EngineOptions, hosts: Follower, progress: Progress = lambda _: None) -> None:
    """Load this host's part of a model and make the device calls of host 0's engine, until that one ends.

    Raises:
        CheckpointError, CapacityError, HostError: as `load_engine`.
    """
    # Drafts are made on host 0; here they are rows like others.
    ready = _prepare(replace(options, draft_model=None), progress, lambda *_: None, hosts)
    device = _device(ready.programs, ready.weights, ready.plan, ready.options, ready.kv_dtype)
    hosts.ready()
    progress("following host 0")
    follow(device, hosts)


def _prepare(options: EngineOptions, progress: Progress, accept: Accept, hosts: Group | None) -> _Prepared:
    """The long work before an engine, or a follower, starts."""
    progress("opening the checkpoint")
    checkpoint = open_checkpoint(options.model)
    if hosts is not None:
        options = hosts.meet(checkpoint, options, progress)
    cfg, family = read_config(checkpoint)
    weight_dtype, compute, kv_dtype = choose_dtypes(options, is_quantised(checkpoint))
    cfg = replace(cfg, compute_dtype=compute_name(compute))
    tokenizer = read_tokenizer(checkpoint, cfg)
    if checkpoint.format != "orbax":
        check_shapes(checkpoint, cfg, family)
    accept(checkpoint, tokenizer)
    draft = open_draft(
        options, lambda found: choose_dtypes(_any_dtype(options), is_quantised(found)), read_tokenizer, tokenizer
    )
    spread = place(cfg, options.tp)
    _tell(spread, cfg)
    held = tree_bytes(spread.local_shapes(cfg, weight_dtype))
    budget = int(free_bytes(options.tp) * options.memory_fraction) - held - RESERVE_BYTES
    drafted = 0
    if draft is not None:
        budget -= draft.weight_bytes
        drafted = draft.context(options, options.context or cfg.max_position, budget)
        budget -= draft.cache_bytes(options, drafted)
    if hosts is not None:
        budget = hosts.least(budget)
    plan = _plan(spread.sharing.local(cfg), options, kv_dtype, budget)
    shapes = spread.weight_shapes(cfg, weight_dtype)
    # Compiling takes memory that is given back: done before weights and cache are there, it adds nothing to the peak.
    programs = ready_programs(cfg, shapes, plan, kv_dtype, options, progress)
    weights = load_weights(checkpoint, cfg, family, weight_dtype, options.weight_cache_dir, progress, spread)
    drafter = None if draft is None else load_draft(draft, options, drafted, cfg.vocab_size, progress)
    return _Prepared(options, checkpoint, cfg, tokenizer, weights, plan, kv_dtype, programs, drafter)


def _device(
    programs: Programs,
    weights: Weights,
    plan: CachePlan,
    options: EngineOptions,
    kv_dtype: jnp.dtype,
    hosts: Leader | None = None,
) -> Device:
    """The device; the one that other hosts share where there are some."""
    make = Device if hosts is None else hosts.device
    return make(programs, weights, plan.pages, options.page_size, kv_dtype, plan.context)


def start_engine(
    cfg: DecoderConfig,
    weights: Weights,
    plan: CachePlan,
    kv_dtype: jnp.dtype,
    options: EngineOptions,
    fingerprint: str,
    progress: Progress = lambda _: None,
    programs: Programs | None = None,
    drafter: Drafter | None = None,
    hosts: Leader | None = None,
) -> tuple[LocalEngine, self_check.Verdict | None]:
    """An engine over weights that are on their devices and a cache of the given size; `options.model` is not read.

    `fingerprint` names the weights in the cached verdict of the self-check; `programs` are compiled here if not given;
    `drafter` makes drafts beside the proposers that need no weights; `hosts` share the model with this one.
    """
    compiles = CompileCounter()
    if programs is None:
        programs = ready_programs(cfg, weights, plan, kv_dtype, options, progress)
    device = _device(programs, weights, plan, options, kv_dtype, hosts)
    verdict = _check(device, fingerprint, options, progress)
    level = "A" if verdict is None else verdict.level
    if level == "C":
        LOG.warning("this machine's products are not bit-stable (level C): prefix reuse is off")
    planner = _planner(device, fingerprint, options, verdict, drafter)
    core = _core(device, plan, options, level, planner)
    info = _info(cfg, weights, plan, options, level, kv_dtype, programs.table.count)
    info = replace(info, drafting=planner is not None)
    return LocalEngine(core, info, compiles, overlap=options.overlap, seed_salt=options.seed_salt), verdict


def ready_programs(
    cfg: DecoderConfig,
    weights: Weights,
    plan: CachePlan,
    kv_dtype: jnp.dtype,
    options: EngineOptions,
    progress: Progress,
) -> Programs:
    """Every program compiled or loaded; of `weights` only shapes and dtypes are read."""
    drafts = options.draft_tokens if options.draft else 0
    table = make_table(options.parallel, _widths(plan, options.page_size), drafts)
    spread = place(cfg, options.tp)
    stored = spread.sharing.stored(cfg)
    programs = Programs(cfg, table, options.compile_cache_dir, spread)
    cache = jax.eval_shape(lambda: new_cache(stored, plan.pages, options.page_size, kv_dtype))
    state = jax.eval_shape(lambda: new_state(table.lanes, stored.vocab_size, plan.context))
    programs.warm_up(weights, cache, state, progress)
    return_freed_memory()
    return programs


def choose_dtypes(options: EngineOptions, quantised: bool) -> tuple[jnp.dtype, jnp.dtype, jnp.dtype]:
    """What weights are kept in, what plain products are computed in, and what the cache holds.

    On a CPU, weights that were quantised before are kept in int8: twice as fast, and little is lost beside the file's
    own loss.
    """
    auto = "int8" if quantised and jax.default_backend() == "cpu" else "bf16"
    weight = jnp.dtype(_DTYPES[auto if options.weight_dtype == "auto" else options.weight_dtype])
    plain = jnp.dtype(jnp.bfloat16) if weight == jnp.int8 else weight
    compute = plain if options.compute_dtype == "auto" else jnp.dtype(_DTYPES[options.compute_dtype])
    kv = compute if options.kv_dtype == "auto" else jnp.dtype(_DTYPES[options.kv_dtype])
    return weight, compute, kv


def _any_dtype(options: EngineOptions) -> EngineOptions:
    """The options without a choice of dtypes: that is the other model's."""
    return replace(options, weight_dtype="auto", compute_dtype="auto", kv_dtype="auto")


def compute_name(dtype: jnp.dtype) -> Literal["float32", "bfloat16"]:
    """The dtype as `DecoderConfig.compute_dtype` spells it."""
    return "bfloat16" if dtype == jnp.dtype(jnp.bfloat16) else "float32"


def read_tokenizer(checkpoint: Checkpoint, cfg: DecoderConfig) -> Tokenizer:
    """The checkpoint's tokenizer.

    Raises:
        CheckpointError: it cannot be used.
    """
    try:
        return load_tokenizer(checkpoint.tokenizer_files, vocab_size=cfg.vocab_size, eos_ids=checkpoint.eos_token_ids)
    except TokenizerError as error:
        raise CheckpointError(checkpoint.path, str(error)) from None


def _plan(cfg: DecoderConfig, options: EngineOptions, kv_dtype: jnp.dtype, budget: int) -> CachePlan:
    return plan_cache(
        cfg,
        context=options.context,
        lanes=options.parallel,
        page_size=options.page_size,
        block=BLOCK,
        itemsize=kv_dtype.itemsize,
        budget=budget,
    )


def _widths(plan: CachePlan, page_size: int) -> dict[str, int]:
    """Table width of each group: pages of the whole window, in whole key blocks."""
    blocks = -(-plan.context // BLOCK)
    return dict.fromkeys(plan.pages, blocks * (BLOCK // page_size))


def _check(device: Device, fingerprint: str, options: EngineOptions, progress: Progress) -> self_check.Verdict | None:
    if not options.self_check:
        return None
    progress("exactness self-check")
    begun = time.perf_counter()
    verdict = self_check.run(device, _kept(device, fingerprint, "verdict", self_check.__file__))
    LOG.debug("self-check: level %s after %.1f s", verdict.level, time.perf_counter() - begun)
    return verdict


def _planner(
    device: Device,
    fingerprint: str,
    options: EngineOptions,
    verdict: self_check.Verdict | None,
    drafter: Drafter | None,
) -> Planner | None:
    """Decides about drafts; None where they are switched off or the self-check has found that they are not exact."""
    table = device.programs.table
    if not table.windows:
        return None
    if verdict is not None and (verdict.level == "C" or not verdict.drafts):
        LOG.warning("verified rows are not the decoded ones on this machine: drafting is off")
        return None
    begun = time.perf_counter()
    round_costs = measured(device, _kept(device, fingerprint, "costs", costs.__file__))
    LOG.debug("costs of rounds: %s after %.1f s", round_costs, time.perf_counter() - begun)
    return Planner(table, round_costs, drafter)


def _kept(device: Device, fingerprint: str, what: str, method: str) -> Path | None:
    """Where a fact about these programs and weights on this machine is kept; `method`: the source file behind it."""
    cache_dir = device.programs.cache_dir
    if cache_dir is None:
        return None
    digest = hashlib.sha256(Path(method).read_bytes()).hexdigest()
    dtypes = (device.weights.layers[0].qkv.dtype, device.cache.keys[0].dtype)
    sharing = device.programs.place.sharing
    facts = repr((device.cfg, device.programs.table, device.page_size, dtypes, sharing, fingerprint, digest))
    return cache_dir / f"{program_key(what, facts)}.{what}.json"


def _core(device: Device, plan: CachePlan, options: EngineOptions, level: Any, planner: Planner | None) -> Core:
    groups = {group: GroupSpec(PagePool(count), device.cfg.groups[group]) for group, count in plan.pages.items()}
    pages = LanePages(
        groups, options.page_size, device.programs.table.widths, reuse=options.prefix_cache and level != "C"
    )
    queue: RequestQueue[Job] = RequestQueue(options.max_queue, options.max_queue_tokens)
    return Core(device, pages, queue, DecodeShare(options.decode_share), level, time.perf_counter, planner)


def _info(
    cfg: DecoderConfig,
    weights: Weights,
    plan: CachePlan,
    options: EngineOptions,
    level: Any,
    kv_dtype: jnp.dtype,
    programs: int,
) -> EngineInfo:
    return EngineInfo(
        model_type=cfg.model_type,
        vocab_size=cfg.vocab_size,
        context_length=plan.context,
        lanes=options.parallel,
        page_size=options.page_size,
        total_pages=sum(count - 1 for count in plan.pages.values()),
        exactness=level,
        weight_dtype=_SHORT[weights.layers[0].qkv.dtype.name],
        compute_dtype=_SHORT[cfg.compute_dtype],
        kv_dtype=_SHORT[kv_dtype.name],
        weight_bytes=tree_bytes(weights),
        cache_bytes=plan.cache_bytes * options.tp,
        platform=jax.devices()[0].platform,
        programs=programs,
        tp=options.tp,
    )


def _tell(spread: Placement, cfg: DecoderConfig) -> None:
    """Say how a model is split over several devices, and what is not promised of that."""
    if spread.mesh is None:
        return
    LOG.info("tensor parallel: %s", spread.sharing)
    if cfg.compute_dtype == "float32":
        LOG.warning("float32 products may have other bits on %d devices than on one", spread.sharing.count)


def default_cache_dirs(root: Path) -> tuple[Path, Path]:
    """(compiled programs, weights) below the user's cache folder."""
    return root / "programs", root / "weights"
