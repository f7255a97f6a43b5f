#!/usr/bin/env bash
# Shards that ran apart merge to the undivided file; a missing, doubled or foreign one is refused.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace t.h5 --prompts 2
command=(replay t.h5 --algorithm uniform --algorithm exact --budget 0.5 --seeds 5 "${windows[@]}")

good "${command[@]}" --output whole.csv
for i in 1 2 3; do
  "$KVBENCH" "${command[@]}" -o "shard$i.csv" --shard "$i/3" 2> "$scratch/err$i" &
  waiting[i]=$!
done
for i in 1 2 3; do
  wait "${waiting[i]}" || fail "shard $i: $(cat "$scratch/err$i")"
done
good merge shard3.csv shard1.csv shard2.csv --output merged.csv
same merged.csv whole.csv
refused 2 'merged.csv: the file exists, expected --overwrite' -- \
  merge shard1.csv shard2.csv shard3.csv -o merged.csv
good merge shard1.csv shard2.csv shard3.csv -o merged.csv --overwrite
same merged.csv whole.csv
# A plan in one part.
good "${command[@]}" -o only.csv --shard 1/1
good merge only.csv -o one.csv
same one.csv whole.csv
refused 2 'only.csv: the manifest has no shard' -- merge only.csv shard2.csv -o other.csv
refused 2 shard -- merge shard1.csv shard3.csv -o other.csv
refused 2 './shard1.csv: is given twice' -- merge shard1.csv ./shard1.csv shard2.csv shard3.csv -o other.csv
good "${command[@]}" -o foreign.csv --shard 2/3 --scores all
refused 2 foreign.csv -- merge shard1.csv foreign.csv shard3.csv -o other.csv
# A shard that is not finished.
head -n -1 shard2.csv > part.csv
cp shard2.csv.json part.csv.json
refused 2 part.csv -- merge shard1.csv part.csv shard3.csv -o other.csv
