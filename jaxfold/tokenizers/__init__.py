"""Text to token ids and back, from a tokenizer.json, a SentencePiece model or a GGUF vocabulary."""

from jaxfold.tokenizers.base import Detokenizer
from jaxfold.tokenizers.base import Tokenizer
from jaxfold.tokenizers.base import TokenizerError
from jaxfold.tokenizers.load import load_tokenizer

__all__ = ["Detokenizer", "Tokenizer", "TokenizerError", "load_tokenizer"]
