r"""How the byte-level BPE vocabularies of GGUF files split text into words, by the name that the file gives.

A GGUF file names its pre-tokenizer but does not hold it. Each name stands for the normaliser and pre-tokenizer of the
model's own tokenizer.json; the regular expressions are those files' and are read by the `tokenizers` library.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jaxfold.tokenizers.base import TokenizerError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`steps` are pre-tokenizers in the library's JSON form, the byte-level one last.

    `ignore_merges`: a word that is a token by itself becomes that token without merging. `nfc`: text is composed first.
    """

    steps: tuple[Mapping[str, Any], ...]
    ignore_merges: bool = False
    nfc: bool = False


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of a `tokenizer.ggml.pre` name. Raises TokenizerError for a name that is not known."""
    if name not in _BY_NAME:
        what = f"{name!r} is not known" if name else "is not named"
        raise TokenizerError(f"the GGUF file's pre-tokenizer {what}, so text cannot be split as the model expects")
    return _BY_NAME[name]


def _split(regex: str) -> Mapping[str, Any]:
    return MappingProxyType({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False})


def _byte_level(words: bool) -> Mapping[str, Any]:
    """The byte alphabet; with `words` the text is first split by GPT-2's own expression."""
    return MappingProxyType({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": words})


def _digits(individual: bool) -> Mapping[str, Any]:
    return MappingProxyType({"type": "Digits", "individual_digits": individual})


def _words(*regexes: str, ignore_merges: bool = False, nfc: bool = False) -> PreTokenizer:
    """Splits by each expression in turn, matches and what lies between them kept."""
    return PreTokenizer((*map(_split, regexes), _byte_level(words=False)), ignore_merges, nfc)


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = _CONTRACTIONS + "|" + _LETTERS + r"|\p{N}{1,3}" + _SYMBOLS + _SPACES
_QWEN2 = _CONTRACTIONS + "|" + _LETTERS + r"|\p{N}" + _SYMBOLS + _SPACES
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES
)  # combining marks belong to words
_MINICPM5 = _CONTRACTIONS + "|" + _LETTERS + r"|\p{N}+" + _SYMBOLS + _SPACES
_SEED_CODER = _CONTRACTIONS + "|" + _LETTERS + r"|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + _SPACES
_EXAONE_MOE = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_JAIS2_SPACES = "".join(rf"|\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
_JAIS2 = _CONTRACTIONS + "|" + _LETTERS + r"|\p{N}{1,3}" + _SYMBOLS + r"|\s*[\r\n]+" + _JAIS2_SPACES + r"|\s{1}"
# A word with the capitals first, then the small letters; either may be missing, but not both.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_TEKKEN = "|".join(_CASED) + r"|\p{N}" + _CASED_REST
_GPT4O = "|".join(f"{word}{_CONTRACTIONS}?" for word in _CASED) + r"|\p{N}{1,3}" + _CASED_REST
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES
)
_DEEPSEEK_HAN = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
# The cased letters as DeepSeek's first tokenizer lists them (an older Unicode version's).
_CASED_LETTERS = (
    "0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF 0370-0373 0376 0377 "
    "037B-037D 037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 048A-052F 0531-0556 10A0-10C5 13A0-13F5 "
    "13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 "
    "1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 "
    "1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E "
    "2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF "
    "FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 "
    "118A0-118DF 1E900-1E943"
)


def _char_class(ranges: str) -> str:
    """A character class of code points and ranges written in hexadecimal."""
    return "[" + "".join("-".join(rf"\x{{{end}}}" for end in part.split("-")) for part in ranges.split()) + "]"


_DEEPSEEK_LLM = PreTokenizer(
    (
        _split(r"[\r\n]"),
        _split(r"\s?" + _char_class(_CASED_LETTERS) + "+"),
        _split(r"\s?" + _char_class("0021-002F 003A-007E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002") + "+"),
        _split(r"\s+$"),
        _split(_DEEPSEEK_HAN),
        _digits(individual=True),
        _byte_level(words=False),
    )
)
_DEEPSEEK_CODER = PreTokenizer(
    (
        _split(r"[\r\n]"),
        _split(r"\s?\p{L}+"),
        _split(r"\s?\p{P}+"),
        _split(_DEEPSEEK_HAN),
        _digits(individual=True),
        _byte_level(words=False),
    )
)
_PUNCTUATION: Mapping[str, Any] = MappingProxyType({"type": "Punctuation", "behavior": "Contiguous"})
# Falcon splits numbers after the bytes are written out, so the order of these steps matters.
_FALCON = PreTokenizer((_PUNCTUATION, _byte_level(words=True), _digits(individual=False), _split("[0-9][0-9][0-9]")))
_DEFAULT = _words(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")
_GPT2 = PreTokenizer((_byte_level(words=True),))
_GPT2_NFC = PreTokenizer((_byte_level(words=True),), nfc=True)
_DIGITS_GPT2 = PreTokenizer((_digits(individual=True), _byte_level(words=True)))
_DIGITS_GPT2_NFC = PreTokenizer((_digits(individual=True), _byte_level(words=True)), nfc=True)
_DEEPSEEK3_CHAIN = _words(r"\p{N}{1,3}", r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+", _DEEPSEEK3)

_GROUPS: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", _DEFAULT),
    ("gpt-2 phi-2 jais gigachat mellum exaone4 trillion granite-docling a.x-4.0", _GPT2),
    ("olmo mpt", _GPT2_NFC),
    ("smollm starcoder refact codeshell exaone minerva-7b mellum2", _DIGITS_GPT2),
    ("command-r", _DIGITS_GPT2_NFC),
    ("falcon", _FALCON),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2", _words(_LLAMA3, ignore_merges=True)),
    ("dbrx smaug-bpe chatglm-bpe glm4", _words(_LLAMA3)),
    ("qwen2 megrez", _words(_QWEN2, nfc=True)),
    ("deepseek-r1-qwen stablelm2 hunyuan grok-2 solar-open kormo f2llmv2", _words(_QWEN2)),
    ("qwen35", _words(_QWEN35, nfc=True)),
    ("deepseek-llm", _DEEPSEEK_LLM),
    ("deepseek-coder", _DEEPSEEK_CODER),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK3_CHAIN),
    ("tekken", _words(_TEKKEN, ignore_merges=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _words(_GPT4O)),
    ("bloom poro-chat gpt3-finnish", _words(_BLOOM)),
    ("viking", _words(_BLOOM, r"\p{N}")),
    ("jais-2", _words(_JAIS2)),
    ("minicpm5", _words(r"\p{N}{1,3}", _MINICPM5, ignore_merges=True)),
    ("seed-coder", _words(_SEED_CODER)),
    ("bailingmoe bailingmoe2 llada-moe", _words(_BAILING)),
    ("exaone-moe", _words(_EXAONE_MOE)),
)
_BY_NAME: Mapping[str, PreTokenizer] = MappingProxyType(
    {name: pre_tokenizer for names, pre_tokenizer in _GROUPS for name in names.split()}
)
