#!/usr/bin/env bash
# Installs Debian's Chromium for the tests in tests/browser, where it is missing and may be had. Never fails:
# without a browser those tests are skipped.
set -uo pipefail

if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || [ -n "${JAXFOLD_TEST_CHROMIUM:-}" ]; then
    echo "browser: $(command -v chromium || command -v chromium-browser || echo "$JAXFOLD_TEST_CHROMIUM")"
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "browser: no Chromium here; apt-get install chromium (or name one in JAXFOLD_TEST_CHROMIUM) to run tests/browser"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >"$log" 2>&1; then
    echo "browser: installed $(command -v chromium)"
else
    echo "browser: Chromium could not be installed: $(tail -n 1 "$log")"
fi
rm -f "$log"
