"""Every kind of vocabulary, loaded once."""

from collections.abc import Mapping

import pytest

from jaxfold.tokenizers import Tokenizer
from jaxfold.tokenizers import load_tokenizer
from tests.tokenizers import vocabularies as v

KINDS = {
    "json": lambda: v.Source(tokenizer_json=v.dump(v.byte_level())),
    "json-byte-fallback": lambda: v.Source(tokenizer_json=v.dump(v.byte_fallback())),
    "gguf-bpe": lambda: v.Source(gguf=v.gguf_of(v.byte_level())),
    "spm-bpe": lambda: v.Source(sentencepiece=v.sentencepiece_model("bpe")),
    "spm-bpe-bare": lambda: v.Source(sentencepiece=v.sentencepiece_model("bpe", dummy_prefix=False)),
    "spm-unigram": lambda: v.Source(sentencepiece=v.sentencepiece_model("unigram")),
    "gguf-spm": lambda: v.Source(gguf=v.gguf_of_model(v.sentencepiece_model("bpe"))),
}


@pytest.fixture(scope="session")
def all_tokenizers() -> Mapping[str, Tokenizer]:
    return {kind: load_tokenizer(make().files(), vocab_size=v.ROWS) for kind, make in KINDS.items()}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, all_tokenizers: Mapping[str, Tokenizer]) -> Tokenizer:
    """One tokenizer of each kind."""
    return all_tokenizers[request.param]
