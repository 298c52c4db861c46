"""Choosing the tokenizer that a vocabulary asks for."""

from collections.abc import Iterable

from jaxfold.tokenizers.added import Settings
from jaxfold.tokenizers.base import Tokenizer
from jaxfold.tokenizers.base import TokenizerError
from jaxfold.tokenizers.gguf_bpe import bpe_spec
from jaxfold.tokenizers.gguf_bpe import gguf_settings
from jaxfold.tokenizers.json_tokenizer import JsonTokenizer
from jaxfold.tokenizers.json_tokenizer import parse_json
from jaxfold.tokenizers.sources import GgufSource
from jaxfold.tokenizers.sources import TokenizerSource
from jaxfold.tokenizers.spm_model import model_from_gguf
from jaxfold.tokenizers.spm_model import parse_model
from jaxfold.tokenizers.spm_tokenizer import SentencePieceTokenizer


def load_tokenizer(files: TokenizerSource, *, vocab_size: int, eos_ids: Iterable[int] = ()) -> Tokenizer:
    """The tokenizer of a checkpoint.

    `vocab_size` is the number of the model's embedding rows; rows past the vocabulary are padding and show as "".
    `eos_ids` are end ids known from elsewhere (generation_config.json); ids past the rows are left out.

    Raises:
        TokenizerError: the vocabulary is missing, broken, of a kind that is not supported, or larger than the model.
    """
    sources = (files.tokenizer_json, files.sentencepiece, files.gguf)
    if sum(source is not None for source in sources) != 1:
        raise TokenizerError("the checkpoint holds no vocabulary, or more than one")
    if files.gguf is not None:
        return _load_gguf(files.gguf, vocab_size, eos_ids)
    settings = Settings.read(files.config)
    if files.sentencepiece is not None:
        return SentencePieceTokenizer(parse_model(files.sentencepiece), settings, vocab_size, eos_ids)
    assert files.tokenizer_json is not None
    return JsonTokenizer(parse_json(files.tokenizer_json), settings, vocab_size, eos_ids)


def _load_gguf(vocabulary: GgufSource, vocab_size: int, eos_ids: Iterable[int]) -> Tokenizer:
    if not vocabulary.tokens:
        raise TokenizerError("the GGUF file holds no tokens")
    if vocabulary.model == "gpt2":
        return JsonTokenizer(bpe_spec(vocabulary), gguf_settings(vocabulary), vocab_size, eos_ids)
    if vocabulary.model == "llama":
        return SentencePieceTokenizer(model_from_gguf(vocabulary), gguf_settings(vocabulary), vocab_size, eos_ids)
    raise TokenizerError(f"GGUF vocabularies of the kind {vocabulary.model!r} are not supported (gpt2 and llama are)")
