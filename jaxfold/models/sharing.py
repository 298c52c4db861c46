"""Which heads, columns and ids each of several devices holds, where a model's output axes are split between them."""

from dataclasses import dataclass
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from jaxfold.models.config import DecoderConfig

PADDING = -1
"""In place of a unit: zeros, which fill the last devices up to the size of the first."""


@dataclass(frozen=True)
class Sharing:
    """How `count` devices share a model with `heads` query heads on `kv_heads` key-value heads.

    Units go to devices in order and in equal numbers, with padding at the end, so that what devices computed can be
    put side by side and cut to size. A query head is where its key-value head is. Where there are more devices than
    key-value heads, and the query heads of each divide, several devices hold the same key-value head.
    """

    count: int = 1
    heads: int = 1
    kv_heads: int = 1

    @property
    def copies(self) -> int:
        """Devices that hold the same key-value head."""
        copies, rest = divmod(self.count, self.kv_heads)
        return copies if copies and not rest and not self.heads // self.kv_heads % copies else 1

    def units(self, axis: str, total: int) -> NDArray[np.int32]:
        """Units of a split axis on each device: int32[count, n], `PADDING` where there is none."""
        if axis == "kv_heads" and self.copies > 1:
            return (np.arange(self.count, dtype=np.int32) // self.copies)[:, None]
        each = -(-total // self.count)
        if axis == "heads" and self.copies == 1:
            each = -(-self.kv_heads // self.count) * (self.heads // self.kv_heads)
        units = np.arange(self.count * each, dtype=np.int32).reshape(self.count, each)
        return np.where(units < total, units, np.int32(PADDING))

    def local(self, cfg: DecoderConfig) -> DecoderConfig:
        """The settings of the decoder that one device runs: with its own heads."""
        if self.count == 1:
            return cfg
        heads, kv_heads = (self.units(*axis).shape[1] for axis in (("heads", self.heads), ("kv_heads", self.kv_heads)))
        return replace(cfg, num_heads=heads, num_kv_heads=kv_heads)

    def stored(self, cfg: DecoderConfig) -> DecoderConfig:
        """The settings whose sizes cache and lane state have over all devices: padding and copies included."""
        if self.count == 1:
            return cfg
        local = self.local(cfg)
        return replace(
            cfg,
            num_heads=self.count * local.num_heads,
            num_kv_heads=self.count * local.num_kv_heads,
            vocab_size=self.units("vocab", cfg.vocab_size).size,
        )

    def __str__(self) -> str:
        """One line for people: how attention is split."""
        heads = f"{self.kv_heads} key-value head" + "s" * (self.kv_heads != 1)
        if self.copies > 1:
            return f"{heads} over {self.count} devices: each on {self.copies}, which share its query heads"
        padded = self.units("kv_heads", self.kv_heads).size
        how = f"{padded // self.count} on each" if padded == self.kv_heads else f"padded to {padded}"
        return f"{heads} over {self.count} devices: {how}"
