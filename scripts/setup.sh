#!/usr/bin/env bash
# Makes .venv with the pinned packages and the `jaxfold` command. Run through `make setup`.
# A second run is instant unless the lock, the project file, this script or $PYTHON changed.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv
readonly STAMP=$VENV/setup.stamp
readonly LOCK=requirements/dev.lock
readonly GRAMMAR=requirements/grammar.lock
# What xgrammar names and its engine does without.
readonly SPARED='^xgrammar [0-9.]+ requires (torch|transformers|triton), which is not installed\.$'
readonly MINIMUM="3.12"
# Running as root inside a fresh virtual environment is fine; pip's warning about it is noise here.
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '%s\n' "$*"; }
seconds() { date +%s%N; }
took() { printf '%d.%d s' $((($(seconds) - $1) / 1000000000)) $((($(seconds) - $1) / 100000000 % 10)); }

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# What the environment is made from; the folder too, because a virtual environment cannot be moved.
wanted_stamp() {
    cat "$LOCK" "$GRAMMAR" pyproject.toml scripts/setup.sh pallas_kernels/build.py pallas_kernels/include/* pallas_kernels/*/native/* | cksum
    printf '%s\n%s\n' "$PWD" "${PYTHON:-}"
}

# Prints "X.Y.Z" if the interpreter runs, is new enough and can make environments; a pyenv shim without a version
# behind it, or a distribution's Python without its venv package, does neither.
python_version() {
    "$1" - "$MINIMUM" 2>/dev/null <<'PYTHON'
import sys
import ctypes, ensurepip, ssl, venv

minimum = tuple(map(int, sys.argv[1].split(".")))
if sys.version_info[:2] < minimum:
    raise SystemExit(1)
print(".".join(map(str, sys.version_info[:3])))
PYTHON
}

pyenv_pythons() {
    command -v pyenv >/dev/null || return 0
    local root
    root=$(pyenv root 2>/dev/null) || return 0
    # Plain CPython versions only, the newest first.
    find "$root/versions" -mindepth 1 -maxdepth 1 -name '3.*' 2>/dev/null | sort -rV | sed 's|$|/bin/python|'
}

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ] && ! python_version "$PYTHON" >/dev/null; then
        say "PYTHON=$PYTHON is no working Python >= $MINIMUM; looking for another one" >&2
    fi
    while read -r candidate; do
        if [ -n "$candidate" ] && python_version "$candidate" >/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done < <(printf '%s\n' "${PYTHON:-}" python3.13 python3.12 python3; pyenv_pythons)
    return 1
}

# Runs a step quietly; its output is shown only if it fails.
quietly() {
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

make_venv() {
    local base=$1 old new
    new=$("$base" -c 'import sys; print(sys.base_prefix, sys.version)')
    old=$("$VENV/bin/python" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null || true)
    if [ "$old" = "$new" ] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        return 0
    fi
    quietly "$base" -m venv --clear "$VENV" || fail "$base could not make a virtual environment in $VENV (see above)"
}

# Fails where pip finds that packages do not fit together.
fitting() {
    local found
    found=$("$VENV/bin/python" -m pip check || true)
    ! grep -Ev "$SPARED|^No broken requirements found\.$" <<<"$found"
}

main() {
    local begin step base
    # Two runs at once must not write into one environment.
    if command -v flock >/dev/null; then
        exec 9<scripts/setup.sh
        flock 9
    fi
    if [ -x "$VENV/bin/jaxfold" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$(wanted_stamp)" ] && "$VENV/bin/python" -c ''; then
        say "setup: $VENV is up to date"
        return 0
    fi
    begin=$(seconds)
    rm -f "$STAMP"

    base=$(find_python) || fail "found no Python >= $MINIMUM (tried PYTHON, python3.13, python3.12, python3 and pyenv's versions); install one, or name it: make setup PYTHON=/path/to/python3.12"
    say "setup: [1/5] Python $(python_version "$base") ($base)"

    step=$(seconds)
    make_venv "$base"
    say "setup: [2/5] virtual environment in $VENV ($(took "$step"))"

    step=$(seconds)
    say "setup: [3/5] installing $(cat "$LOCK" "$GRAMMAR" | grep -c ==) pinned packages, one to three minutes the first time ..."
    quietly "$VENV/bin/python" -m pip install --no-deps --no-compile -r "$LOCK" -r "$GRAMMAR" || fail "pip could not install $LOCK (see above)"
    # On every core, which pip does not. Some packages ship files that are not meant to compile, so the result is not judged.
    quietly "$VENV/bin/python" -m compileall -q -j 0 "$VENV/lib" || true
    say "setup: [3/5] packages installed ($(took "$step"))"

    step=$(seconds)
    quietly "$VENV/bin/python" -m pip install --no-deps --no-build-isolation -e . || fail "pip could not install jaxfold itself (see above)"
    quietly fitting || fail "the pinned packages do not fit together (see above)"
    say "setup: [4/5] jaxfold installed as $VENV/bin/jaxfold ($(took "$step"))"

    step=$(seconds)
    say "setup: [5/5] compiling the CPU kernels ..."
    # Without a compiler the same operations run in plain XLA.
    if "$VENV/bin/python" -m pallas_kernels.build >/dev/null; then
        say "setup: [5/5] CPU kernels compiled ($(took "$step"))"
    else
        say "setup: [5/5] going on without compiled CPU kernels: slower, nothing else is lost"
    fi

    wanted_stamp >"$STAMP"
    say "setup: done in $(took "$begin")"
}

main "$@"
