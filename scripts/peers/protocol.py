"""What bench_peers.py and its workers say to each other: one JSON object a line. Standard library only.

A worker starts with {"ready": {...facts...}}. Each request {"prompts": [[id, ...], ...], "tokens": n} asks for greedy
replies of exactly n tokens to all prompts at the same time, from an empty cache; the answer holds the worker's own
monotonic clock in seconds: {"submitted": t, "events": [[[t, tokens], ...], ...]}, one list for each prompt. A request
that failed is answered {"error": sentence}. The worker ends when its input does.
"""

import json
import os
import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

Events = list[list[tuple[float, int]]]
Generate = Callable[[Sequence[Sequence[int]], int], tuple[float, Events]]


def serve(start: Callable[[], tuple[Mapping[str, Any], Generate]]) -> None:
    """Run a worker: `start` loads the model and gives its facts and the function that answers requests."""
    # Whatever a library prints goes to stderr, so that stdout holds nothing but answers.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def answer(value: Mapping[str, Any]) -> None:
            answers.write(json.dumps(value) + "\n")
            answers.flush()

        try:
            facts, generate = start()
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
            return
        answer({"ready": facts})
        for line in sys.stdin:
            request = json.loads(line)
            try:
                submitted, events = generate(request["prompts"], request["tokens"])
                answer({"submitted": submitted, "events": events})
            except Exception as error:
                answer({"error": f"{type(error).__name__}: {error}"})
