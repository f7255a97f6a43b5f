#!/usr/bin/env bash
# Too little address space at any point: exit code 3 and one line, or 1 if only some jobs had none, and
# nothing unfinished; --resume gives the undisturbed rows.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
if grep -q __asan_init "$KVBENCH" || grep -q __tsan_init "$KVBENCH"; then
  echo 'skipped: a sanitizer maps terabytes'
  exit 0
fi
good synth -o t.h5 --layers 2 --q-heads 4 --kv-heads 2 --n 4096
command=(replay t.h5 --algorithm snapkv,h2o,kmeans --budget 0.25 --queries 64 --recent 64 --threads 2)
good "${command[@]}" -o whole.csv

# KiB that the program maps before it does anything: below, the loader itself fails (127).
least=0
for ((kib = 16000; kib < 400000; kib += 2000)); do
  if (ulimit -v $kib && "$KVBENCH" --version) > /dev/null 2>&1; then
    least=$kib
    break
  fi
done
((least > 0)) || fail 'no limit under which --version runs'

failures=0
done_at=0
for ((kib = least; kib < least + 200000; kib += 1500)); do
  rm -f out.csv* .out.csv*
  code=0
  (
    ulimit -v $kib
    exec "$KVBENCH" "${command[@]}" -o out.csv
  ) > "$scratch/out" 2> "$scratch/err" || code=$?
  if [[ $code == 0 ]]; then
    done_at=$kib
    break
  fi
  failures=$((failures + 1))
  err=$(cat "$scratch/err")
  # glibc ends a process itself where a thread has no room for its first thread_local's destructor, and
  # where libgcc_s cannot be loaded as a thread ends. Which limits do that changes from run to run.
  if [[ $code == 134 && $err =~ 'failed to register TLS destructor: out of memory'|'libgcc_s.so.1 must be installed' ]]; then
    continue
  fi
  if [[ $code == 1 ]]; then
    [[ $(grep -c ',failed' out.csv) == $(grep -c ',failed: memory,' out.csv) ]] ||
      fail "rows under ulimit -v $kib: $(grep ,failed out.csv)"
    good "${command[@]}" -o out.csv --resume
    same out.csv whole.csv
    continue
  fi
  [[ $code == 3 ]] || fail "exit code $code under ulimit -v $kib: $err"
  [[ $(grep -c '^kvbench: error: ' "$scratch/err") == 1 ]] || fail "said under ulimit -v $kib: $err"
  [[ -z $(find . -name '*.tmp' -o -name '*.lock') ]] || fail "under ulimit -v $kib: $(ls)"
  if [[ -e out.csv.log ]]; then
    good "${command[@]}" -o out.csv --resume
    same out.csv whole.csv
  fi
done
((failures >= 5 && done_at > 0)) || fail "$failures failures, done at $done_at"
