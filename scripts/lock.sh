#!/usr/bin/env bash
# Writes requirements/dev.lock from pyproject.toml. Run through `make lock`.
set -euo pipefail
cd "$(dirname "$0")/.."

resolver=$(mktemp -d)
trap 'rm -rf "$resolver"' EXIT
.venv/bin/python -m venv "$resolver"
"$resolver/bin/pip" install --quiet 'uv==0.13.9'
"$resolver/bin/uv" pip compile --quiet --universal --python-version 3.12 --fork-strategy fewest \
    --extra dev --no-emit-index-url --no-header --no-annotate pyproject.toml -o requirements/dev.lock "$@"
echo "requirements/dev.lock: $(wc -l <requirements/dev.lock) packages"
