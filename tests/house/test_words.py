"""What must not be in the repository: paths of a developer's machine, registry hosts, names of private tools."""

import re

import pytest

from tests.house.sources import files
from tests.house.sources import text_of

# Written in two halves, so that this file does not match itself.
HALVES = (
    ("/wo", r"rk/"),
    ("/ro", r"ot/"),
    ("/tmp/", r"w/"),
    ("/ho", r"me/[a-z]"),
    ("farm-", r"studio"),
    (r"\.lib", r"rary/"),
    (r"\.\./sha", r"red"),
    (r"py", r"pi\.org"),
    (r"python", r"hosted\.org"),
    (r"registry\.", r"npmjs"),
    (r"deb\.", r"debian\.org"),
    (r"\b(?:ruling|case|decision)s? ", r"[ABD]\d{1,2}\b"),
    (r"\(", r"[ABD]\d{1,2}\)"),
)
FORBIDDEN = re.compile("|".join(f"(?:{first}{second})" for first, second in HALVES))


def test_no_forbidden_words_in_any_file() -> None:
    found = []
    for name in files():
        for number, line in enumerate((text_of(name) or "").splitlines(), start=1):
            if match := FORBIDDEN.search(line):
                found.append(f"{name}:{number}: {match.group()}")
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "halves", [("see /wo", "rk/x"), ("as ruling ", "D12 says"), ("it holds (", "A33)"), ("../sha", "red")]
)
def test_the_patterns_match(halves: tuple[str, str]) -> None:
    assert FORBIDDEN.search("".join(halves))


@pytest.mark.parametrize(
    "text", ["an A100 GPU", "level A or B", "f(A)", "network/", "the case of A", "a shared folder"]
)
def test_ordinary_words_pass(text: str) -> None:
    assert not FORBIDDEN.search(text)
