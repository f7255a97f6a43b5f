#!/usr/bin/env bash
# --protocol stream writes two tables that are one result, and refuses what it cannot do in one line.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace t.h5
small_trace part.h5 --nq 40
stream=(--protocol stream --sink 3 --recent 8 --queries 4)
command=(replay t.h5 "${stream[@]}" --algorithm uniform --algorithm exact --budget 0.5 --seeds 2)

good "${command[@]}" -o out.csv --eval-every 16
[[ $(column out.csv sink | sort -u) == 3 ]] || fail 'sink is not 3'
[[ $(head -1 out.steps.csv) == trace,prompt,*,step,rel_error,bytes,run_id,row_crc ]] || fail 'header of the steps'
for seed in 0 1; do # every 16th of 96, and the last 4
  steps=$(awk -F, -v s="$seed" '$5 == "uniform" && $4 == 1 && $12 == s { print $(NF - 4) }' \
    out.steps.csv | paste -sd' ')
  [[ $steps == '15 31 47 63 79 92 93 94 95' ]] || fail "steps of seed $seed: $steps"
done
cp out.steps.csv first.steps
refused 2 --resume -- "${command[@]}" -o out.csv --eval-every 16
refused 2 'options differ' -- "${command[@]}" -o out.csv --eval-every 8 --resume
[[ $err == *"--eval-every: got 8, expected 16"* ]] || fail "what differs: $err"
good "${command[@]}" -o out.csv --eval-every 16 --overwrite
cmp out.steps.csv first.steps || fail 'the steps differ between two runs'

printf '%s\n' 'protocol = "stream"' 'sink = 3' 'recent = 8' 'queries = 4' 'eval-every = 16' \
  > stream.toml
good replay t.h5 --config stream.toml -o file.csv --algorithm uniform --algorithm exact \
  --budget 0.5 --seeds 2
same file.csv out.csv
cmp file.steps.csv out.steps.csv || fail 'the configuration gives other steps'

for i in 1 2; do
  good "${command[@]}" -o "shard$i.csv" --eval-every 16 --shard "$i/2"
done
mv shard2.steps.csv away
refused 2 shard2.steps.csv -- merge shard1.csv shard2.csv -o merged.csv
mv away shard2.steps.csv
good merge shard2.csv shard1.csv -o merged.csv
same merged.csv out.csv
cmp merged.steps.csv out.steps.csv || fail 'merged steps differ'

echo precious > new.steps.csv
refused 2 new.steps.csv -- "${command[@]}" -o new.csv
# Sinks and window are all there is: no method holds a byte, and the rows say so.
good replay t.h5 --protocol stream --sink 90 --recent 6 --queries 4 -o all.csv --budget 1 \
  --algorithm h2o --algorithm kvreviver --algorithm balancekv-stream
[[ $(column all.csv status | sort -u) == 'degenerate: empty middle' ]] || fail 'an empty middle'
[[ $(column all.csv ratio | sort -u) == 1 ]] || fail 'more than all, or less'
# A sink is exact at once: one token more or less in the budget.
good replay t.h5 --protocol stream --sink 40 --recent 8 --queries 4 -o half.csv --budget 0.5,0.49 \
  --algorithm local
[[ $(grep -c 'infeasible: sinks and recent window need ' half.csv) == 2 ]] ||
  fail 'sinks are not in the budget'
[[ $(column half.csv status | grep -cx ok) == 2 ]] || fail 'sinks count twice'
refused 2 'last 40 of 96' -- replay part.h5 "${stream[@]}" -o no.csv --algorithm exact
refused 2 'expected --protocol prefill' -- replay t.h5 "${stream[@]}" -o no.csv --algorithm oracle
refused 2 --scores -- replay t.h5 "${stream[@]}" -o no.csv --algorithm exact --scores all
refused 2 --eval-every -- replay t.h5 "${windows[@]}" -o no.csv --algorithm exact --eval-every 8
refused 2 --eval-every -- replay t.h5 "${stream[@]}" -o no.csv --algorithm exact --eval-every -1
good replay t.h5 "${stream[@]}" --algorithm all --budget 0.5 --dry-run
