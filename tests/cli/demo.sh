#!/usr/bin/env bash
# The demo's replay on a cut of the sample, from its configuration to table and picture; and every
# configuration in configs/ against the options and methods that there are.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
sample=$SRC/data/sample.h5

good replay "$sample" --config "$SRC/configs/balancekv_fig2.toml" --layers 0,18 --seeds 2 -o fig2.csv
# 2 layers x 9 query heads x (balancekv, uniform, random-local: 4 T x 2 seeds; oracle, local,
# streamingllm: 4 T; exact).
[[ $(wc -l < fig2.csv) == $((1 + 18 * (3 * 8 + 3 * 4 + 1))) ]] || fail "$(wc -l < fig2.csv) lines"
[[ -s fig2.csv.json ]] || fail 'no manifest'
good summarize fig2.csv --by layer
for text in 'balancekv T=4' 'uniform T=1' streamingllm exact; do
  [[ $out == *"$text"* ]] || fail "'$text' is not in the table: $out"
done
python=${PYTHON:-python3}
if "$python" -c 'import numpy, pandas, matplotlib' 2> /dev/null; then
  "$python" "$SRC/scripts/kvbench-py" plot error fig2.csv -o fig2
  [[ -s fig2.png && -s fig2.pdf ]] || fail 'no picture'
else
  echo "SKIPPED: the picture; $python has no numpy, pandas and matplotlib"
fi

for config in "$SRC"/configs/*.toml; do
  if [[ $config == */second_question.toml ]]; then  # tests/test_kvbench_trace.py runs it
    refused 2 "no extra queries 'question-a'" -- replay "$sample" --config "$config" --dry-run
    continue
  fi
  good replay "$sample" --config "$config" --dry-run
  [[ $'\n'$out == *$'\n''plan: 12 KV heads x '* ]] || fail "$config: $out"
done
