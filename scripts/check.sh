#!/usr/bin/env bash
# Everything that reads the code without running it. Run through `make check`; goes on after a failure to show all.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()

step() {
    local name=$1
    shift
    printf '== %s\n' "$name"
    "$@" || failed+=("$name")
}

step "ruff check" .venv/bin/ruff check .
step "ruff format" .venv/bin/ruff format --check .
step "mypy --strict" .venv/bin/mypy --strict jaxfold pallas_kernels
step "import rules" .venv/bin/lint-imports
step "licences" .venv/bin/python scripts/check_licences.py
step "size and house rules" .venv/bin/python -m pytest -q --durations=0 tests/house

if [ ${#failed[@]} -gt 0 ]; then
    printf 'check: failed: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
    exit 1
fi
echo "check: all good"
