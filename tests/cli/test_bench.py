"""`jaxfold bench` and what it computes its numbers from."""

import json
import math
from pathlib import Path

import pytest

from jaxfold.cli import measure
from jaxfold.cli.bench import lane_counts
from jaxfold.cli.errors import CliError
from jaxfold.cli.measure import MeasureError
from jaxfold.cli.measure import Timeline
from tests.cli.conftest import Loader
from tests.cli.conftest import Run
from tests.scripted_engine import ScriptedEngine


def test_prompts_are_the_same_for_the_same_seed_and_inside_the_vocabulary() -> None:
    prompt = measure.prompt_ids(50, 200, 3)
    assert prompt == measure.prompt_ids(50, 200, 3) != measure.prompt_ids(50, 200, 4)
    assert len(prompt) == 200 and set(prompt) <= set(range(50))


def test_the_rate_counts_only_while_all_were_decoding() -> None:
    one = Timeline(0.0, ((1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1)))
    late = Timeline(0.0, ((2.0, 1), (3.0, 2), (4.5, 1)))
    # Between 2.0 and 4.0: two tokens of the first, two of the second.
    assert measure.decode_rate([one, late]) == 2.0
    assert measure.decode_rate([one]) == 1.0


def test_replies_that_do_not_overlap_have_no_rate() -> None:
    with pytest.raises(MeasureError, match="--tokens"):
        measure.decode_rate([Timeline(0.0, ((1.0, 1),)), Timeline(0.0, ((2.0, 1),))])


def test_generate_runs_all_prompts_for_the_asked_length() -> None:
    engine = ScriptedEngine(lambda request: iter(request.prompt_ids))
    try:
        prompts = [(1, 2, 3, 4, 5), (6, 7, 8, 9, 10)]
        timelines = measure.generate(engine, prompts, 4)
        assert [sum(count for _, count in timeline.events) for timeline in timelines] == [4, 4]
        salts = {request.cache_salt for request in engine.requests}
        measure.generate(engine, prompts, 4)
        assert len(salts) == 1 and {request.cache_salt for request in engine.requests} > salts
    finally:
        engine.close()


def test_a_failed_reply_is_told() -> None:
    engine = ScriptedEngine(range(100))
    engine.fail_after = 3
    try:
        with pytest.raises(MeasureError, match="a reply failed"):
            measure.generate(engine, [(1,)], 10)
    finally:
        engine.close()


def test_compare_takes_turns_at_being_first() -> None:
    order: list[str] = []

    def one(turn: int) -> float:
        order.append(f"a{turn}")
        return 1.0

    def other(turn: int) -> float:
        order.append(f"b{turn}")
        return 2.0

    assert measure.compare(one, other, 3) == ([1.0] * 3, [2.0] * 3)
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2"]


def test_the_ratio_and_its_interval() -> None:
    even = measure.ratio([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert (even.pairs, even.mean, even.low, even.high) == (3, 0.5, 0.5, 0.5)
    spread = measure.ratio([1.0, 4.0], [1.0, 1.0])
    assert spread.mean == pytest.approx(2.0)
    # The logarithms are 0 and log 4: their deviation is log 4 / sqrt 2, over sqrt 2 that is log 2.
    assert spread.high == pytest.approx(2 * math.exp(1.96 * math.log(2)))
    assert spread.low * spread.high == pytest.approx(4.0)


def test_lane_counts() -> None:
    assert lane_counts("1, 2,8", 8) == [1, 2, 8]
    for text in ("", "1,,2", "0", "-1", "1.5", "x", "٣"):
        with pytest.raises(CliError, match="--lanes"):
            lane_counts(text, 8)
    with pytest.raises(CliError, match="--parallel 8"):
        lane_counts("1,9", 8)


ARGUMENTS = ("--lanes", "1,2", "--tokens", 8, "--prefill", 16, "--repeat", 2)


def test_the_report_as_json(run: Run, loader: Loader, model_file: Path) -> None:
    loader.reply = "x" * 1000
    outcome = run("bench", model_file, *ARGUMENTS, "--json", "-")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert report["model"] == "Tiny-1B.Q4_1" and report["exactness"] == "A"
    assert [point["lanes"] for point in report["decode"]] == [1, 2]
    assert all(len(point["runs"]) == 2 and min(point["runs"]) > 0 for point in report["decode"])
    assert report["prefill"]["tokens"] == 16 and report["prefill"]["tokens_per_s"] > 0
    assert report["memory"]["peak_rss"] > 1 << 20
    # Warm-up, two counts of lanes twice, prefill twice.
    assert len(loader.engines[0].requests) == 2 + 2 * (1 + 2) + 2


def test_the_report_as_a_table_and_a_file(run: Run, loader: Loader, model_file: Path, tmp_path: Path) -> None:
    loader.reply = "x" * 1000
    target = tmp_path / "numbers.json"
    outcome = run("bench", model_file, *ARGUMENTS, "--json", target)
    assert outcome.code == 0, outcome.err
    assert "decode, 2 at a time" in outcome.out and "prefill of 16" in outcome.out
    assert json.loads(target.read_text())["decode"]


def test_http_is_compared_in_pairs(run: Run, loader: Loader, model_file: Path) -> None:
    loader.reply = "x" * 1000
    loader.delay_s = 0.001
    outcome = run("bench", model_file, *ARGUMENTS, "--http", "--pairs", 3, "--json", "-")
    assert outcome.code == 0, outcome.err
    http = json.loads(outcome.out)["http"]
    assert http["pairs"] == 3 and http["streams"] == 1
    assert 0 < http["low"] <= http["ratio"] <= http["high"]
    over_http = [r for r in loader.engines[0].requests if not r.request_id.startswith("bench-")]
    # One pair to warm up and three that count; the prompts are those of the direct side.
    assert len(over_http) == 4
    assert {r.prompt_ids for r in over_http} <= {r.prompt_ids for r in loader.engines[0].requests if r not in over_http}


def test_more_than_runs_at_a_time_is_refused_before_the_model_loads(run: Run, loader: Loader, model_file: Path) -> None:
    assert run("bench", model_file, "--lanes", 9).code == 2
    assert run("bench", model_file, "--http", "--streams", 9).code == 2
    assert not loader.options
