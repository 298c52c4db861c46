"""The questions of /v1/decisions: their two shapes, the prompt that asks one, and the answer that its labels give."""

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from string import ascii_letters
from string import ascii_uppercase
from string import digits
from typing import Any
from typing import Literal

from jaxfold.chat.tools.jsontext import dumps as compact
from jaxfold.chat.types import RequestError

MAX_QUESTIONS = 400
MAX_OPTIONS = 26
MAX_CHOICES = 255
MAX_LEVELS = 10
MAX_NAME = 512

Kind = Literal["choice", "score", "yes_no", "predicate"]


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `lines` follow the input in the prompt; `labels` are the answers' tokens, `values` what they mean.

    `path` is its place in the request, `name` its id or name; `keyed` tells the two shapes apart.
    """

    kind: Kind
    path: str
    name: str | None
    lines: tuple[str, ...]
    labels: tuple[str, ...]
    values: tuple[Any, ...]
    keyed: bool
    names: tuple[str, ...] = field(default=())


def read_questions(raw: Any) -> tuple[Question, ...]:
    """The questions of a body.

    Raises:
        RequestError: with the place of what is wrong.
    """
    if not isinstance(raw, list) or not 1 <= len(raw) <= MAX_QUESTIONS:
        raise RequestError(f"questions must be a list of 1 to {MAX_QUESTIONS} questions", "questions")
    if not all(isinstance(one, dict) for one in raw):
        raise RequestError("questions must hold objects", "questions")
    keyed = ["id" in one for one in raw]
    if any(keyed) and not all(keyed):
        raise RequestError("questions with an id and questions without one cannot be mixed", "questions")
    read = _keyed if keyed[0] else _listed
    questions = tuple(read(one, at) for at, one in enumerate(raw))
    names = [one.name for one in questions if one.name is not None]
    if keyed[0] and len(set(names)) < len(names):
        raise RequestError("each question needs an id of its own", "questions")
    return questions


def probabilities(logprobs: Sequence[float], temperature: float) -> tuple[list[float], float]:
    """Of each label against the others at this temperature, and of all labels together at temperature 1."""
    top = max(logprobs)
    mass = math.fsum(math.exp(value) for value in logprobs)
    if top == -math.inf:
        return [1 / len(logprobs)] * len(logprobs), 0.0
    # The difference first: a temperature near 0 must not make infinities of both.
    weights = [math.exp((value - top) / temperature) if value < top else 1.0 for value in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights], min(mass, 1.0)


def keyed_answer(question: Question, shares: Sequence[float], mass: float) -> dict[str, Any]:
    """The answer to a question with an id."""
    answer: dict[str, Any] = {
        "type": question.kind,
        "probabilities": dict(zip(map(str, question.values), shares, strict=True)),
        "label_mass": mass,
    }
    if question.kind == "score":
        return answer | {"score": _expected(shares)}
    return answer | {"choice": question.values[shares.index(max(shares))]}


def listed_answer(question: Question, shares: Sequence[float]) -> dict[str, Any]:
    """The answer to a question without an id."""
    answer: dict[str, Any] = {"type": question.kind, "name": question.name}
    if question.kind == "predicate":
        return answer | {"probability": shares[0]}
    pairs = zip(question.values, shares, strict=True)
    if question.kind == "choice":
        return answer | {
            "choice": question.values[shares.index(max(shares))],
            "confidence": max(shares),
            "probabilities": [{"value": value, "probability": share} for value, share in pairs],
        }
    return answer | {
        "score": _expected(shares),
        "confidence": max(shares),
        "probabilities": [
            {"label": name, "value": value, "probability": share}
            for name, (value, share) in zip(question.names, pairs, strict=True)
        ],
    }


def _expected(shares: Sequence[float]) -> float:
    return math.fsum(at * share for at, share in enumerate(shares))


def said(value: Any, path: str) -> str:
    """A text, or an object or a list as compact JSON; not blank.

    Raises:
        RequestError: with `path`.
    """
    text = compact(value) if isinstance(value, dict | list) and value else value
    if not isinstance(text, str):
        raise RequestError(f"{path} must be a string, an object or a list", path)
    if not text.strip():
        raise RequestError(f"{path} must not be blank", path)
    return text


def _keyed(raw: Mapping[str, Any], at: int) -> Question:
    path = f"questions[{at}]"
    name = raw.get("id")
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME:
        raise RequestError(f"question at position {at}: id must be a non-blank string", f"{path}.id")
    where = f"question {name!r}"
    try:
        return _keyed_form(raw, path, name)
    except RequestError as error:
        raise RequestError(f"{where}: {error.message}", error.param) from None


def _keyed_form(raw: Mapping[str, Any], path: str, name: str) -> Question:
    kind = raw.get("type")
    forms = {"choice": {"options"}, "score": {"levels"}, "yes_no": {"yes", "no"}}
    if kind not in forms:
        raise RequestError(f"type must be one of {', '.join(forms)}", f"{path}.type")
    _only(raw, {"id", "type", "question"} | forms[kind], path)
    asked = said(raw.get("question"), f"{path}.question")
    if kind == "choice":
        names, described = _options(raw.get("options"), f"{path}.options", "name", MAX_OPTIONS)
        folded = {one.strip().casefold() for one in names}
        if len(folded) < len(names):
            raise RequestError("options must have different names", f"{path}.options")
        labels = tuple(ascii_uppercase[: len(names)])
        return Question("choice", path, name, _choice_lines(asked, labels, described), labels, tuple(names), True)
    if kind == "score":
        levels = raw.get("levels")
        if not isinstance(levels, list) or not 2 <= len(levels) <= MAX_LEVELS:
            raise RequestError(f"levels must be a list of 2 to {MAX_LEVELS}", f"{path}.levels")
        texts = [said(level, f"{path}.levels[{at}]") for at, level in enumerate(levels)]
        labels = tuple(digits[: len(texts)])
        return Question("score", path, name, _score_lines(asked, labels, texts), labels, tuple(range(len(texts))), True)
    lines = [f"Is the following true? {asked}"]
    lines += [f"{key}: {said(raw[key], f'{path}.{key}')}" for key in ("yes", "no") if raw.get(key) is not None]
    lines.append("Answer with yes or no only.")
    return Question("yes_no", path, name, tuple(lines), ("yes", "no"), ("yes", "no"), True)


def _listed(raw: Mapping[str, Any], at: int) -> Question:
    path = f"questions[{at}]"
    kind = raw.get("type")
    forms = {"predicate": set[str](), "choice": {"choices"}, "score": {"levels"}}
    if kind not in forms:
        raise RequestError(f"{path}.type must be one of {', '.join(forms)}", f"{path}.type")
    _only(raw, {"type", "instructions", "name"} | forms[kind], path)
    name = raw.get("name")
    if not (name is None or (isinstance(name, str) and len(name) <= MAX_NAME)):
        raise RequestError(f"{path}.name must be a string", f"{path}.name")
    asked = _instructions(raw.get("instructions"), f"{path}.instructions")
    if kind == "predicate":
        true = (f"Is the following true? {asked}", "Answer with yes or no only.")
        return Question("predicate", path, name, true, ("yes", "no"), (True, False), False)
    if kind == "choice":
        values, described = _choices(raw.get("choices"), f"{path}.choices")
        labels = _labels(len(values))
        return Question("choice", path, name, _choice_lines(asked, labels, described), labels, tuple(values), False)
    names, described = _options(raw.get("levels"), f"{path}.levels", "label", MAX_LEVELS)
    labels = tuple(digits[: len(names)])
    lines = _score_lines(asked, labels, described)
    return Question("score", path, name, lines, labels, tuple(range(len(names))), False, tuple(names))


def _labels(count: int) -> tuple[str, ...]:
    """So many short labels: letters, then letters and digits, then numbers, which few models write as one token."""
    for letters in (ascii_uppercase, ascii_letters + digits):
        if count <= len(letters):
            return tuple(letters[:count])
    return tuple(map(str, range(count)))


def _choice_lines(asked: str, labels: Sequence[str], described: Sequence[str]) -> tuple[str, ...]:
    options = (f"{label}: {text}" for label, text in zip(labels, described, strict=True))
    # What the labels are called in the prompt's closing line.
    kind = "letter" if len(labels) <= MAX_OPTIONS else "label"
    return (f"Question: {asked}", *options, f"Answer with the {kind} of one option only.")


def _score_lines(asked: str, labels: Sequence[str], texts: Sequence[str]) -> tuple[str, ...]:
    levels = (f"{label}: {text}" for label, text in zip(labels, texts, strict=True))
    return (f"Question: {asked}", *levels, "Answer with the number of one level only.")


def _options(raw: Any, path: str, key: str, most: int) -> tuple[list[str], list[str]]:
    """The names of options or levels, and each as the prompt shows it."""
    if not isinstance(raw, list) or not 2 <= len(raw) <= most:
        raise RequestError(f"{path} must be a list of 2 to {most}", path)
    names, described = [], []
    for at, one in enumerate(raw):
        where = f"{path}[{at}]"
        if not isinstance(one, dict):
            raise RequestError(f"{where} must be an object", where)
        _only(one, {key, "description"}, where)
        name = one.get(key)
        if not isinstance(name, str) or not name.strip() or not all(map(str.isprintable, name)):
            raise RequestError(f"{where}.{key} must be a non-blank string without control characters", f"{where}.{key}")
        names.append(name)
        described.append(_described(name, one.get("description"), f"{where}.description"))
    if len(set(names)) < len(names):
        raise RequestError(f"{path} must not hold the same twice", path)
    return names, described


def _choices(raw: Any, path: str) -> tuple[list[str | bool], list[str]]:
    """The values of typed choices, and each as the prompt shows it."""
    if not isinstance(raw, list) or not 2 <= len(raw) <= MAX_CHOICES:
        raise RequestError(f"{path} must be a list of 2 to {MAX_CHOICES}", path)
    values: list[str | bool] = []
    described = []
    for at, one in enumerate(raw):
        where = f"{path}[{at}]"
        if not isinstance(one, dict):
            raise RequestError(f"{where} must be an object", where)
        _only(one, {"value", "description"}, where)
        value = one.get("value")
        if not isinstance(value, bool) and (not isinstance(value, str) or not value.strip()):
            raise RequestError(f"{where}.value must be a non-blank string or a bool", f"{where}.value")
        if any(value is other or (isinstance(value, str) and value == other) for other in values):
            raise RequestError(f"{path} must not hold the same value twice", path)
        values.append(value)
        shown = value if isinstance(value, str) else compact(value)
        described.append(_described(shown, one.get("description"), f"{where}.description"))
    return values, described


def _described(name: str, description: Any, path: str) -> str:
    return name if description is None else f"{name} - {said(description, path)}"


def _instructions(raw: Any, path: str) -> str:
    """A text, or parts of text and JSON, one after the other."""
    if not isinstance(raw, list):
        if not isinstance(raw, str) or not raw.strip():
            raise RequestError(f"{path} must be a non-blank string or a list of parts", path)
        return raw
    texts = []
    for at, part in enumerate(raw):
        where = f"{path}[{at}]"
        match part:
            case {"type": "input_text", "text": str(text)}:
                texts.append(text)
            case {"type": "input_json", "data": dict() | list() as data}:
                texts.append(compact(data))
            case _:
                raise RequestError(f"{where} must be an input_text or an input_json part", f"{where}.type")
    return said("".join(texts), path)


def _only(raw: Mapping[str, Any], known: set[str], path: str) -> None:
    for key in raw:
        if key not in known:
            raise RequestError(f"unknown field {key!r}", f"{path}.{key}")
