#!/usr/bin/env bash
# Writes the tables of columns in docs/schema.md as the sources declare them.
#
# usage: scripts/update_schema_docs.sh [TESTS]      (default: build/kvbench_tests)
# Exit code 2: the test program does not run, or the page lacks the comment above a table.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
tests=${1:-$root/build/kvbench_tests}

new=$(mktemp)
trap 'rm -f -- "$new"' EXIT
KVBENCH_SCHEMA_DOCS=$new "$tests" --gtest_brief=1 \
  --gtest_filter=Schema.DocumentShowsTheColumnsAsDeclared >&2 || exit 2
[[ -s $new ]] || { echo "update_schema_docs: $tests wrote nothing" >&2; exit 2; }
cat -- "$new" > "$root/docs/schema.md"
