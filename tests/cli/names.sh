#!/usr/bin/env bash
# --output and --overwrite are called so by every command that writes.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace t.h5
base=(replay t.h5 --algorithm exact,local --budget 0.5 "${windows[@]}")

for command in replay evaluate cluster merge synth; do
  good "$command" --help
  [[ $out == *'-o, --output '* ]] || fail "$command: $out"
done
good "${base[@]}" --output a.csv
good "${base[@]}" -o 1.csv --shard 1/2
good "${base[@]}" -o 2.csv --shard 2/2
good merge 1.csv 2.csv --output m.csv
refused 2 --overwrite -- merge 1.csv 2.csv -o m.csv
good merge 1.csv 2.csv -o m.csv --overwrite
same a.csv m.csv
