"""Decisions in both shapes: the prompt of each question, its probabilities, and everything that is refused."""

import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.api.harness import THINKING
from tests.api.harness import Server
from tests.api.harness import running
from tests.byte_tokenizer import ADDED
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine
from tests.scripted_engine import score

PATH = "/v1/decisions"
OPTIONS = [{"name": "x"}, {"name": "y", "description": "d"}]
CHOICE = {"id": "c", "type": "choice", "question": "Which?", "options": OPTIONS}
SCORE = {"id": "s", "type": "score", "question": "How much?", "levels": ["none", {"some": 1}, "all"]}
YES_NO = {"id": "b", "type": "yes_no", "question": "Is it?", "yes": "it is"}
PREDICATE = {"type": "predicate", "instructions": "It is."}
CHOICES = {"type": "choice", "instructions": "Which?", "choices": [{"value": "x"}, {"value": True}], "name": "n"}
LEVELS = {"type": "score", "instructions": "How much?", "levels": [{"label": "low"}, {"label": "high"}]}


@pytest.fixture
def decider() -> Iterator[Server]:
    """A vocabulary in which yes and no are tokens."""
    tokenizer = ByteTokenizer(added=(*ADDED, "yes", "no"))
    with running(ScriptedEngine(), template=THINKING, tokenizer=tokenizer) as server:
        yield server


def expected(labels: list[int], temperature: float = 1.0) -> list[float]:
    weights = [math.exp(score(label, 0).logprob / temperature) for label in labels]
    return [weight / sum(weights) for weight in weights]


def prompts(server: Server) -> list[str]:
    decode = ByteTokenizer(added=(*ADDED, "yes", "no")).decode
    return [decode(request.prompt_ids) for request in server.engine.requests]


def test_questions_with_ids(decider: Server) -> None:
    body = {"input": "Some text.", "questions": [CHOICE, SCORE, YES_NO]}
    answer = decider.post(PATH, body).json
    assert (answer["object"], answer["prompt_format_version"]) == ("decisions", 1)
    assert list(answer["answers"]) == ["c", "s", "b"]
    choice, level, yes_no = answer["answers"].values()
    shares = expected([ord("A"), ord("B")])
    assert choice["probabilities"] == pytest.approx({"x": shares[0], "y": shares[1]})
    assert choice["choice"] == "x" and choice["type"] == "choice"
    assert choice["label_mass"] == pytest.approx(sum(math.exp(score(ord(label), 0).logprob) for label in "AB"))
    shares = expected([ord("0"), ord("1"), ord("2")])
    assert level["probabilities"] == pytest.approx(dict(zip("012", shares, strict=True)))
    assert level["score"] == pytest.approx(shares[1] + 2 * shares[2])
    assert set(yes_no["probabilities"]) == {"yes", "no"} and sum(yes_no["probabilities"].values()) == pytest.approx(1)
    total = sum(len(request.prompt_ids) for request in decider.engine.requests)
    assert answer["usage"] == {"prompt_tokens": total, "completion_tokens": 0, "total_tokens": total}
    assert all(request.max_tokens == 0 for request in decider.engine.requests)


def test_the_wording_of_the_prompts(decider: Server) -> None:
    decider.post(PATH, {"input": {"a": "\u00e9"}, "questions": [CHOICE, SCORE, YES_NO]})
    opening = "<|im_start|>user\n"
    closing = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    told = '{"a":"\u00e9"}\n\n'
    assert prompts(decider) == [
        f"{opening}{told}Question: Which?\nA: x\nB: y - d\nAnswer with the letter of one option only.{closing}",
        f'{opening}{told}Question: How much?\n0: none\n1: {{"some":1}}\n2: all\n'
        f"Answer with the number of one level only.{closing}",
        f"{opening}{told}Is the following true? Is it?\nyes: it is\nAnswer with yes or no only.{closing}",
    ]


def test_the_temperature(decider: Server) -> None:
    def shares(temperature: float) -> list[float]:
        body = {"input": "x", "questions": [CHOICE], "temperature": temperature}
        answer = decider.post(PATH, body).json["answers"]["c"]
        assert answer["label_mass"] == decider.post(PATH, body | {"temperature": 1}).json["answers"]["c"]["label_mass"]
        return list(answer["probabilities"].values())

    assert shares(2.0) == pytest.approx(expected([ord("A"), ord("B")], 2.0))
    assert shares(1e-320) == [1.0, 0.0]
    assert shares(1e300) == pytest.approx([0.5, 0.5])


def test_ids_of_the_prompt(decider: Server) -> None:
    body = {"input": "x", "questions": [YES_NO], "return_prompt_token_ids": True}
    answer = decider.post(PATH, body).json["answers"]["b"]
    assert tuple(answer["prompt_token_ids"]) == decider.last_request().prompt_ids
    assert tuple(answer["label_token_ids"]) == decider.last_request().labels


def test_questions_without_ids_through_openais_client(decider: Server) -> None:
    with openai.OpenAI(api_key="x", base_url=f"http://127.0.0.1:{decider.port}/v1", max_retries=0) as client:
        items: Any = [{"role": "user", "content": "Some text."}, {"role": "assistant", "content": "I see."}]
        questions: Any = [PREDICATE, CHOICES, LEVELS]
        made = client.decisions.create(model="m", input=items, questions=questions, prompt_cache_key="k")
    predicate, choice, level = made.answers
    assert predicate.type == "predicate" and 0 < predicate.probability < 1 and predicate.name is None
    assert choice.type == "choice" and choice.choice == "x" and choice.name == "n"
    assert [one.value for one in choice.probabilities] == ["x", True]
    assert choice.confidence == max(one.probability for one in choice.probabilities)
    assert level.type == "score" and [(one.label, one.value) for one in level.probabilities] == [
        ("low", 0),
        ("high", 1),
    ]
    assert level.score == pytest.approx(level.probabilities[1].probability)
    assert made.usage.output_tokens == 0 and made.usage.input_tokens == made.usage.total_tokens > 0
    assert all("Some text." in text and "I see." in text for text in prompts(decider))


def test_both_shapes_score_alike(decider: Server) -> None:
    keyed = {"id": "a", "type": "choice", "question": "Which?", "options": [{"name": "x"}, {"name": "y"}]}
    listed = {"type": "choice", "instructions": "Which?", "choices": [{"value": "x"}, {"value": "y"}]}
    one = decider.post(PATH, {"input": "t", "questions": [keyed]}).json["answers"]["a"]
    other = decider.post(PATH, {"input": "t", "questions": [listed]}).json["answers"][0]
    assert list(one["probabilities"].values()) == [pair["probability"] for pair in other["probabilities"]]


def test_more_choices_than_letters(decider: Server) -> None:
    many = {"type": "choice", "instructions": "Which?", "choices": [{"value": f"v{i}"} for i in range(62)]}
    answer = decider.post(PATH, {"input": "t", "questions": [many]}).json["answers"][0]
    assert len(answer["probabilities"]) == 62
    many["choices"] = [{"value": f"v{i}"} for i in range(63)]
    refused = decider.post(PATH, {"input": "t", "questions": [many]})
    assert refused.status == 400 and "one token" in refused.error["message"]


def test_many_questions_at_once(decider: Server) -> None:
    body = {"input": "x", "questions": [PREDICATE] * 400}
    assert len(decider.post(PATH, body).json["answers"]) == 400
    body["questions"] = [PREDICATE] * 401
    assert decider.post(PATH, body).error["param"] == "questions"


def without(whole: dict[str, Any], /, *names: str, **fields: Any) -> dict[str, Any]:
    return {key: value for key, value in whole.items() if key not in names} | fields


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": "  \n"}, "input"),
        ({"input": None}, "input"),
        ({"input": 1}, "input"),
        ({"input": {}}, "input"),
        ({"questions": None}, "questions"),
        ({"questions": []}, "questions"),
        ({"questions": [1]}, "questions"),
        ({"questions": [CHOICE, CHOICE]}, "questions"),
        ({"questions": [CHOICE, PREDICATE]}, "questions"),
        ({"questions": [without(CHOICE, id=" ")]}, "questions[0].id"),
        ({"questions": [without(CHOICE, id=1)]}, "questions[0].id"),
        ({"questions": [without(CHOICE, type="rank")]}, "questions[0].type"),
        ({"questions": [without(CHOICE, "question")]}, "questions[0].question"),
        ({"questions": [without(CHOICE, question=" ")]}, "questions[0].question"),
        ({"questions": [without(CHOICE, levels=[])]}, "questions[0].levels"),
        ({"questions": [without(CHOICE, options=[{"name": "x"}])]}, "questions[0].options"),
        ({"questions": [without(CHOICE, options=[{"name": "x"}] * 27)]}, "questions[0].options"),
        ({"questions": [without(CHOICE, options=[{"name": "x"}, {"name": " X "}])]}, "questions[0].options"),
        ({"questions": [without(CHOICE, options=["x", "y"])]}, "questions[0].options[0]"),
        ({"questions": [without(CHOICE, options=[{"name": "x"}, {"name": "a\nb"}])]}, "questions[0].options[1].name"),
        ({"questions": [without(SCORE, levels=["one"])]}, "questions[0].levels"),
        ({"questions": [without(SCORE, levels=["x"] * 11)]}, "questions[0].levels"),
        ({"questions": [without(SCORE, levels=["x", ""])]}, "questions[0].levels[1]"),
        ({"questions": [without(YES_NO, no=" ")]}, "questions[0].no"),
        ({"questions": [without(PREDICATE, "instructions")]}, "questions[0].instructions"),
        ({"questions": [without(PREDICATE, instructions=[{"type": "x"}])]}, "questions[0].instructions[0].type"),
        ({"questions": [without(CHOICES, choices=[{"value": "x"}])]}, "questions[0].choices"),
        ({"questions": [without(CHOICES, choices=[{"value": "x"}, {"value": "x"}])]}, "questions[0].choices"),
        ({"questions": [without(CHOICES, choices=[{"value": 1}, {"value": "x"}])]}, "questions[0].choices[0].value"),
        ({"questions": [without(LEVELS, levels=[{"label": "x"}])]}, "questions[0].levels"),
        ({"questions": [without(PREDICATE, name=1)]}, "questions[0].name"),
        ({"questions": [without(PREDICATE, more=1)]}, "questions[0].more"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"prompt_format_version": 2}, "prompt_format_version"),
        ({"prompt_format_version": True}, "prompt_format_version"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": 0}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"prompt_cache_key": "k"}, "prompt_cache_key"),
        ({"return_prompt_token_ids": 1}, "return_prompt_token_ids"),
        ({"input": "x" * (1 << 17)}, "input"),
    ],
    ids=lambda value: str(value)[:70],
)
def test_what_is_refused(decider: Server, fields: dict[str, Any], param: str) -> None:
    answer = decider.post(PATH, {"input": "x", "questions": [CHOICE], **fields})
    assert (answer.status, answer.error["param"]) == (400, param), answer.error
    assert not decider.engine.requests


def test_refusals_name_the_question(decider: Server) -> None:
    odd = without(CHOICE, question="")
    assert decider.post(PATH, {"input": "x", "questions": [odd]}).error["message"].startswith("question 'c': ")
    odd = without(CHOICE, id="")
    message = decider.post(PATH, {"input": "x", "questions": [CHOICE, odd]}).error["message"]
    assert message.startswith("question at position 1: ")


def test_labels_that_are_no_token(server: Server) -> None:
    answer = server.post(PATH, {"input": "x", "questions": [YES_NO]})
    assert (answer.status, answer.error["param"]) == (400, "questions[0]")
    assert "'yes' is not one token" in answer.error["message"]


def test_null_and_empty_settings_pass(decider: Server) -> None:
    for fields in ({"chat_template_kwargs": {}}, {"chat_template_kwargs": {"enable_thinking": False}}):
        body = {"input": ["a", {"b": 1}], "questions": [CHOICE], "temperature": None, "prompt_format_version": 1}
        assert decider.post(PATH, body | fields).status == 200


@pytest.mark.parametrize("path", ["/decisions", "/openai/v1/decisions/"])
def test_paths_are_matched_by_their_end(decider: Server, path: str) -> None:
    assert decider.post(path, {"input": "x", "questions": [CHOICE]}).status == 200


def test_a_failing_engine_is_a_500(decider: Server) -> None:
    decider.engine.fail_after = 0
    answer = decider.post(PATH, {"input": "x", "questions": [CHOICE]})
    assert answer.status == 500 and answer.error["type"] == "server_error"
