#!/usr/bin/env bash
# SIGINT and SIGTERM end a replay with 130 and whole rows; --resume completes the file.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
good synth -o t.h5 --layers 1 --q-heads 2 --kv-heads 1 --n 768 --d 16 --dv 8
# Long enough to be hit half-way.
command=(replay t.h5 --algorithm uniform:T=1 --seeds 4000 --recent 128 --queries 128)

interrupt() { # interrupt SIGNAL FILE
  "$KVBENCH" "${command[@]}" --threads 1 -o "$2" > "$scratch/out" 2> "$scratch/err" &
  local pid=$! tries=0
  until [[ -f $2 ]] && (($(wc -l < "$2") > 20)); do
    kill -0 "$pid" 2> /dev/null || fail "ended before it was interrupted: $(cat "$scratch/err")"
    ((++tries < 3000)) || fail "no rows after a minute"
    sleep 0.02
  done
  kill "-$1" "$pid"
  code=0
  wait "$pid" || code=$?
  [[ $code == 130 ]] || fail "exit code $code after $1: $(cat "$scratch/err")"
  [[ ! -s $scratch/out ]] || fail "stdout after $1"
  grep -q -e '--resume' "$scratch/err" || fail "no word about --resume: $(cat "$scratch/err")"
  [[ $(tail -c 1 "$2" | wc -l) == 1 ]] || fail "a torn row after $1"
  rows=$(column "$2" seed | wc -l)
  ((rows >= 20 && rows < 8000 && rows % 2 == 0)) || fail "$rows rows after $1"
  [[ ! -e $2.lock ]] || fail "the lock is left after $1"
  grep -q "\"rows\": $rows,\$" "$2.json" || fail "the manifest does not say $rows rows"
}

good "${command[@]}" -o whole.csv
interrupt INT int.csv
good "${command[@]}" -o int.csv --resume
[[ $err == *"$rows of them resumed"* ]] || fail "stderr of the resumed run: $err"
same int.csv whole.csv
interrupt TERM term.csv
good "${command[@]}" -o term.csv --resume --threads 2
same term.csv whole.csv

# A run that is killed outright leaves whole rows but for the last, and a free lock.
"$KVBENCH" "${command[@]}" --threads 1 -o kill.csv > /dev/null 2>&1 &
pid=$!
until [[ -f kill.csv ]] && (($(wc -l < kill.csv) > 20)); do sleep 0.02; done
# Meanwhile the file is taken.
refused 2 'another run' -- "${command[@]}" -o kill.csv --resume
kill -KILL "$pid"
wait "$pid" 2> /dev/null || true
printf '1.0,t.h5,p0,0,"torn' >> kill.csv
good "${command[@]}" -o kill.csv --resume
same kill.csv whole.csv
