#!/usr/bin/env bash
# scripts/tidy.py: what clang-tidy finds in a source it also finds when the source is one of a batch,
# and clean sources whose own names clash pass.
set -euo pipefail
SRC=$(realpath -- "${SRC:?SRC must be the source folder}")
python=${PYTHON:-python3}
if ! command -v clang-tidy > /dev/null; then
  echo 'SKIPPED: no clang-tidy'
  exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cd "$scratch"
mkdir -p lib/core

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

cat > lib/core/base.hpp << 'END'
#pragma once
namespace other {
struct T {};
}  // namespace other
namespace kvbench {
struct Base {
  virtual int f() { return 0; }
};
}  // namespace kvbench
END
# put NAME LINE...: a source.
put() { printf '%s\n' '#include "core/base.hpp"' "${@:2}" > "lib/core/$1.cpp"; }

# tidy CODE NAME...: must end with CODE on these sources; sets out.
tidy() {
  local expected=$1 name entries=() paths=()
  shift
  for name; do
    paths+=("lib/core/$name.cpp")
    entries+=("{\"directory\": \"$PWD\", \"file\": \"$PWD/lib/core/$name.cpp\",
      \"command\": \"c++ -I$PWD/lib -std=c++20 -o x.o -c $PWD/lib/core/$name.cpp\"}")
  done
  (IFS=,; echo "[${entries[*]}]") > compile_commands.json
  code=0
  out=$("$python" "$SRC/scripts/tidy.py" . 2 "${paths[@]}" 2>&1) || code=$?
  [[ $code == "$expected" ]] || fail "exit code $code, not $expected, of: $*: $out"
}

for name in one two three; do
  put "$name" 'namespace kvbench {' "int $name() { return 1; }" '}  // namespace kvbench'
done
tidy 0 one two three
[[ $out == 'tidy: 3 sources in 1 batches, 0 taken alone' ]] || fail "$out"

# Each fault is in a batch with two clean sources.
while IFS='|' read -r check before inside; do
  put bad "$before" 'namespace kvbench {' "$inside" '}  // namespace kvbench'
  tidy 1 one bad two
  [[ $out == *"lib/core/bad.cpp:"*"$check"* ]] || fail "$check is not said: $out"
  [[ $out != *one.cpp* && $out != *two.cpp* ]] || fail "clean sources named: $out"
done << 'END'
readability-duplicate-include|#include "core/base.hpp"|
misc-unused-using-decls||using other::T;
misc-unused-alias-decls|namespace o = other;|
modernize-deprecated-headers|#include <stddef.h>|
modernize-use-override||struct D : Base { virtual int f() { return 1; } };
modernize-use-nullptr||int bad(const int* p) { return p == 0 ? 1 : 2; }
modernize-use-using||typedef int Number;
modernize-redundant-void-arg||int bad(void) { return 1; }
bugprone-reserved-identifier||int __bad;
bugprone-macro-parentheses|#define TWICE(x) x + x|
google-explicit-constructor||struct C { C(int x) : a(x) {} int a; };
google-build-using-namespace|using namespace other;|
performance-unnecessary-value-param||struct Big { Big(const Big&); ~Big(); int a[99]; }; int bad(const Big b) { return b.a[0]; }
clang-diagnostic-error||int bad() { return no_such_name; }
END

# Own names that clash: another batch where that is seen, else each source alone.
put one 'namespace kvbench {' 'namespace {' 'int own() { return 1; }' '}  // namespace' \
  'int one() { return own(); }' '}  // namespace kvbench'
put two 'namespace kvbench {' 'namespace {' 'int own() { return 2; }' '}  // namespace' \
  'int two() { return own(); }' '}  // namespace kvbench'
tidy 0 one two three
[[ $out == 'tidy: 3 sources in 2 batches, 1 taken alone' ]] || fail "$out"
put two 'namespace kvbench {' 'namespace' '{' 'int own() { return 2; }' '}  // namespace' \
  'int two() { return own(); }' '}  // namespace kvbench'
tidy 0 one two three
[[ $out == 'tidy: 3 sources in 1 batches, 3 taken alone' ]] || fail "$out"
tidy 0 one
echo 'tidy: faults are found in batches'
