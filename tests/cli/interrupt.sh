#!/usr/bin/env bash
# SIGINT and SIGTERM end a replay with 130 and whole rows; --resume completes the file.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
good synth -o t.h5 --layers 1 --q-heads 2 --kv-heads 1 --n 768 --d 16 --dv 8
# Long enough to be hit half-way; with sanitizers a row takes ten times as long.
seeds=8000
if grep -q -a -e -fsanitize= "$KVBENCH"; then seeds=600; fi
command=(replay t.h5 --algorithm uniform:T=1 --seeds "$seeds" --recent 128 --queries 128)

# logged FILE: rows in the log of a run.
logged() { grep -s -c -a ',prefill,' "$1.log" || [[ -f $1.log ]] || echo 0; }

interrupt() { # interrupt SIGNAL FILE
  "$KVBENCH" "${command[@]}" --threads 1 -o "$2" > "$scratch/out" 2> "$scratch/err" &
  local pid=$! tries=0
  until (($(logged "$2") > 20)); do
    kill -0 "$pid" 2> /dev/null || fail "ended before it was interrupted: $(cat "$scratch/err")"
    ((++tries < 30000)) || fail "no rows after ten minutes"
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
  ((rows >= 20 && rows < 2 * seeds && rows % 2 == 0)) || fail "$rows rows after $1"
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

# A run that is killed outright leaves its log, whole but for the last record, and a free lock.
"$KVBENCH" "${command[@]}" --threads 1 -o kill.csv > /dev/null 2>&1 &
pid=$!
until (($(logged kill.csv) > 20)); do sleep 0.02; done
good merge kill.csv.log -o now.csv
(($(column now.csv seed | wc -l) >= 20)) || fail "rows of a running log: $(wc -l now.csv)"
# Meanwhile the file is taken.
refused 2 'another run' -- "${command[@]}" -o kill.csv --resume
kill -KILL "$pid"
wait "$pid" 2> /dev/null || true
[[ ! -e kill.csv ]] || fail "a table of a killed run"
printf 'torn' >> kill.csv.log
good "${command[@]}" -o kill.csv --resume
same kill.csv whole.csv

# A job that would take minutes, and a plan of millions of rows: both end within two seconds.
# ended_soon PID: waits for it. The bound only tells it from the minutes that the job would take.
ended_soon() {
  local start=$EPOCHREALTIME took
  code=0
  wait "$1" || code=$?
  took=$((${EPOCHREALTIME/./} - ${start/./}))
  [[ $code == 130 ]] || fail "exit code $code: $(cat "$scratch/err")"
  ((took < 60000000)) || fail "ended only after $took microseconds"
}

# catches PID: whether it is kvbench (not yet the shell that starts it) and handles SIGTERM.
catches() {
  local mask
  # The program first: the shell that starts it catches SIGTERM as well.
  [[ /proc/$1/exe -ef $KVBENCH ]] || return 1
  mask=$(awk '/^SigCgt/ { print $2 }' "/proc/$1/status")
  ((0x$mask & 1 << 14))
}

good synth -o long.h5 --layers 1 --q-heads 1 --kv-heads 1 --n 40000 --nq 64 --d 64 --dv 64 --gzip 0
"$KVBENCH" replay long.h5 --algorithm uniform:T=1 --algorithm bumblebee:tokens=20000 --queries 64 \
  --recent 64 -o long.csv > "$scratch/out" 2> "$scratch/err" &
pid=$!
until (($(logged long.csv) == 1)); do
  kill -0 "$pid" 2> /dev/null || fail "ended before it was interrupted: $(cat "$scratch/err")"
  sleep 0.02
done
kill -INT "$pid"
ended_soon "$pid"
[[ $(cat "$scratch/err") == *"finished rows are kept, rerun with --resume"* ]] ||
  fail "stderr of an interrupted job: $(cat "$scratch/err")"
[[ $(column long.csv algorithm) == uniform && $(wc -l < long.csv) == 2 ]] || fail "rows: $(cat long.csv)"

"$KVBENCH" replay t.h5 --algorithm uniform:T=1:5 --seeds 1000000 --recent 128 --queries 128 \
  -o plan.csv > "$scratch/out" 2> "$scratch/err" &
pid=$!
until catches "$pid"; do
  kill -0 "$pid" 2> /dev/null || fail "ended before it was interrupted: $(cat "$scratch/err")"
  sleep 0.02
done
kill -TERM "$pid"
ended_soon "$pid"

# Commands that keep no rows end at once, and take with them what is unfinished.
export TMPDIR=$PWD/tmp
mkdir "$TMPDIR"
# leaves_nothing SIGNAL NAME ARGS...: interrupted as soon as NAME is there; no file is new.
leaves_nothing() {
  local signal=$1 name=$2 before
  before=$(find . | sort)
  "$KVBENCH" "${@:3}" > "$scratch/out" 2> "$scratch/err" &
  pid=$!
  until compgen -G "$name" > /dev/null; do
    kill -0 "$pid" 2> /dev/null || fail "ended before it was interrupted: $(cat "$scratch/err")"
    sleep 0.01
  done
  kill "-$signal" "$pid"
  ended_soon "$pid"
  [[ $(cat "$scratch/err") == *interrupted* ]] || fail "stderr: $(cat "$scratch/err")"
  [[ $(find . | sort) == "$before" ]] || fail "$* left $(diff <(echo "$before") <(find . | sort))"
}
for i in 1 2; do
  good replay t.h5 --algorithm uniform:T=1 --seeds 4000 --recent 128 --queries 4 --shard "$i/2" -o "part$i.csv"
done
for signal in INT TERM; do
  leaves_nothing "$signal" s.h5.tmp synth -o s.h5 --layers 64 --n 16384
  leaves_nothing "$signal" m.csv.tmp merge part1.csv part2.csv -o m.csv
  leaves_nothing "$signal" 'tmp/kvbench-verify-*' verify part1.csv --sample 3000
done
mkfifo never
"$KVBENCH" replay t.h5 --config never -o pipe.csv 2> "$scratch/err" & # reads its configuration
pid=$!
until catches "$pid"; do sleep 0.01; done
kill -TERM "$pid"
ended_soon "$pid"
