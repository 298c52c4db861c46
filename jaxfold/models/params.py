"""Weights declared once: shape, logical axes and initial values; loading, sharding and tests all read that."""

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from jaxfold.models.layers.matrix import Int8Matrix
from jaxfold.models.layers.matrix import Matrix
from jaxfold.models.sharing import PADDING
from jaxfold.models.sharing import Sharing
from pallas_kernels.quantised_matmul import quantise_weight

Rules = Mapping[str, str | None]

# Logical axis -> mesh axis: output axes are split, reduced axes never are, so that bits do not depend on the mesh.
DEFAULT_RULES: Rules = {
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "residual": "tensor",
    "embed": None,
}


@dataclass(frozen=True)
class Run:
    """Rows that belong together on the first axis of a weight: `count` units of `size` rows of one logical axis."""

    axis: str
    count: int
    size: int = 1


@dataclass(frozen=True)
class Param:
    """One weight: its shape, the logical name of each axis, how a random model fills it, and its stored precision.

    `fused` says what stands one after the other on the first axis, where that is more than one run of one unit a row;
    all of it is split over the same devices. `dtype` "weight" follows the engine's weight dtype (int8: an
    `Int8Matrix`); "float32" is kept in float32 (norms and biases: small).
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: Literal["normal", "ones", "zeros"] = "normal"
    dtype: Literal["weight", "float32"] = "weight"
    fused: tuple[Run, ...] = ()


def _is_param(node: Any) -> bool:
    return isinstance(node, Param)


def map_params[T](fn: Callable[[Param], T], tree: Any) -> Any:
    """The same tree with `fn(param)` in place of each declaration."""
    return jax.tree.map(fn, tree, is_leaf=_is_param)


def abstract(tree: Any, weight_dtype: jnp.dtype) -> Any:
    """`jax.ShapeDtypeStruct` for each array: one a declaration, two (values, scales) for an int8 matrix."""

    def one(p: Param) -> Any:
        whole = jax.ShapeDtypeStruct(p.shape, param_dtype(p, weight_dtype))
        if whole.dtype != jnp.int8:
            return whole
        return Int8Matrix(whole, jax.ShapeDtypeStruct(p.shape[:1], jnp.float32))  # type: ignore[arg-type]

    return map_params(one, tree)


def specs(tree: Any, weight_dtype: jnp.dtype, rules: Rules = DEFAULT_RULES) -> Any:
    """`PartitionSpec` for each array of `abstract`, under the rules."""

    def one(p: Param) -> Any:
        axes = [rules.get(a) if a else None for a in p.axes]
        whole = PartitionSpec(*axes)
        if param_dtype(p, weight_dtype) != jnp.int8:
            return whole
        return Int8Matrix(whole, PartitionSpec(axes[0]))  # type: ignore[arg-type]

    return map_params(one, tree)


def rows_held(param: Param, sharing: Sharing, rules: Rules = DEFAULT_RULES) -> NDArray[np.int32] | None:
    """The declared row behind each stored one, device after device: int32[count * n], `PADDING` for a row of zeros.

    Devices hold whole units of every fused run. None where each device holds all of the weight.
    """
    axis = param.axes[0]
    if sharing.count == 1 or axis is None or rules.get(axis) is None:
        return None
    first, found = 0, []
    for run in param.fused or (Run(axis, param.shape[0]),):
        units = sharing.units(run.axis, run.count)[:, :, None]
        rows = first + units * run.size + np.arange(run.size, dtype=np.int32)
        found.append(np.where(units == PADDING, PADDING, rows).reshape(sharing.count, -1))
        first += run.count * run.size
    return np.concatenate(found, axis=1).reshape(-1).astype(np.int32)


def stored(tree: Any, sharing: Sharing, rules: Rules = DEFAULT_RULES) -> Any:
    """The declaration with the shapes that arrays over all devices have: padding and copies included."""
    return _resized(tree, sharing, rules, 1)


def local(tree: Any, sharing: Sharing, rules: Rules = DEFAULT_RULES) -> Any:
    """The declaration with the shapes that one device holds."""
    return _resized(tree, sharing, rules, sharing.count)


def _resized(tree: Any, sharing: Sharing, rules: Rules, parts: int) -> Any:
    def one(p: Param) -> Param:
        rows = rows_held(p, sharing, rules)
        return p if rows is None else replace(p, shape=(rows.size // parts, *p.shape[1:]))

    return map_params(one, tree)


def initial(tree: Any, key: jax.Array, weight_dtype: jnp.dtype, scale: float = 0.05) -> Any:
    """Random weights for tests: each leaf has its own key by its place in the tree."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_param)

    def one(i: int, p: Param) -> Matrix:
        dtype = param_dtype(p, weight_dtype)
        if p.init == "ones":
            return jnp.ones(p.shape, dtype)
        if p.init == "zeros":
            return jnp.zeros(p.shape, dtype)
        drawn = jax.random.normal(jax.random.fold_in(key, i), p.shape, jnp.float32) * scale
        if dtype == jnp.int8:
            return Int8Matrix(*map(jnp.asarray, quantise_weight(np.asarray(drawn))))
        return drawn.astype(dtype)

    return jax.tree.unflatten(structure, [one(i, p) for i, p in enumerate(leaves)])


def param_dtype(param: Param, weight_dtype: jnp.dtype) -> jnp.dtype:
    return jnp.dtype(jnp.float32) if param.dtype == "float32" else jnp.dtype(weight_dtype)
