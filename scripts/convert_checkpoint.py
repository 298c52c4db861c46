"""Write a checkpoint in the form that loads fastest: the same as `jaxfold convert`.

Usage: python scripts/convert_checkpoint.py SRC DST [--shards N] [--dtype auto|f32|bf16]
"""

import sys

from jaxfold.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["convert", *sys.argv[1:]]))
