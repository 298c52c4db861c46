"""The `decoder` of a tokenizer.json, as a rule that gives each token's bytes by itself."""

import re
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxfold.tokenizers.base import TokenizerError
from jaxfold.tokenizers.detokenize import ByteAlphabet
from jaxfold.tokenizers.detokenize import Lead

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class PieceDecoder:
    """How the tokens of a vocabulary become bytes: byte alphabet, or text with replacements and byte pieces."""

    alphabet: ByteAlphabet | None
    replacements: tuple[tuple[str, str], ...]
    byte_fallback: bool
    lead: Lead

    def is_byte(self, token: str) -> bool:
        """True for pieces such as <0x0A> that stand for one byte."""
        return self.byte_fallback and _BYTE_PIECE.fullmatch(token) is not None

    def bytes_of(self, token: str) -> bytes:
        """The bytes of one token of the trained vocabulary."""
        if self.alphabet is not None:
            return self.alphabet.bytes_of(token)
        for old, new in self.replacements:
            token = token.replace(old, new)
        return bytes.fromhex(token[3:5]) if self.is_byte(token) else token.encode()


def read_decoder(spec: Any) -> PieceDecoder:
    """Reads the `decoder` object of a tokenizer.json.

    Known are ByteLevel, Metaspace, and sequences of Replace, ByteFallback, Fuse and a Strip of one leading space.
    Raises TokenizerError for another decoder, whose text could not be given out piece by piece.
    """
    alphabet: ByteAlphabet | None = None
    replacements: list[tuple[str, str]] = []
    byte_fallback = fused = False
    lead = Lead.KEEP
    for step in _steps(spec):
        match step.get("type"):
            case "ByteLevel":
                alphabet = ByteAlphabet.build()
            case "Metaspace":
                replacements.append((step.get("replacement", "▁"), " "))
                scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
                lead = Lead.KEEP if scheme == "never" else Lead.MARKS
            case "Replace" if lead is Lead.KEEP and isinstance(pattern := _pattern(step), str):
                replacements.append((pattern, step.get("content", "")))
            case "ByteFallback" if not fused:
                byte_fallback = True
            case "Fuse":
                fused = True
            case "Strip" if fused and (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0):
                lead = Lead.TEXT
            case kind:
                raise TokenizerError(f"tokenizer.json has a decoder that is not supported: {kind} ({step})"[:300])
    if alphabet is not None and (replacements or byte_fallback or lead is not Lead.KEEP):
        raise TokenizerError("tokenizer.json has a decoder that is not supported: ByteLevel mixed with others")
    if alphabet is None and not replacements and not fused:
        raise TokenizerError("tokenizer.json has no decoder, so ids cannot be turned into text")
    return PieceDecoder(alphabet, tuple(replacements), byte_fallback, lead)


def _steps(spec: Any) -> Iterator[Mapping[str, Any]]:
    """The decoders of a sequence, however nested, in order."""
    if spec is None:
        return
    if not isinstance(spec, Mapping):
        raise TokenizerError("the decoder of tokenizer.json is no object")
    if spec.get("type") != "Sequence":
        yield spec
        return
    for step in spec.get("decoders") or ():
        yield from _steps(step)


def _pattern(step: Mapping[str, Any]) -> str | None:
    """The plain text that a Replace looks for; None for a regular expression."""
    pattern = step.get("pattern")
    text = pattern.get("String") if isinstance(pattern, Mapping) else None
    return text if isinstance(text, str) and text else None
