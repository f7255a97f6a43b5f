#!/usr/bin/env bash
# scripts/check_includes.sh must pass a good tree and name every offender of a bad one.
set -euo pipefail
src=${SRC:?SRC must be the source folder}
check="$src/scripts/check_includes.sh"
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
put() {  # put FILE LINE...
  mkdir -p "$work/tree/$(dirname "$1")"
  printf '%s\n' "${@:2}" > "$work/tree/$1"
}
fresh() {
  rm -rf -- "$work/tree"
  put lib/core/types.hpp '#include <vector>'
  put lib/core/rng.cpp '#include "core/rng.hpp"' '#include <Random123/philox.h>'
  put lib/attention/truth.cpp '#include "core/types.hpp"' '#include "attention/truth.hpp"'
  put lib/algorithms/methods/knorm.cpp '#include "attention/truth.hpp"' '#include "core/types.hpp"'
  put lib/replay/job.cpp '#include "algorithms/registry.hpp"' '#include "metrics/error.hpp"'
  put apps/kvbench.cpp '#include "cmd_replay.hpp"' '#include "replay/run.hpp"'
  put tests/reference/walk.cpp '#include "reference/walk.hpp"' '#include "core/types.hpp"' '#include <cmath>'
}
expect_bad() {  # expect_bad FILE:LINE FILE LINE...: one bad file must be refused and named
  local where=$1 out
  shift
  fresh
  put "$@"
  if out=$(bash "$check" "$work/tree"); then fail "accepted $where: ${*:2}"; fi
  [[ $out == *"$where: "* ]] || fail "$where is not named in: $out"
}

fresh
bash "$check" "$work/tree" > /dev/null || fail "refused a good tree"

expect_bad lib/core/bad.hpp:2 lib/core/bad.hpp '#pragma once' '#include "attention/truth.hpp"'
expect_bad lib/core/bad.cpp:1 lib/core/bad.cpp '#  include <replay/run.hpp>'
expect_bad lib/attention/bad.cu:1 lib/attention/bad.cu '#include "algorithms/keep_top.hpp"'
expect_bad lib/algorithms/bad.cpp:1 lib/algorithms/bad.cpp '#include "metrics/error.hpp"'
expect_bad lib/algorithms/bad.cpp:1 lib/algorithms/bad.cpp '#include "cluster/kcenter.hpp"'
expect_bad lib/report/bad.cpp:1 lib/report/bad.cpp '#include "trace/reader.hpp"'
expect_bad lib/metrics/bad.cpp:1 lib/metrics/bad.cpp '#include "replay/job.hpp"'
expect_bad lib/replay/bad.cpp:1 lib/replay/bad.cpp '#include "apps/cmd_list.hpp"'
expect_bad lib/replay/bad.cpp:1 lib/replay/bad.cpp '#include "cmd_list.hpp"'
expect_bad lib/trace/bad.cpp:1 lib/trace/bad.cpp '#include "../report/csv.hpp"'
expect_bad lib/novel/bad.cpp:1 lib/novel/bad.cpp '#include "core/types.hpp"'
expect_bad tests/reference/bad.cpp:1 tests/reference/bad.cpp '#include "attention/truth.hpp"'
expect_bad tests/reference/bad.cpp:1 tests/reference/bad.cpp '#include "core/rng.hpp"'

# Every offender is named, not only the first.
fresh
put lib/core/bad.hpp '#include "trace/a.hpp"' '#include "core/types.hpp"' '#include "report/b.hpp"'
out=$(bash "$check" "$work/tree") && fail "accepted two offenders"
[[ $out == *bad.hpp:1:* && $out == *bad.hpp:3:* && $out != *bad.hpp:2:* ]] || fail "named: $out"

# A wrong folder is an error, not a clean tree.
code=0
bash "$check" "$work/nowhere" > /dev/null 2>&1 || code=$?
[[ $code == 2 ]] || fail "exit code $code for a missing tree"
echo "check_includes: good tree passes, every bad one is named"
