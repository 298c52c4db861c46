"""How the named pre-tokenizers split text. The expected words follow from the models' own tokenizer.json files."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.tokenizers import TokenizerError
from jaxfold.tokenizers import load_tokenizer
from jaxfold.tokenizers import pretokenizers
from jaxfold.tokenizers.gguf_bpe import bpe_spec
from tests.tokenizers import vocabularies as v

NAMES = sorted(pretokenizers._BY_NAME)
FIRST_NAMES = [names.split()[0] for names, _ in pretokenizers._GROUPS]
LIBRARY = {name: v.twin_of(bpe_spec(v.gguf_of(v.byte_level(), pre=name))) for name in NAMES}

WORDS = {
    "gpt-2": ("It's 1234 DON'T  now", ["It", "'s", " 1234", " DON", "'", "T", " ", " now"]),
    "smollm": ("It's 12  x", ["It", "'s", " ", "1", "2", " ", " x"]),
    "llama-bpe": ("DON'T 12345\n\n x", ["DON", "'T", " ", "123", "45", "\n\n", " x"]),
    "qwen2": ("x=12!!\n y", ["x", "=", "1", "2", "!!\n", " y"]),
    "qwen35": ("नमस्ते 12", ["नमस्ते", " ", "1", "2"]),
    "deepseek-v3": ("abc漢字12345 x.y", ["abc", "漢字", "123", "45", " x", ".y"]),
    "deepseek-llm": ("ab 漢字12 x!\n", ["ab", " ", "漢字", "1", "2", " x", "!", "\n"]),
    "deepseek-coder": ("ab 漢字12 x!\n", ["ab", " ", "漢字", "1", "2", " x", "!", "\n"]),
    "tekken": ("HelloWORLDx 12", ["Hello", "WORLDx", " ", "1", "2"]),
    "gpt-4o": ("HelloWorld's 1234 don't/\n", ["Hello", "World's", " ", "123", "4", " don't", "/\n"]),
    "falcon": ("ab, 12345", ["ab", ",", " ", "123", "45"]),
    "default": ("ab, 12345", ["ab", ",", " ", "123", "45"]),
    "bloom": ("ab, cd 12", ["ab", ",", " cd", " 12"]),
    "viking": ("ab 12", ["ab", " ", "1", "2"]),
    "jais-2": ("a     b", ["a", "    ", " b"]),
    "minicpm5": ("ab 12345", ["ab", " ", "123", "45"]),
    "seed-coder": ("x!!\ny", ["x", "!!", "\n", "y"]),
    "bailingmoe": ("a\n\nb", ["a", "\n\n", "b"]),
    "exaone-moe": ("ab cd 1", ["ab cd", " ", "1"]),
}


def words(library: tokenizers.Tokenizer, text: str) -> list[str]:
    """The words of `text`, back from the byte alphabet."""
    split = library.pre_tokenizer.pre_tokenize_str(text)
    return [library.decoder.decode([word]) for word, _ in split]


@pytest.mark.parametrize("name", WORDS)
def test_words_of_a_named_pre_tokenizer(name: str) -> None:
    text, expected = WORDS[name]
    assert words(LIBRARY[name], text) == expected


@given(name=st.sampled_from(NAMES), text=st.text(max_size=20))
def test_no_pre_tokenizer_loses_text(name: str, text: str) -> None:
    split = LIBRARY[name].pre_tokenizer.pre_tokenize_str(text)
    assert LIBRARY[name].decoder.decode([word for word, _ in split]) == text


@pytest.mark.parametrize("name", FIRST_NAMES)
def test_long_text_is_split(name: str) -> None:
    """The expressions have a bounded stack and give up on nothing."""
    for text in ("a" * 20_000, "A" * 20_000, " " * 20_000, "1" * 20_000, " \n" * 10_000, "é\u0301" * 10_000):
        split = LIBRARY[name].pre_tokenizer.pre_tokenize_str(text)
        assert LIBRARY[name].decoder.decode([word for word, _ in split]) == text


@pytest.mark.parametrize("name", NAMES)
def test_every_named_pre_tokenizer_loads(name: str) -> None:
    tokenizer = load_tokenizer(v.Source(gguf=v.gguf_of(v.byte_level(), pre=name)).files(), vocab_size=v.ROWS)
    text = "Hello, it's 2024\n\t漢字"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_models_that_compose_text_compose_it() -> None:
    """Qwen2 composes letters and marks before it splits, so both spellings are one text."""
    composed, plain = (
        load_tokenizer(v.Source(gguf=v.gguf_of(v.byte_level(), pre=name)).files(), vocab_size=v.ROWS)
        for name in ("qwen2", "gpt-2")
    )
    assert composed.encode("e\u0301") == composed.encode("é")
    assert plain.encode("e\u0301") != plain.encode("é")


def test_whole_words_come_before_merges_where_the_model_says_so() -> None:
    spec = v.byte_level()
    word = "zqzq"
    spec["model"]["vocab"][word] = len(spec["model"]["vocab"])
    by_name = {
        name: load_tokenizer(v.Source(gguf=v.gguf_of(spec, pre=name)).files(), vocab_size=v.ROWS).encode(word)
        for name in ("llama-bpe", "dbrx")
    }
    assert len(by_name["llama-bpe"]) == 1
    assert len(by_name["dbrx"]) > 1


def test_a_name_that_is_not_known_is_named() -> None:
    with pytest.raises(TokenizerError, match="'kimi-k2' is not known"):
        pretokenizers.find_pre_tokenizer("kimi-k2")
