#!/usr/bin/env bash
# What a slip is told: no argument, another file, a folder that is not there, capital letters.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace t.h5
base=(replay t.h5 --algorithm exact "${windows[@]}")

said() { # said CODE LINE ARGS...: refused with this very line
  refused "$1" "$2" -- "${@:3}"
  [[ $err == "kvbench: error: $2" ]] || fail "got '$err', expected '$2'"
}
for command in replay info cluster evaluate; do
  said 2 "$command: no trace, expected at least one TRACE.h5" "$command"
done
said 2 'summarize: no table, expected at least one OUT.csv' summarize
said 2 'merge: no input, expected at least one OUT.csv|OUT.csv.log' merge -o m.csv
said 2 'merge: no output, expected -o OUT.csv' merge a.csv
said 2 'verify: no table, expected OUT.csv' verify
said 2 'synth: no output, expected -o T.h5' synth
said 2 'completion: no shell, expected bash|zsh' completion

said 2 't.h5: not a results table (it is an HDF5 file); expected OUT.csv' summarize t.h5
[[ $(tr -d '[:print:]\n' < "$scratch/err" | wc -c) == 0 ]] || fail 'control characters on stderr'

said 3 "-o no/out.csv: folder 'no' does not exist" "${base[@]}" -o no/out.csv
said 3 "--export-caches no/c.h5: folder 'no' does not exist" "${base[@]}" -o o.csv --export-caches no/c.h5
said 3 "-o no/such/t.h5: folder 'no/such' does not exist" synth -o no/such/t.h5
good "${base[@]}" -o out.csv
said 3 "--csv no/s.csv: folder 'no' does not exist" summarize out.csv --csv no/s.csv
good "${base[@]}" -o 1.csv --shard 1/2
good "${base[@]}" -o 2.csv --shard 2/2
said 3 "-o no/m.csv: folder 'no' does not exist" merge 1.csv 2.csv -o no/m.csv

refused 2 '(did you mean snapkv?)' -- "${base[@]}" -o no.csv --algorithm SnapKV
refused 2 '(did you mean --budget?)' -- "${base[@]}" -o no.csv --Budget 0.5
refused 2 '(did you mean greedy?)' -- "${base[@]}" -o no.csv --algorithm balancekv:T=1\;step=Greedy
