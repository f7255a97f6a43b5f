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
  grep -qE "^$name +(prefill|stream|retrieval|prefill stream|prefill stream retrieval) +cpu" <<< "$listed" || fail "$name is not listed"
  good list "$name"
  [[ -z $err && $out == "$name: "* ]] || fail "list $name: $out $err"
  for word in source family protocols devices size queries; do
    grep -qE "^  $word +[^ ]" <<< "$out" || fail "list $name says no $word: $out"
  done
  # As many defaults with a range as parameters; each default is accepted as written.
  if ! grep -q '^  no parameters' <<< "$out"; then
    grep -q '^  parameters' <<< "$out" || fail "list $name shows no parameters"
    parameters=$(sed -nE '/^  parameters/,$ s/^    ([A-Za-z0-9_.]+)  .*/\1/p' <<< "$out")
    defaults=$(sed -nE 's/^ +default ([^;]+); .+/\1/p' <<< "$out")
    [[ $(wc -l <<< "$parameters") == $(wc -l <<< "$defaults") ]] ||
      fail "list $name: parameters ($parameters) and defaults ($defaults)"
  fi
  count=$((count + 1))
done < <(sed -nE 's/^KVBENCH_METHOD\(([a-z0-9_]+)\).*/\1/p' "$SRC/lib/algorithms/methods.inc")
((count >= 7)) || fail "only $count algorithms in methods.inc"

# What is not included is named with a reason here and in docs/methods.md, and nothing else is.
absent=$(sed '1,/^Not included/d' <<< "$listed")
for name in GEAR KVgrad BLASST RetroInfer ShadowKV KVCompose HeadKV NACL Scissorhands KVzap FINCH InfLLM; do
  grep -qE "^  ([A-Za-z, ]+ )?$name(, [A-Za-z]+)* +[a-z]" <<< "$absent" || fail "$name is not among those not included"
  sed '1,/^## Methods that kvbench does not have/d' "$SRC/docs/methods.md" | grep -q "^|[^|]*$name" || fail "docs/methods.md lacks $name"
  ! grep -qiE "^${name} " <<< "$listed" || fail "$name is included"
done

good list uniform
[[ $out == *'default auto; an integer in [0, 62] or auto'* ]] || fail "the range of T: $out"
refused 2 balancekv -- list nosuch # the names that there are

# A composition: its parts' parameters under their names.
good list h2o+balancekv
for text in 'h2o+balancekv: h2o keeps' 'family      composition' 'protocols   prefill' \
  'queries     scoring' 'share ' 'h2o.heavy_ratio ' 'balancekv.step ' '--budget or tokens, T'; do
  [[ $out == *"$text"* ]] || fail "'$text' is not in list h2o+balancekv: $out"
done
refused 2 'keeps no plain tokens' -- list balancekv+h2o
refused 2 'did you mean snapkv?' -- list snapvk+h2o
refused 2 "no algorithm 'h2o+balancekv'" -- list --grid h2o+balancekv

# JSON says what the text does.
good list --json
python=${PYTHON:-python3}
cp "$scratch/out" all.json
good list
cp "$scratch/out" all.txt
for name in snapkv quant-kivi h2o+balancekv; do
  good list --json "$name"
  cp "$scratch/out" "$name.json"
  good list "$name"
  cp "$scratch/out" "$name.txt"
done
"$python" - << 'PY' || fail 'list --json'
import json, re
every = json.load(open("all.json"))
lines = open("all.txt").read().split("\n\n")[0].splitlines()[1:]
assert [m["name"] for m in every] == [line.split()[0] for line in lines]
for m, line in zip(every, lines):
    name, protocols, devices, queries, family, summary = re.split(r"\s{2,}", line, maxsplit=5)
    assert (protocols, devices) == (" ".join(m["protocols"]), " ".join(m["devices"])), line
    assert (queries, family, summary) == (m["queries"], m["family"], m["summary"]), line
for name in "snapkv", "quant-kivi", "h2o+balancekv":
    [one] = json.load(open(name + ".json"))
    assert one in every or one["parts"] == name.split("+"), name
    text = open(name + ".txt").read()
    for p in one["parameters"]:
        assert f"    {p['name']} " in text and f"default {p['default']}; {p['allowed']}" in text, p
        assert p["description"] in text and ("minimum" in p) == (p["kind"] in ("integer", "real")), p
    assert one["source"] in text and one["departures"] in text
    assert text.count("  default ") == len(one["parameters"]) > 2
PY
refused 2 excludes -- list --json --grid

# Sets and patterns, as --algorithm takes them.
names() { # names ARGS...: those that `list ARGS` shows
  good list "$@"
  sed '/^$/,$d' "$scratch/out" | sed 1d | cut -d' ' -f1 | xargs
}
[[ $(names @quantization) == 'quant-kivi quant-rotated quant-format think lowrank' ]] || fail "list @quantization: $(names @quantization)"
[[ $(names 'snap*') == snapkv ]] || fail "list snap*: $(names 'snap*')"
[[ $(names all) == "$(names)" ]] || fail "list all: $(names all)"
for set in @reference @eviction @sampling @merging @quantization; do  # under prefill
  members=$(names "$set")
  [[ -n $members ]] || fail "$set is empty"
  good replay --dry-run "$SRC/data/sample.h5" --budget 0.5 --algorithm "$set"
  for name in $(awk '/^algorithm /{ on = 1; next } /^$/{ on = 0 } on { print $1 }' <<< "$out"); do
    [[ " $members " == *" $name "* ]] || fail "$name runs as $set, but list $set does not have it"
  done
done
good list --json @merging
[[ $(grep -c '"family": "merging"' <<< "$out") == $(names @merging | wc -w) ]] || fail "list --json @merging: $out"
good list --grid 'quant*'
[[ $(cut -d, -f1 <<< "$out" | sort -u | xargs) == 'algorithm quant-format quant-kivi quant-rotated' ]] || fail "list --grid quant*: $out"
refused 2 "no algorithm matches 'zz*'" -- list 'zz*'
refused 2 "no algorithm matches 'zz*'" -- replay "$SRC/data/sample.h5" -o out.csv --algorithm 'zz*'
refused 2 'none of these algorithms runs under --protocol stream' -- \
  replay "$SRC/data/sample.h5" -o out.csv --algorithm 'snap*' --protocol stream
refused 2 '(did you mean @merging?)' -- list @mergin

# On a terminal every line fits, and nothing is lost.
for width in 80 100 130; do
  for what in '' balancekv h2o+balancekv; do
    # shellcheck disable=SC2086
    COLUMNS=$width "$KVBENCH" list $what > narrow.txt
    # A setting is one word, to be copied.
    longest=$(grep -E '[^ ] +[^ ]' narrow.txt | LC_ALL=C.UTF-8 wc -L)
    ((longest <= width)) || fail "a line of $longest at $width: $(< narrow.txt)"
    ! grep -q ' $' narrow.txt || fail "blanks at an end: $(grep ' $' narrow.txt)"
    # shellcheck disable=SC2086
    good list $what
    [[ $(tr -s ' \n' ' ' <<< "$out" | sed 's/family what it does/family/') == \
      "$(tr -s ' \n' ' ' < narrow.txt | sed 's/family what it does/family/')" ]] ||
      fail "list $what at $width has other words: $(< narrow.txt)"
  done
done
