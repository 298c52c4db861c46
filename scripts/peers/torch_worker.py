"""transformers on torch, bf16, for bench_peers.py: `python -m peers.torch_worker MODEL.gguf THREADS`, from scripts/.

It runs in an environment of its own with torch, transformers, accelerate and gguf. The weights are those of the GGUF
file, dequantised, as in jaxfold.
"""

import sys
import time
from collections.abc import Mapping
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers import StoppingCriteria
from transformers import StoppingCriteriaList

from peers.protocol import Events
from peers.protocol import Generate
from peers.protocol import serve


class Clock(StoppingCriteria):
    """Called by `generate` after each step: notes the time, and stops nothing."""

    def __init__(self, rows: int) -> None:
        self.events: list[tuple[float, int]] = []
        self.never = torch.zeros(rows, dtype=torch.bool)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.events.append((time.monotonic(), 1))
        return self.never


def start(model_path: Path, threads: int) -> tuple[Mapping[str, Any], Generate]:
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(
        model_path.parent, gguf_file=model_path.name, dtype=torch.bfloat16
    ).eval()
    # An end token is a token like any other here: every reply has the length asked for.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def generate(prompts: Sequence[Sequence[int]], tokens: int) -> tuple[float, Events]:
        clock = Clock(len(prompts))
        submitted = time.monotonic()
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=tokens,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        return submitted, [clock.events] * len(prompts)

    facts = {"torch": torch.__version__, "transformers": version("transformers"), "threads": torch.get_num_threads()}
    return {**facts, "dtype": str(model.dtype)}, generate


if __name__ == "__main__":
    serve(lambda: start(Path(sys.argv[1]), int(sys.argv[2])))
