#!/usr/bin/env bash
# kvbench verify: what it says, its exit codes, and that every command refuses a changed table.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace t.h5
command=(replay t.h5 --algorithm exact,uniform --budget 0.5,0.25 --seeds 2 "${windows[@]}" --kept)
good "${command[@]}" -o out.csv
good verify out.csv
[[ $out == *'out.csv: '*'the checksum of the file is right'*'out.kept.csv: '* ]] || fail "verify says: $out"
good verify out.csv --sample 3 --seed 5 --threads 1
[[ $out == *$'\n'"$PWD/t.h5: the trace of out.csv, its SHA-256 is right"$'\n'* ]] || fail "verify says: $out"
[[ $(grep -c ': agrees$' <<< "$out") == 3 && $out == *', 0 differ' ]] || fail "verify says: $out"
refused 2 --sample -- verify out.csv --sample -1
refused 2 none.csv -- verify none.csv

# A manifest may say anything: each is refused, soon.
cp out.csv.json manifest
mkfifo pipe
no_sample() { # no_sample WORDS
  run verify out.csv --sample 1
  [[ $code == 2 && $(wc -l < "$scratch/err") == 1 && $err == *"$1"* ]] || fail "$code instead of '$1': $err"
}
for path in /dev/zero pipe .; do
  sed "s|\"path\": \".*\"|\"path\": \"$path\"|" manifest > out.csv.json
  no_sample "$path: is a directory or device, expected a trace"
done
echo secret > secret
sed 's|"path": ".*"|"path": "secret"|' manifest > out.csv.json
no_sample 'secret: is not HDF5, expected a trace'
for ranges in '' '[0, 4611686018427387904]' '[0, 1], [1, 2]'; do
  tr -d '\n' < manifest | sed -E "s/\"row_ranges\": \[[^]]*\][^]]*\]/\"row_ranges\": [$ranges]/" > out.csv.json
  no_sample 'out.csv.json: row_ranges are not those of this plan'
done
mv manifest out.csv.json
good verify out.csv --sample 1

# From another folder, and a trace that was moved.
mkdir elsewhere
(
  cd elsewhere
  run verify ../out.csv --sample 1
  [[ $code == 2 && $err == *'t.h5: '* ]] || fail "$code: $err"
  good verify ../out.csv --sample 1 --trace ../t.h5
  [[ $out == *', 0 differ' ]] || fail "verify says: $out"
  cp ../t.h5 other.h5
  run verify ../out.csv --sample 1 --trace other.h5
  [[ $code == 2 && $err == *'--trace other.h5: the run read no trace of this file name'* ]] || fail "$code: $err"
  refused 2 '--sample' -- verify ../out.csv --trace ../t.h5
)

# A manifest may be nested to any depth.
cp out.csv.json manifest
brackets() { head -c 200000 /dev/zero | tr '\0' "$1"; }
text=$(< manifest) config='"configuration": {'
printf '%s' "${text/"$config"/"$config\"deep\": $(brackets '[')$(brackets ']'), "}" > out.csv.json
for act in 'verify out.csv' 'summarize out.csv' 'merge out.csv -o merged.csv' "${command[*]} -o out.csv --resume"; do
  read -ra words <<< "$act"
  refused 2 'out.csv.json: ' -- "${words[@]}"
done
mv manifest out.csv.json

# The same options give the same run, others another one.
good "${command[@]}" -o again.csv --threads 1
[[ $(column again.csv algorithm | wc -l) == "$(column out.csv algorithm | wc -l)" ]] || fail 'other rows'
run_of() { sed -n 's/.*"run_id": "\(.*\)",/\1/p' "$1.json"; }
[[ $(run_of out.csv) == "$(run_of again.csv)" && -n $(run_of out.csv) ]] || fail 'the run is another'
cmp out.kept.csv again.kept.csv || fail 'the side tables differ'

# A digit of line 4.
cp out.csv whole.csv
sed -i '4s/96/95/' out.csv
for act in 'verify out.csv' 'summarize out.csv' "${command[*]} -o out.csv --resume"; do
  read -ra words <<< "$act"
  refused 2 'out.csv: SHA-256 is ' -- "${words[@]}"
done
sed '4d' whole.csv > out.csv
refused 2 'SHA-256' -- verify out.csv
refused 2 'SHA-256' -- summarize out.csv
refused 2 'SHA-256' -- "${command[@]}" -o out.csv --resume
head -c -20 whole.csv > out.csv
refused 2 'line ' -- summarize out.csv
cp whole.csv out.csv
good "${command[@]}" -o out.csv --resume
good verify out.csv

# A side table of another run.
good replay t.h5 --algorithm exact --budget 0.5 "${windows[@]}" -o other.csv
cp out.kept.csv other.kept.csv
refused 2 'other.kept.csv: holds rows of run' -- verify other.csv
refused 2 'other.kept.csv: holds rows of run' -- cluster t.h5 -o dir --kept-by other.kept.csv

# A row that comes out otherwise: the file's SHA-256 is right, its value is not.
sed -i '6s/,96,8,/,97,8,/' again.csv
[[ $(sed -n 6p again.csv) == *,97,8,* ]] || fail 'no n_tokens in line 6'
sum=$(sha256sum < again.csv)
sed -i "s/\"table\": \".*\"/\"table\": \"${sum%% *}\"/" again.csv.json
good verify again.csv
run verify again.csv --sample 1000
[[ $code == 1 ]] || fail "exit code $code, not 1: $err"
[[ $out == *'again.csv: row 5: n_tokens is 97, again 96'*', 1 differ' ]] || fail "verify says: $out"
