#!/usr/bin/env bash
# Install Chromium for the tests of the search page, where that is possible; without it they are skipped.
set -uo pipefail
command -v chromium > /dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null && exit 0
fi
echo "No Chromium here: the tests of the search page are skipped." >&2
exit 0
