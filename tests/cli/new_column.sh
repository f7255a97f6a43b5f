#!/usr/bin/env bash
# The patch that docs/new_column.md shows applies to the sources, and touches four files.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
sed -n '/^```diff$/,/^```$/p' "$SRC/docs/new_column.md" | sed '1d;$d' > column.diff
[[ $(grep -c '^+++ ' column.diff) == 4 ]] || fail 'not four files'
mkdir tree
(cd "$SRC" && tar cf - lib docs/schema.md) | tar xf - -C tree
(cd tree && GIT_CEILING_DIRECTORIES=$PWD/.. git apply ../column.diff) || fail 'the patch does not apply'
grep -q 'rel_error_p99' tree/lib/report/columns.hpp || fail 'no column'
