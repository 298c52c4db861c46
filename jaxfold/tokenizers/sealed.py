"""A tokenizer.json whose control tokens answer to secret names, so that no user text can write one.

Each control token is renamed to a name that nobody can know or write by chance. The library then treats the token's
own text as ordinary text, and still finds the token, with all its flags, wherever we put its secret name.
"""

import json
import secrets
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Library

from jaxfold.tokenizers.added import AddedToken
from jaxfold.tokenizers.base import TokenizerError


@dataclass(frozen=True, slots=True)
class Sealed:
    """The library's tokenizer over secret names, and the secret name of each control token's text."""

    backend: Library
    names: Mapping[str, str]

    def token_id(self, text: str) -> int | None:
        """The id of a token by its own text."""
        token_id = self.backend.token_to_id(self.names.get(text, text))
        return None if token_id is None else int(token_id)

    def vocabulary(self) -> dict[str, int]:
        """Every token's own text and id, control tokens included."""
        texts = {name: text for text, name in self.names.items()}
        return {texts.get(token, token): int(token_id) for token, token_id in self.backend.get_vocab().items()}


def seal(spec: Mapping[str, Any], tokens: Sequence[AddedToken]) -> Sealed:
    """Builds the library's tokenizer from a tokenizer.json object with `tokens` as its added tokens.

    Raises TokenizerError when the library cannot use it.
    """
    names = _secret_names([token.text for token in tokens if token.control], [token.text for token in tokens])
    normalise = _normaliser(spec)
    added = [
        {
            "id": number,  # the library gives ids by its own rule and does not read this
            "content": names.get(token.text, token.text),
            "single_word": token.single_word and not token.control,  # checked before the name is put in
            "lstrip": token.lstrip,
            "rstrip": token.rstrip,
            "normalized": token.normalized and (not token.control or normalise(token.text) == token.text),
            "special": token.special,
        }
        for number, token in enumerate(tokens)
    ]
    sealed = {**spec, "added_tokens": added, "model": _rename(spec["model"], names)}
    return Sealed(build_library({**sealed, "truncation": None, "padding": None}), names)


def build_library(spec: Mapping[str, Any]) -> Library:
    """The library's tokenizer of a tokenizer.json object; TokenizerError when it refuses it."""
    try:
        return Library.from_str(json.dumps(spec, ensure_ascii=False))
    except Exception as error:  # the binding raises a bare Exception
        raise TokenizerError(f"the vocabulary cannot be used: {error}") from None


def _secret_names(control: Sequence[str], all_texts: Sequence[str]) -> dict[str, str]:
    """A name for each control token: private-use characters around a random number, stable under normalisation."""
    used = frozenset("".join(all_texts))
    mark = next(char for char in map(chr, range(0xE000, 0xF900)) if char not in used)
    secret = secrets.token_hex(8)
    return {text: f"{mark}{secret}{number:x}{mark}" for number, text in enumerate(control)}


def _normaliser(spec: Mapping[str, Any]) -> Callable[[str], str]:
    """The vocabulary's normaliser by itself.

    A token that it changes (a ▁ is put before it) would be found only where the text happens to be changed alike. Such
    a control token is looked for as it stands instead, so that a template's control tokens are always found.
    """
    if not spec.get("normalizer"):
        return str
    bare = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
    library = build_library({"version": "1.0", "added_tokens": [], "normalizer": spec["normalizer"], "model": bare})
    return library.normalizer.normalize_str if library.normalizer is not None else str


def _rename(model: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The model with its control tokens renamed and the merges that would spell one out left out."""
    vocab = model["vocab"]
    renamed = dict(model)
    if isinstance(vocab, list):  # Unigram: [piece, score] by id
        renamed["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
        return renamed
    inside = names.keys() & vocab.keys()
    if not inside:
        return renamed
    renamed["vocab"] = {names.get(piece, piece): token_id for piece, token_id in vocab.items()}
    if model.get("unk_token") in names:
        renamed["unk_token"] = names[model["unk_token"]]
    if isinstance(model.get("merges"), list):
        renamed["merges"] = [merge for merge in model["merges"] if inside.isdisjoint(_spelled(merge))]
    return renamed


def _spelled(merge: Any) -> tuple[str, ...]:
    """The tokens that a merge names ("a b" or ["a", "b"]) and the one it makes."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    try:
        return (*parts, "".join(parts))
    except TypeError:
        raise TokenizerError(f"the vocabulary has a merge that is not two tokens: {str(merge)[:80]!r}") from None
