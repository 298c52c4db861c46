"""Interleaved rounds of the same work on every worker."""

import os
import time
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass

from jaxfold.cli.measure import decode_rate
from jaxfold.cli.measure import prompt_ids
from peers.machine import Watch
from peers.machine import wait_until_quiet
from peers.worker import Worker


@dataclass(frozen=True)
class Task:
    """`lanes` prompts of `prompt` ids at the same time, `tokens` greedy tokens each; one token means: prefill alone."""

    name: str
    lanes: int
    prompt: int
    tokens: int


@dataclass(frozen=True)
class Run:
    """One measurement: tokens a second, cores that others kept busy meanwhile, and the load average before it.

    `quiet` False: others were busier than allowed each time it was tried, and this is the last try.
    """

    system: str
    task: str
    round: int
    rate: float
    others: float
    load: float
    quiet: bool


@dataclass(frozen=True)
class Quiet:
    """Others may keep `most` cores busy; a disturbed run is done again, for at most `patience_s` seconds."""

    most: float
    patience_s: float


def tasks(lanes: Sequence[int], prompt: int, tokens: int, prefill: int) -> list[Task]:
    decode = [Task(f"decode, {count} at a time", count, prompt, tokens) for count in lanes]
    return [*decode, Task(f"prefill of {prefill} tokens", 1, prefill, 1)]


def rate(worker: Worker, task: Task, vocab: int, seed: int) -> float:
    """Tokens a second: of all replies while every one was decoding, or of the prompt until the first token."""
    prompts = [prompt_ids(vocab, task.prompt, seed * task.lanes + lane) for lane in range(task.lanes)]
    timelines = worker.generate(prompts, task.tokens)
    if task.tokens > 1:
        return decode_rate(timelines)
    return task.lanes * task.prompt / (max(t.first for t in timelines) - timelines[0].submitted)


def measure(worker: Worker, task: Task, vocab: int, number: int, quiet: Quiet) -> Run:
    """One run on a quiet machine, or on the machine as it is when patience has ended.

    Whether a run counts is decided by what others did during it, never by its result.
    """
    deadline = time.monotonic() + quiet.patience_s
    while True:
        wait_until_quiet(quiet.most, deadline)
        load = os.getloadavg()[0]
        with worker.running():
            watch = Watch(worker.pid)
            value = rate(worker, task, vocab, number)
            others = watch.others()
        if others <= quiet.most or time.monotonic() >= deadline:
            return Run(worker.name, task.name, number, value, others, load, others <= quiet.most)


def run_rounds(
    workers: Sequence[Worker],
    work: Sequence[Task],
    rounds: int,
    vocab: int,
    quiet: Quiet,
    progress: Callable[[str], None],
) -> list[Run]:
    """Each task once on every worker unmeasured, then `rounds` times in turn; who begins moves on with every round."""
    for worker in workers:
        progress(f"warming up {worker.name}")
        with worker.running():
            for task in work:
                rate(worker, task, vocab, rounds)
    runs = []
    for number in range(rounds):
        first = number % len(workers)
        for task in work:
            for worker in [*workers[first:], *workers[:first]]:
                run = measure(worker, task, vocab, number, quiet)
                runs.append(run)
                progress(
                    f"round {number + 1}, {task.name}: {worker.name} {run.rate:.1f} tok/s (others: {run.others:.2f})"
                )
    return runs
