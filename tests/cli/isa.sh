#!/usr/bin/env bash
# KVBENCH_ISA selects kernels; all have the same bits. What the processor has not is refused.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"

good synth -o t.h5 --layers 1 --q-heads 4 --kv-heads 2 --n 700 --d 40 --dv 24
command=(replay t.h5 --algorithm all --budget 0.25 --queries 50 --recent 64)
KVBENCH_ISA=avx2 good "${command[@]}" -o avx2.csv
good "${command[@]}" -o best.csv
"${PYTHON:-python3}" "$SRC/scripts/compare_runs.py" avx2.csv best.csv --relative 0 > compared ||
  fail "AVX2 against the best of this processor: $(< compared)"

for wrong in AVX2 sse2; do
  KVBENCH_ISA=$wrong run "${command[@]}" -o wrong.csv
  [[ $code == 2 && $err == *"KVBENCH_ISA: got '$wrong', expected avx2 or avx512"* ]] || fail "$wrong: $code $err"
  [[ ! -e wrong.csv ]] || fail "$wrong: wrote rows"
done
if grep -qw avx512vl /proc/cpuinfo; then
  KVBENCH_ISA=avx512 good "${command[@]}" -o avx512.csv
else
  KVBENCH_ISA=avx512 run "${command[@]}" -o wrong.csv
  [[ $code == 2 && $err == *'this processor does not have; expected avx2'* ]] || fail "avx512: $code $err"
fi
