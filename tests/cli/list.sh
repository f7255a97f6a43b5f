#!/usr/bin/env bash
# kvbench list names every algorithm; list NAME shows each with parameters, defaults and ranges.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"

good list
[[ -z $err ]] || fail "stderr of list: $err"
listed=$out
count=0
while read -r stem; do
  name=${stem//_/-}
  grep -qE "^$name +(prefill|stream|prefill stream) +cpu" <<< "$listed" || fail "$name is not listed"
  good list "$name"
  [[ -z $err && $out == "$name: "* ]] || fail "list $name: $out $err"
  for word in source protocols devices size queries; do
    grep -qE "^  $word +[^ ]" <<< "$out" || fail "list $name says no $word: $out"
  done
  # As many defaults with a range as parameters; each default is accepted as written.
  if ! grep -q '^  no parameters' <<< "$out"; then
    grep -q '^  parameters' <<< "$out" || fail "list $name shows no parameters"
    parameters=$(sed -nE '/^  parameters/,$ s/^    ([A-Za-z_.]+)  .*/\1/p' <<< "$out")
    defaults=$(sed -nE 's/^ +default ([^;]+); .+/\1/p' <<< "$out")
    [[ $(wc -l <<< "$parameters") == $(wc -l <<< "$defaults") ]] ||
      fail "list $name: parameters ($parameters) and defaults ($defaults)"
  fi
  count=$((count + 1))
done < <(sed -nE 's/^KVBENCH_METHOD\(([a-z0-9_]+)\).*/\1/p' "$SRC/lib/algorithms/methods.inc")
((count >= 7)) || fail "only $count algorithms in methods.inc"

good list uniform
[[ $out == *'default auto; an integer in [0, 62] or auto'* ]] || fail "the range of T: $out"
refused 2 balancekv -- list nosuch # the names that there are
