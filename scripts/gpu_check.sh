#!/usr/bin/env bash
# One command for a machine with an NVIDIA GPU (Hopper for the Mosaic kernels): is it right, is it exact, how fast is it.
#   scripts/gpu_check.sh > gpu.jsonl          under 8 minutes; a JSON line a result, the last one sums up
#   scripts/gpu_check.sh --small              the same checks in small on a machine without one (kernels interpreted)
# Needs JAX with CUDA, numpy and this folder, nothing else of the project; exit status 1 where a check fails.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || python=python3
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec timeout --kill-after=10 475 "$python" scripts/gpu_check.py "$@"
