"""Where an engine's arrays are: on one device, or split over a mesh. The only place that knows the mesh."""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from jaxfold.models.config import DecoderConfig
from jaxfold.models.decoder import Weights
from jaxfold.models.decoder import declare
from jaxfold.models.layers.shards import ALONE
from jaxfold.models.layers.shards import Shards
from jaxfold.models.params import DEFAULT_RULES
from jaxfold.models.params import Param
from jaxfold.models.params import abstract
from jaxfold.models.params import local
from jaxfold.models.params import rows_held
from jaxfold.models.params import specs
from jaxfold.models.params import stored
from jaxfold.models.sharing import PADDING
from jaxfold.models.sharing import Sharing
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.sampling.state import DrawState

AXIS = "tensor"
"""The mesh axis that `DEFAULT_RULES` splits output axes over."""


@dataclass(frozen=True)
class Placement:
    """One device, or the mesh that programs are mapped over and how a model is shared between its devices."""

    mesh: Mesh | None = None
    sharing: Sharing = field(default_factory=Sharing)

    @property
    def devices(self) -> list[jax.Device]:
        return jax.devices()[: self.sharing.count]

    @property
    def several_hosts(self) -> bool:
        """Whether some of the devices are another process's."""
        return any(device.process_index != jax.process_index() for device in self.devices)

    @property
    def shards(self) -> Shards:
        """What the model is given to exchange activations with."""
        return ALONE if self.mesh is None else Shards(AXIS)

    def spec(self, *axes: str | None) -> PartitionSpec:
        """How an array with these logical axes is split."""
        return PartitionSpec(*(DEFAULT_RULES[axis] if axis else None for axis in axes))

    @property
    def cache_spec(self) -> PartitionSpec:
        """How every array of the cache is split: by key-value heads."""
        return self.spec("kv_heads")

    @property
    def state_specs(self) -> DrawState:
        """How the lane state is split: where it is as wide as the vocabulary, as the logits are."""
        columns, same = self.spec(None, "vocab"), self.spec()
        return DrawState(columns, columns, same, same, same)  # type: ignore[arg-type]

    def weight_specs(self, cfg: DecoderConfig, weight_dtype: jnp.dtype) -> Weights:
        """How each array of the weights is split."""
        tree: Weights = specs(declare(cfg), weight_dtype)
        return tree

    def weight_shapes(self, cfg: DecoderConfig, weight_dtype: jnp.dtype) -> Weights:
        """`jax.ShapeDtypeStruct` for each array of the weights, over all devices."""
        shapes: Weights = abstract(stored(declare(cfg), self.sharing), weight_dtype)
        return shapes

    def local_shapes(self, cfg: DecoderConfig, weight_dtype: jnp.dtype) -> Weights:
        """The same for what one device holds."""
        shapes: Weights = abstract(local(declare(cfg), self.sharing), weight_dtype)
        return shapes

    def put(self, param: Param, array: np.ndarray) -> jax.Array:
        """A declared weight (or the scales of one) on the devices, each of which gets its own rows."""
        if self.mesh is None:
            return jnp.asarray(array)
        rows = rows_held(param, self.sharing)
        if rows is None:
            return self.replicated(array)

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            held = rows[index[0] if index else slice(None)]
            taken = array[np.maximum(held, 0)]
            taken[held == PADDING] = 0
            return taken

        sharding = NamedSharding(self.mesh, PartitionSpec(AXIS))
        return jax.make_array_from_callback((rows.size, *array.shape[1:]), sharding, part)

    def replicated(self, array: np.ndarray) -> jax.Array:
        """The same array on every device."""
        if self.mesh is None:
            return jnp.asarray(array)
        # Not `device_put`, which would compare the array between hosts.
        whole = NamedSharding(self.mesh, PartitionSpec())
        same: jax.Array = jax.make_array_from_callback(array.shape, whole, lambda index: array[index])
        return same

    def gathering(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` jitted over arrays that are where they belong, with results that every host can read."""
        whole = None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())
        return jax.jit(fn, out_shardings=whole)

    def jit(self, fn: Callable[..., Any], *, takes: Any, gives: Any, donate: int | tuple[int, ...]) -> Any:
        """`fn` jitted; over a mesh every device runs it on its own parts.

        Args:
            takes, gives: specs of the arguments and of the results, or prefixes of these trees.
            donate: the argument that is donated.
        """
        if self.mesh is None:
            return jax.jit(fn, donate_argnums=donate)
        mapped = jax.shard_map(fn, mesh=self.mesh, in_specs=takes, out_specs=gives, check_vma=False)
        return jax.jit(mapped, donate_argnums=donate, in_shardings=self._named(takes), out_shardings=self._named(gives))

    def maker(self, fn: Callable[[], Any], gives: Any) -> Callable[[], Any]:
        """`fn`, whose arrays are made where they belong: none is ever whole on one device."""
        if self.mesh is None:
            return fn
        made: Callable[[], Any] = jax.jit(fn, out_shardings=self._named(gives))
        return made

    def _named(self, tree: Any) -> Any:
        mesh = self.mesh
        assert mesh is not None
        return jax.tree.map(lambda one: NamedSharding(mesh, one), tree, is_leaf=_is_spec)


def _is_spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec)


ONE_DEVICE = Placement()


def place(cfg: DecoderConfig, count: int) -> Placement:
    """The first `count` devices as a mesh, or the one device.

    Raises:
        CapacityError: there are fewer devices, or more than the model has heads.
    """
    if count == 1:
        return ONE_DEVICE
    found = jax.devices()
    if count > len(found):
        hint = f" (JAX_NUM_CPU_DEVICES={count} divides a processor)" if found[0].platform == "cpu" else ""
        raise CapacityError(f"--tp {count} needs {count} devices, but there are {len(found)} here{hint}")
    if count > cfg.num_heads:
        raise CapacityError(f"--tp {count} has no work for every device: the model has {cfg.num_heads} attention heads")
    mesh = Mesh(np.array(found[:count]), (AXIS,))
    return Placement(mesh, Sharing(count, cfg.num_heads, cfg.num_kv_heads))
