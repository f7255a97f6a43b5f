#!/usr/bin/env bash
# Ranges exclude their end in every option; the plan shows their values.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
good synth -o t.h5 --layers 3 --q-heads 4 --kv-heads 2 --n 96 --d 16 --dv 8
plan=(replay t.h5 "${windows[@]}" --dry-run)

# values KEY ARGS...: the values of a parameter in the plan
values() {
  good "${plan[@]}" "${@:2}"
  grep -oE "^[a-z-]+ .*[ ;]$1=[^;]*" <<< "$out" | sed "s/.*[ ;]$1=//" | xargs
}
[[ $(values T --algorithm uniform:T=1:4) == '1 2 3' ]] || fail "T: $(values T --algorithm uniform:T=1:4)"
lambda=(--algorithm bumblebee:lambda=0:1:0.1 --budget 0.5)
[[ $(values lambda "${lambda[@]}") == '0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9' ]] ||
  fail "lambda: $(values lambda "${lambda[@]}")"
good replay t.h5 "${windows[@]}" -o out.csv --algorithm uniform:T=1:3 --seeds 3:6 --layers 0:2 --heads 1:3
[[ $(column out.csv seed | sort -un | xargs) == '3 4 5' ]] || fail 'seeds'
[[ $(column out.csv layer | sort -un | xargs) == '0 1' ]] || fail 'layers'
[[ $(column out.csv q_head | sort -un | xargs) == '1 2' ]] || fail 'heads'
[[ $err == 'ranges: T=1:3 is 1, 2'$'\n'out.csv:* ]] || fail "a run's stderr: $err"
good replay t.h5 "${windows[@]}" -o other.csv --algorithm uniform:T=1:4:2
[[ $err == 'ranges: T=1:4:2 is 1, 3'$'\n'other.csv:* ]] || fail "steps of 2: $err"

good "${plan[@]}" --algorithm 'uniform:T=1:4' --algorithm 'local:T=1:4' --algorithm 'balancekv:T=2;gamma=0:1.05:0.5;step=fixed'
[[ -z $err && ${out%%$'\n'*} == 'ranges: T=1:4 is 1, 2, 3; gamma=0:1.05:0.5 is 0, 0.5, 1' ]] ||
  fail "the plan's first line: $out"
good "${plan[@]}" --algorithm uniform:T=1,2
[[ -z $err && ${out%%$'\n'*} == plan:* ]] || fail "no ranges: $err $out"
good "${plan[@]}" --algorithm uniform:tokens=1:31
[[ ${out%%$'\n'*} == 'ranges: tokens=1:31 is 1, 2, 3, ..., 30' ]] || fail "a long range: $out"

refused 2 'ranges exclude their end' -- "${plan[@]}" --algorithm uniform:T=2:2
refused 2 'ranges exclude their end' -- "${plan[@]}" --algorithm exact --seeds 2:2
refused 2 'ranges exclude their end' -- "${plan[@]}" --algorithm exact --layers 2:2

# A table goes on however its values are written.
cp out.csv before.csv
good replay t.h5 "${windows[@]}" -o out.csv --algorithm uniform:T=1,2 --seeds 3,4,5 --layers 0,1 --heads 1,2 --resume
cmp -s out.csv before.csv || fail 'a resumed table of the same values changed'

# A budget may be a percentage or a quotient, also in a configuration.
good replay t.h5 "${windows[@]}" -o parts.csv --algorithm h2o --budget 12.5%,1/4,0.5 --layers 0
[[ $(column parts.csv budget_requested | sort -u | xargs) == '0.125 0.25 0.5' ]] || fail 'budgets'
printf 'budget = ["12.5%%", "1/4", 0.5]\n' > parts.toml
good replay t.h5 "${windows[@]}" -o file.csv --algorithm h2o --layers 0 --config parts.toml
same file.csv parts.csv
for budget in 1/0 150% 1/4/2 % 1/; do
  refused 2 --budget -- replay t.h5 "${windows[@]}" -o no.csv --algorithm h2o --budget "$budget"
done
