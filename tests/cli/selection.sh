#!/usr/bin/env bash
# --layers and --heads take numbers and ranges A:B, which leave B out, on the command line and in a
# configuration.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
good synth -o t.h5 --layers 5 --q-heads 4 --kv-heads 2 --n 96 --d 16 --dv 8

chosen() { # chosen COLUMN EXPECTED OPTIONS...
  rm -f out.*
  good replay t.h5 "${windows[@]}" -o out.csv --algorithm exact "${@:3}"
  [[ $(column out.csv "$1" | sort -un | xargs) == "$2" ]] ||
    fail "$1 of ${*:3}: $(column out.csv "$1" | sort -un | xargs), not $2"
}
chosen layer '0 1 2' --layers 0:3
chosen layer '0 1 2 4' --layers 0:3,4
chosen layer '1 3 4' --layers 3:5,1,3
chosen layer '2' --layers 2:3
chosen layer '0 2 4' --layers 0:5:2
chosen q_head '1 2' --heads 1:3
chosen q_head '0 3' --heads 3,0:1
# Of a range some are there, of a list all; the manifest names those that are.
chosen layer '3 4' --layers 3:40
[[ $(tr -d ' \n' < out.csv.json) == *'"layers":[3,4]'* ]] || fail 'layers in the manifest'
chosen q_head '2 3' --heads 2:99
printf 'layers = ["0:2", 4]\nheads = "1:3"\n' > choice.toml
chosen layer '0 1 4' --config choice.toml
chosen q_head '1 2' --config choice.toml
chosen layer '3' --config choice.toml --layers 3:4
good cluster t.h5 -o c --layers 1:3 --kv-heads 0:1 --points none
[[ $(column c/norms.csv layer | sort -un | xargs) == '1 2' ]] || fail 'layers of cluster'
[[ $(column c/coverage.csv kv_head | sort -un | xargs) == 0 ]] || fail 'KV heads of cluster'

# In lists of names `\,` is a comma of a name.
refused 2 'no trace has a,b, expected some of p0' -- replay t.h5 -o no.csv --algorithm exact --prompts 'p0,a\,b'
refused 2 'no trace has a,b, expected some of p0' -- cluster t.h5 -o no --prompts 'a\,b,p0'
refused 2 'no trace has a\b, expected some of p0' -- cluster t.h5 -o no --prompts 'a\b'
refused 2 'no trace has , expected some of p0' -- cluster t.h5 -o no --prompts ,
printf "prompts = ['p0', 'a\\\\,b']\n" > names.toml
refused 2 'no trace has a,b, expected some of p0' -- replay t.h5 -o no.csv --algorithm exact --config names.toml

for value in 2:2 3:1 :2 1: 99:120 3,99 -1:2 0:x 0:2:0 0:2:1:1 0:1000002 01:3 0:99999999999999999999; do
  refused 2 --layers -- replay t.h5 -o no.csv --algorithm exact --layers "$value"
  refused 2 --heads -- replay t.h5 -o no.csv --algorithm exact --heads "$value"
  refused 2 --kv-heads -- cluster t.h5 -o no --kv-heads "$value"
done
printf 'sink = 4\nlayers = ["2:2"]\n' > bad.toml
refused 2 'line 2' -- replay t.h5 -o no.csv --algorithm exact --config bad.toml
