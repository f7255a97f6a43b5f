#!/usr/bin/env bash
# Runs the program under ThreadSanitizer: both protocols with every method, caches, cluster, SIGINT.
#
#   tests/threads/run.sh KVBENCH [OTHER...]
#
# KVBENCH: built by Clang with -fsanitize=thread (make test-tsan). Clang's OpenMP run time tells the
# sanitizer through Archer what its barriers order; GCC's does not. Every run uses 4 threads, reports
# no race, and leaves the rows of one thread. OTHER: programs of other compilers and flags, which have
# to leave the same rows as well.
set -euo pipefail
export KVBENCH=${1:?usage: tests/threads/run.sh KVBENCH [OTHER...]} SRC
others=()
for other in "${@:2}"; do others+=("$(realpath -- "$other")"); done
SRC=$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")/../..
source "$SRC/tests/cli/lib.bash"

archer=$("${CLANG:-clang}" --print-file-name=libarcher.so)
[[ -f $archer ]] || archer=$(find /usr/lib/llvm-*/lib -name libarcher.so 2> /dev/null | sort | tail -n 1)
[[ -n $archer ]] || fail "no libarcher.so, expected it beside libomp (Debian: libomp-dev)"
export OMP_TOOL_LIBRARIES=$archer ARCHER_OPTIONS=verbose=1
# libomp itself is not instrumented.
export TSAN_OPTIONS="exitcode=66 ignore_noninstrumented_modules=1"

"${CLANG:-clang}++" -O1 -g -fopenmp -fsanitize=thread "$SRC/tests/threads/race.cpp" -o race
code=0
./race > "$scratch/out" 2> "$scratch/err" || code=$?
[[ $code == 66 ]] || fail "a race was not found (exit code $code): $(cat "$scratch/err")"

# watched ARGS...: a run without a report. Archer says that it is there once per process.
watched() {
  echo "kvbench $*"
  good "$@"
  [[ $out$err == *"Archer detected"* ]] || fail "Archer is not at work: $err"
}

# same_rows FILE ARGS...: 4 threads and 1 leave the same, and so do other programs.
same_rows() {
  watched "${@:2}" -o "$1.csv" --threads 4
  good "${@:2}" -o "$1.1.csv" --threads 1
  same "$1.csv" "$1.1.csv"
  for other in "${others[@]}"; do
    KVBENCH=$other good "${@:2}" -o "$1.other.csv" --threads 2 --overwrite
    same "$1.csv" "$1.other.csv"
  done
}

good synth -o t.h5 --layers 2 --q-heads 4 --kv-heads 2 --n 640 --d 16 --dv 16
same_rows prefill replay t.h5 --algorithm all --budget 0.25 --queries 64 --recent 64 --kept --per-query
same_rows stream replay t.h5 --algorithm all --budget 0.25 --protocol stream --queries 32 --recent 32
same_rows shared replay "$SRC/data/sample.h5" --algorithm pyramidkv,adakv,leverage,compactor --budget 0.25 \
  --layers 0
watched replay t.h5 --algorithm snapkv,kmeans --budget 0.25 --queries 64 --recent 64 \
  --export-caches c.h5 -o caches.csv --threads 4
watched evaluate t.h5 --caches c.h5 -o evaluated.csv --threads 4
# One job: the other threads help it.
for method in h2o kmeans bumblebee:matrix_mib=0 d2o clustergen-kcenter balancekv attention-matching; do
  watched replay "$SRC/tests/data/small.h5" --layers 1 --heads 0 --queries 64 --recent 64 --budget 0.1 \
    --algorithm "$method" -o "one_${method%%:*}.csv" --threads 4
done
watched cluster t.h5 -o clusters --k 16 --max-k 32 --max-clusters 64 --threads 4

"$KVBENCH" replay t.h5 --algorithm uniform:T=1:5 --seeds 20000 --queries 64 --recent 64 --threads 4 \
  -o stopped.csv 2> "$scratch/err" &
pid=$!
until [[ -f stopped.csv.log ]] && (($(grep -c -a ",prefill," stopped.csv.log) > 20)); do
  kill -0 "$pid" 2> /dev/null || fail "ended before it was interrupted: $(cat "$scratch/err")"
  sleep 0.05
done
kill -INT "$pid"
code=0
wait "$pid" || code=$?
[[ $code == 130 ]] || fail "exit code $code after SIGINT: $(cat "$scratch/err")"
! grep -q ThreadSanitizer "$scratch/err" || fail "$(cat "$scratch/err")"
echo "no race"
