"""A tokenizer for tests: ids 0 to 255 are bytes, the ids after them control tokens and other added tokens."""

import codecs
import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

BOS = "<s>"
END = "<|im_end|>"
START = "<|im_start|>"
CONTROL = (BOS, START, END, "<|endoftext|>", "<|vision_start|>", "<|image_pad|>")
ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>")


class ByteTokenizer:
    """The tokenizer contract over bytes. `control` are hidden in replies, `added` are single ids that are text."""

    def __init__(
        self,
        control: Sequence[str] = CONTROL,
        added: Sequence[str] = ADDED,
        *,
        bos: str | None = BOS,
        eos: Sequence[str] = (END,),
        add_bos: bool = False,
    ) -> None:
        names = (*control, *added)
        self.special_tokens: Mapping[str, int] = {text: 256 + at for at, text in enumerate(names)}
        self.vocab_size = 256 + len(names)
        self.bos_id = None if bos is None else self.special_tokens[bos]
        self.eos_ids = frozenset(self.special_tokens[text] for text in eos)
        self.add_bos = add_bos
        self._texts = tuple(names)
        self._control = frozenset(self.special_tokens[text] for text in control)
        longest_first = sorted(names, key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if names else None

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        ids = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        if not parse_special or self._special is None:
            return [*ids, *text.encode()]
        for piece in self._special.split(text):
            known = self.special_tokens.get(piece)
            ids += piece.encode() if known is None else (known,)
        return ids

    def encode_rendered(self, text: str, literals: Mapping[str, str]) -> list[int]:
        if not literals:
            return self.encode(text, parse_special=True)
        ids: list[int] = []
        for piece in re.split("(" + "|".join(map(re.escape, literals)) + ")", text):
            literal = literals.get(piece)
            ids += self.encode(piece, parse_special=True) if literal is None else literal.encode()
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return self._texts[token_id - 256].encode() if token_id < self.vocab_size else b""

    def is_control(self, token_id: int) -> bool:
        return token_id in self._control

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        shown = (i for i in ids if not (skip_special and self.is_control(i)))
        return b"".join(map(self.token_bytes, shown)).decode(errors="replace")

    def detokenizer(self, *, skip_special: bool = True, keep: Iterable[int] = ()) -> "ByteDetokenizer":
        return ByteDetokenizer(self, skip_special, frozenset(keep))


class ByteDetokenizer:
    """The incremental form: an incomplete character waits for its last byte."""

    def __init__(self, tokenizer: ByteTokenizer, skip_special: bool, keep: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special
        self._keep = keep
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if self._skip and self._tokenizer.is_control(token_id) and token_id not in self._keep:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
