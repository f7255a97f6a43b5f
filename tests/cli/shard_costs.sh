#!/usr/bin/env bash
# Shards of equal time merge to the undivided file; cuts of different tables do not mix.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
good synth -o t.h5 --prompts 2 --layers 1 --q-heads 4 --kv-heads 2 --n 96 --d 16 --dv 8
command=(replay t.h5 --algorithm uniform,balancekv,exact --budget 0.5 --seeds 5 "${windows[@]}")

# A calibration by hand, which carries no checksums: balancekv takes all the time.
good "${command[@]}" --prompts p0 --heads 0 -o measured.csv
costs_of() {  # costs_of ALGORITHM: it takes all the time
  awk -F, -v OFS=, -v slow="$1" '
    NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i }
    NR > 1 { $(at["compress_ms"]) = $(at["algorithm"]) == slow ? 1000 : 0
             $(at["attend_us_per_query"]) = 0 }
    { NF = at["run_id"] - 1; print }' measured.csv
}
costs_of balancekv > costs.csv
good "${command[@]}" -o whole.csv
for i in 1 2 3; do
  good "${command[@]}" --shard-costs costs.csv --shard "$i/3" -o "shard$i.csv" --dry-run
  # 20 jobs of a second: 5 seeds on each of 4 heads, cut at 6.67 and 13.33 s.
  seconds=(7.0 6.0 7.0)
  [[ $out == *"estimated time of one thread: ${seconds[i - 1]} s of the plan's 20.0 s"* ]] ||
    fail "dry run of shard $i: $out"
  good "${command[@]}" --shard-costs costs.csv --shard "$i/3" -o "shard$i.csv"
  [[ $(column "shard$i.csv" algorithm | grep -c balancekv) == "$((2 * ${seconds[i - 1]%.*}))" ]] ||
    fail "shard $i: $(column "shard$i.csv" algorithm)"
done
# Each of them three times, after one to warm up.
good "${command[@]}" --shard-costs costs.csv --repeat 3 --dry-run
[[ $out == *"estimated time of one thread: 80.0 s of the plan's 80.0 s"* ]] || fail "repeated: $out"
good merge shard2.csv shard3.csv shard1.csv -o merged.csv
same merged.csv whole.csv

# A shard's rows run again as that shard, and not where its cut has moved.
good verify shard2.csv --sample 3 --seed 1
[[ $(grep -c ': agrees$' <<< "$out") == 3 ]] || fail "verify says: $out"
costs_of exact > costs.csv
run verify shard2.csv --sample 3
[[ $code == 2 && $err == *'shard2.csv: the shard differs from that by costs.csv'* ]] ||
  fail "exit code $code: $err"
costs_of balancekv > costs.csv

# More shards than jobs with a time: some are empty, and merge all the same.
parts=()
for i in {1..30}; do
  good "${command[@]}" --shard-costs costs.csv --shard "$i/30" -o "thirty$i.csv"
  parts+=("thirty$i.csv")
done
[[ $(wc -l "${parts[@]}") == *" 1 thirty"* ]] || fail "no shard is empty"
good merge "${parts[@]}" -o thirty.csv
same thirty.csv whole.csv

# Cut by number, or by another table.
good "${command[@]}" --shard 2/3 -o by_number.csv
refused 2 overlap -- merge shard1.csv by_number.csv shard3.csv -o other.csv
refused 2 "--shard-costs: got '', expected 'costs.csv'" -- "${command[@]}" --shard 2/3 -o shard2.csv --resume
# What the table lacks is said; a table of other algorithms is refused.
grep -v ,uniform, costs.csv > part.csv
good "${command[@]}" --shard-costs part.csv --shard 1/3 --dry-run
[[ $err == *"part.csv: no time for uniform"*"gets the median of the others"* ]] || fail "$err"
grep -v -e ,uniform, -e ,balancekv, -e ,exact, costs.csv > none.csv
refused 2 none.csv -- "${command[@]}" --shard-costs none.csv --shard 1/3 -o other.csv
refused 2 absent.csv -- "${command[@]}" --shard-costs absent.csv --shard 1/3 -o other.csv
refused 2 "also what the run reads" -- "${command[@]}" --shard-costs costs.csv --shard 1/3 -o costs.csv --overwrite

# The caches of a run divide alike; a stream's rows tell its times.
good "${command[@]}" -o export.csv --export-caches caches.h5
for i in 1 2; do
  good evaluate t.h5 --caches caches.h5 --shard-costs costs.csv --shard "$i/2" -o "again$i.csv"
done
good merge again1.csv again2.csv -o again.csv
stream=(replay t.h5 --protocol stream --algorithm h2o,local --budget 0.6 --sink 4 --recent 16 --queries 8)
good "${stream[@]}" -o stream.csv
for i in 1 2 3; do
  good "${stream[@]}" --shard-costs stream.csv --shard "$i/3" -o "stream$i.csv"
done
good merge stream1.csv stream2.csv stream3.csv -o streams.csv
same streams.csv stream.csv
refused 2 "no row of this plan" -- "${stream[@]}" --shard-costs costs.csv --shard 1/3 -o other.csv
