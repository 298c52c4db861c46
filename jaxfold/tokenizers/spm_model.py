"""SentencePiece models: read from tokenizer.model, or written in memory from a GGUF vocabulary of the "llama" kind."""

from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
from sentencepiece import sentencepiece_model_pb2

from jaxfold.tokenizers.base import TokenizerError
from jaxfold.tokenizers.gguf_bpe import TokenType
from jaxfold.tokenizers.gguf_bpe import token_types
from jaxfold.tokenizers.sources import GgufSource

SPACE = "▁"
_PROTO: Any = sentencepiece_model_pb2  # generated at import, so type checkers see nothing in it


def parse_model(data: bytes) -> Any:
    """The ModelProto of a tokenizer.model. Raises TokenizerError when it is none, or cannot be detokenised by piece."""
    model = _PROTO.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise TokenizerError(f"tokenizer.model is not a SentencePiece model: {error}") from None
    if not model.pieces:
        raise TokenizerError("tokenizer.model holds no pieces")
    if not any(piece.type == TokenType.UNKNOWN for piece in model.pieces):
        raise TokenizerError("tokenizer.model has no unknown piece")
    if model.trainer_spec.treat_whitespace_as_suffix:
        raise TokenizerError("tokenizer.model writes spaces after its words, which is not supported")
    if model.denormalizer_spec.precompiled_charsmap:
        raise TokenizerError("tokenizer.model rewrites its output, which is not supported")
    return model


def model_from_gguf(vocabulary: GgufSource) -> Any:
    """The ModelProto of a GGUF vocabulary: BPE by scores, text taken as it is, bytes for what has no piece."""
    if vocabulary.scores is None:
        raise TokenizerError("the GGUF vocabulary is of the llama kind but has no scores")
    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise TokenizerError(
            f"the GGUF vocabulary has {len(vocabulary.tokens)} tokens but {len(vocabulary.scores)} scores"
        )
    types = token_types(vocabulary)
    if TokenType.UNKNOWN not in types:
        types[vocabulary.unk_id or 0] = TokenType.UNKNOWN
    model = _PROTO.ModelProto()
    for text, score, kind in zip(vocabulary.tokens, vocabulary.scores, types, strict=True):
        # The file may write the spaces of a user-defined piece as spaces; the library looks for its own mark.
        piece = text.replace(" ", SPACE) if kind is TokenType.USER_DEFINED else text
        model.pieces.add(piece=piece, score=score, type=int(kind))
    model.trainer_spec.model_type = _PROTO.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = TokenType.BYTE in types
    model.trainer_spec.vocab_size = len(types)
    model.trainer_spec.unk_id = types.index(TokenType.UNKNOWN)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = vocabulary.add_space_prefix
    model.normalizer_spec.remove_extra_whitespaces = False
    return model
