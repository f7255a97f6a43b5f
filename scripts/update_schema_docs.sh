#!/usr/bin/env bash
# Regenerates the tables and versions in docs/schema.md from the sources. Builds the program it runs.
#
# usage: scripts/update_schema_docs.sh [BUILD]      (default: build, where `make test` builds)
# Exit code 2: the build failed, or the page lacks the marker of a table.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build}
page=$root/docs/schema.md

if [[ ! -f $build/CMakeCache.txt ]]; then
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVBENCH_TESTS=ON >&2 || exit 2
fi
cmake --build "$build" --target kvbench_schema_docs >&2 || exit 2
new=$(mktemp)
trap 'rm -f -- "$new"' EXIT
"$build/kvbench_schema_docs" "$page" > "$new" || exit 2
cat -- "$new" > "$page"
