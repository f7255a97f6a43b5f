#!/usr/bin/env bash
# Tables of summarize as a user asks for them: formats, filters, widths; and what it refuses to pool.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
unset COLUMNS
trace=(--layers 2 --q-heads 2 --kv-heads 1 --n 96 --d 16 --dv 8)
good synth -o t.h5 "${trace[@]}"
good replay t.h5 -o out.csv --algorithm h2o,uniform,snapkv,exact,quant-kivi --budget 0.5,0.25 \
  --seeds 2 "${windows[@]}"

# says WORDS: the last summary says them.
says() { [[ $out == *"$1"* ]] || fail "'$1' is not said: $out"; }

good summarize out.csv
says 'mean ± standard error over 4 to 8 rows: layers x query heads x seeds.'
refused 2 'column `nothing` is missing' -- summarize out.csv --by nothing

# Formats.
good summarize out.csv --format markdown
says '| algorithm | budget (fraction) | count (rows) |'
says ' ± 0.'
good summarize out.csv --format csv --csv s.csv
[[ $out == "$(< s.csv)" ]] || fail 'csv on stdout is not the file'
good summarize out.csv --csv s.csv
[[ $(head -1 s.csv) == algorithm,params,budget_requested,count,* ]] || fail "$(head -1 s.csv)"
refused 2 "got 'html', expected text, markdown or csv" -- summarize out.csv --format html

# Filters.
good summarize out.csv --where layer=1 --where 'algorithm=s*,h2o'
[[ $(grep -cE '^(snapkv|h2o) ' <<< "$out") == 4 && $out != *uniform* ]] || fail "$out"
good summarize out.csv --where 'algorithm!=exact' --where budget=0.3:1.1
[[ $out != *exact* && $out != *0.25* ]] || fail "$out"
good summarize out.csv --where 'algorithm=s*,h2o,layer=1' # conditions with commas
[[ $(grep -cE '^(snapkv|h2o) ' <<< "$out") == 4 && $out != *uniform* ]] || fail "$out"
good summarize out.csv --where 'params=*,layer=1,budget=0.5' # `budget` is no value of params
[[ $out != *0.25* ]] || fail "$out"
refused 2 'out.csv: column `layr` (did you mean layer?) is missing' -- \
  summarize out.csv --where algorithm=h2o,layr=1
refused 2 'no row has algorithm snapvk' -- summarize out.csv --where algorithm=snapvk
refused 2 'no rows are left by --where layer=0 --where layer=1' -- \
  summarize out.csv --where layer=0 --where layer=1
refused 2 'out.csv: column `colour` is missing; there are schema, trace,' -- \
  summarize out.csv --where colour=red
refused 2 'expected COLUMN=VALUE' -- summarize out.csv --where layer

# Duplicate rows, in two files or under two names.
cp out.csv copy.csv
refused 2 'out.csv: line 2: duplicate row, also in out.csv, line 2: trace=t.h5, prompt=' -- \
  summarize out.csv out.csv
refused 2 'copy.csv: line 2: duplicate row, also in out.csv, line 2: ' -- \
  summarize out.csv copy.csv --pool

# Budgets of the whole cache: 20 of 96 tokens are exact.
good replay t.h5 -o total.csv --algorithm snapkv --total-budget 50%,1/8 "${windows[@]}"
good verify total.csv
good summarize total.csv --metric ratio --format csv
[[ $out == *,0.5,4,0,0,0,0.5,0$'\n'*,0.125,0,0,4,0,nan,nan ]] || fail "$out"
refused 2 'exclude each other' -- \
  replay t.h5 -o both.csv --algorithm snapkv --total-budget 0.5 --budget 0.5
refused 2 'total-budget: got true, expected false' -- \
  replay t.h5 -o out.csv --algorithm h2o --total-budget 0.5 "${windows[@]}" --resume

# What does not belong into one mean.
good replay t.h5 -o stream.csv --algorithm h2o,uniform --budget 0.5,0.25 --protocol stream "${windows[@]}"
refused 2 'differ in protocol (prefill, stream); --by protocol separates them' -- \
  summarize out.csv stream.csv
good summarize out.csv stream.csv --by protocol
good summarize out.csv stream.csv --where protocol=prefill
good summarize out.csv stream.csv --pool
[[ $err == *'rows that differ in protocol are pooled'* ]] || fail "$err"
good synth -o u.h5 "${trace[@]}" --dtype float32
good replay u.h5 -o u.csv --algorithm h2o --budget 0.5 "${windows[@]}"
refused 2 'differ in dtype (float16, float32)' -- summarize out.csv u.csv
good summarize out.csv u.csv --by dtype
says float32
good replay t.h5 -o sink.csv --algorithm h2o --budget 0.5 --sink 5 --recent 16 --queries 8
refused 2 'differ in sink (4, 5)' -- summarize out.csv sink.csv

# Widths. Into a file all is written.
for width in 30 60 80 120; do
  code=0
  for layout in '' '--by prompt,layer --full'; do
    # shellcheck disable=SC2086
    COLUMNS=$width "$KVBENCH" summarize out.csv $layout > wide.txt 2> "$scratch/err" ||
      fail "exit code $? at width $width"
    longest=$(LC_ALL=C.UTF-8 wc -L < wide.txt)
    ((longest <= width)) || fail "a line of $longest at width $width: $(< wide.txt)"
  done
done
"$KVBENCH" summarize out.csv > wide.txt
grep -q 'compress_ms' wide.txt && ! grep -q 'Left out to fit' wide.txt || fail "$(< wide.txt)"
COLUMNS=60 "$KVBENCH" summarize out.csv > wide.txt
grep -q '^Left out to fit the width: ' wide.txt || fail "$(< wide.txt)"

# A terminal knows its width better than COLUMNS; one that does not has 100 columns.
on_terminal() { # WIDTH COLUMNS
  script -qec "stty cols $1; COLUMNS=$2 '$KVBENCH' summarize out.csv --full 2> /dev/null" /dev/null < /dev/null |
    LC_ALL=C.UTF-8 tr -d '\r' > wide.txt || fail "$(< wide.txt)"
}
if command -v script > /dev/null; then
  for case in '40 70 40' '100 70 100' '0 70 70' '0 0 100'; do
    read -r width columns most <<< "$case"
    on_terminal "$width" "$columns"
    longest=$(LC_ALL=C.UTF-8 wc -L < wide.txt)
    ((longest <= most)) || fail "a line of $longest on a terminal of $width: $(< wide.txt)"
  done
  "$KVBENCH" summarize out.csv --full > whole.txt
  on_terminal 500 70
  cmp whole.txt wide.txt || fail "$(< wide.txt)"
fi
