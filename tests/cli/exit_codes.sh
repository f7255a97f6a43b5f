#!/usr/bin/env bash
# 0 done, 2 bad usage or input, 3 I/O or device failure; stdout of a replay is empty.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"

for help in --help --help-all --version -h; do
  good "$help"
  [[ -n $out && -z $err ]] || fail "$help must print to stdout only"
done

small_trace t.h5
good replay t.h5 -o out.csv --algorithm all --budget 0.5,0 "${windows[@]}"
[[ -z $out ]] || fail "a replay printed to stdout: $out"
[[ $(grep -vc '^note: --algorithm all skips ' <<< "$err") == 1 && $err == *$'\n'"out.csv: "*" rows in "* ]] ||
  fail "stderr of a replay: $err"
[[ $err == *"all skips leverage: "*/rope* && $err == *"all skips criticalkv: "*o_proj* ]] ||
  fail "skipped methods are not named: $err"
[[ $(ls -A) == $'out.csv\nout.csv.json\nt.h5' ]] || fail "files of a replay: $(ls -A)"
# Results that are no failures do not change the code.
[[ $(column out.csv algorithm | wc -l) -gt 10 ]] || fail "rows are missing"

refused 2 'got no subcommand, expected one of info, list' --
refused 2 nowhere.h5 -- info nowhere.h5
refused 2 exists -- replay t.h5 -o out.csv --algorithm exact
refused 3 cuda -- replay t.h5 -o o.csv --algorithm exact --device cuda:99
refused 3 nowhere/o.csv -- replay t.h5 -o nowhere/o.csv --algorithm exact "${windows[@]}"
mkdir folder
refused 2 'not a regular file' -- replay t.h5 -o folder --overwrite --algorithm exact

# A write that fails half-way: no file may grow beyond 8 KiB. What stands in the log are whole records.
code=0
(
  ulimit -f 8
  exec "$KVBENCH" replay t.h5 -o full.csv --algorithm uniform:T=1 --seeds 100 "${windows[@]}"
) > "$scratch/out" 2> "$scratch/err" || code=$?
[[ $code == 3 ]] || fail "exit code $code of a full disk: $(cat "$scratch/err")"
[[ $(wc -l < "$scratch/err") == 1 ]] || fail "stderr of a full disk: $(cat "$scratch/err")"
[[ ! -e full.csv ]] || fail 'a table that is not whole'
good merge full.csv.log -o now.csv
rows=$(column now.csv seed | wc -l)
((rows > 2 && rows < 200 && rows % 2 == 0)) || fail "$rows rows before the disk was full"
good replay t.h5 -o full.csv --algorithm uniform:T=1 --seeds 100 "${windows[@]}" --resume
good replay t.h5 -o whole.csv --algorithm uniform:T=1 --seeds 100 "${windows[@]}"
same full.csv whole.csv

if [[ -w /dev/full ]]; then
  for command in list --help 'summarize whole.csv' 'info t.h5'; do
    code=0
    # shellcheck disable=SC2086
    "$KVBENCH" $command > /dev/full 2> "$scratch/err" || code=$?
    [[ $code == 3 ]] || fail "exit code $code of $command > /dev/full"
    [[ $(wc -l < "$scratch/err") == 1 ]] || fail "stderr of $command > /dev/full: $(cat "$scratch/err")"
  done
fi
