#!/usr/bin/env bash
# --output and --overwrite are called so by every command; former names are taken with a note.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace t.h5
base=(replay t.h5 --algorithm exact,local --budget 0.5 "${windows[@]}")

for command in replay evaluate cluster merge synth; do
  good "$command" --help
  [[ $out == *'-o, --output '* && $out != *--out\ * && $out != *--force* ]] || fail "$command: $out"
done
good "${base[@]}" --output a.csv
[[ $err != *note:* ]] || fail "a note: $err"

good "${base[@]}" --out b.csv
[[ ${err%%$'\n'*} == 'note: --out is now --output' ]] || fail "no note of --out: $err"
same a.csv b.csv
good "${base[@]}" --out=c.csv
same a.csv c.csv
printf '[replay]\nout = "d.csv"\noverwrite = true\n' > old.toml
good "${base[@]}" --config old.toml
[[ ${err%%$'\n'*} == 'note: --out is now --output' ]] || fail "no note of a configuration: $err"
same a.csv d.csv
good cluster t.h5 --out c --points none
[[ -s c/norms.csv && ${err%%$'\n'*} == 'note: --out is now --output' ]] || fail "cluster --out: $err"

good "${base[@]}" -o 1.csv --shard 1/2
good "${base[@]}" -o 2.csv --shard 2/2
good merge 1.csv 2.csv --output m.csv
refused 2 --overwrite -- merge 1.csv 2.csv -o m.csv
good merge 1.csv 2.csv -o m.csv --overwrite
[[ $err != *note:* ]] || fail "a note: $err"
good merge 1.csv 2.csv -o m.csv --force
[[ ${err%%$'\n'*} == 'note: --force is now --overwrite' ]] || fail "no note of --force: $err"
same a.csv m.csv
