#!/usr/bin/env bash
# --dry-run prints the plan that would run, and writes nothing.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace t.h5 --prompts 2
command=(replay t.h5 --algorithm 'uniform:T=1,2,3' --algorithm local --budget 0.5,0.25 --seeds 4
  "${windows[@]}")

good "${command[@]}" --dry-run -o out.csv
[[ -z $err ]] || fail "stderr of a dry run: $err"
[[ $(ls -A) == t.h5 ]] || fail "files of a dry run: $(ls -A)"
# 2 prompts x 1 layer x 1 KV head; 3 x 4 seeds and 2 budgets; 2 query heads.
[[ $out == *'2 KV heads x 14 entries = 28 jobs, 56 rows'* ]] || fail "the plan: $out"
for text in 'T=1;' 'T=2;' 'T=3;' local p0 p1 t.h5; do
  [[ $out == *"$text"* ]] || fail "'$text' is not in the plan: $out"
done
[[ $out == *$'\nbudgets, of the whole cache: 0.5 is '*' smaller), 0.25 is '* ]] || fail "budgets: $out"
# A fraction is rounded once.
good replay t.h5 --algorithm uniform --budget 35/127 --dry-run
[[ $out == *'of the whole cache: 0.2755905511811024 is '* ]] || fail "a fraction: $out"
good "${command[@]}" --dry-run # an output is not needed
[[ $(ls -A) == t.h5 ]] || fail "files of a dry run: $(ls -A)"

# By algorithm: entries, jobs, rows, MiB of a job.
read -r name entries jobs rows mib params < <(grep '^uniform .*T=2;' <<< "$out")
[[ "$name $entries $jobs $rows $params" == 'uniform 4 8 16 T=2;tokens=auto' ]] ||
  fail "uniform: $entries $jobs $rows $params"
awk -v x="$mib" 'BEGIN { exit !(x > 0 && x < 100) }' || fail "MiB of a job: $mib"
[[ $(awk '/^(uniform|local) / { jobs += $3; rows += $4 } END { print jobs, rows }' <<< "$out") \
  == '28 56' ]] || fail "jobs and rows by algorithm: $out"
# Heads of the same figures have one line; the largest MiB is what the memory line says.
lines=$(grep 't\.h5; ' <<< "$out" || true)
[[ $(wc -l <<< "$lines") == 1 && $lines == *' 2 '*'t.h5; prompts p0, p1; layers 0; KV heads 0' ]] ||
  fail "heads that need alike: $lines"
most=$(sed -nE 's/.* ([0-9.]+)  t\.h5; .*/\1/p' <<< "$lines")
[[ $out == *"memory: at most $most MiB with "* ]] || fail "memory: $most in $out"
good "${command[@]}" --dry-run --shard 2/3
[[ $out == *'shard (2/3)'* ]] || fail "the shard: $out"
shard_rows=$(sed -nE 's/^this shard .* ([0-9]+) rows$/\1/p' <<< "$out")
good "${command[@]}" --shard 2/3 -o shard.csv
[[ $(column shard.csv seed | wc -l) == "$shard_rows" ]] || fail "not $shard_rows rows in the shard"
good "${command[@]}" -o whole.csv
[[ $(column whole.csv seed | wc -l) == 56 ]] || fail 'not 56 rows'

# An existing output is neither refused nor touched.
sum=$(cksum whole.csv whole.csv.json)
good "${command[@]}" --dry-run -o whole.csv
[[ $(cksum whole.csv whole.csv.json) == "$sum" ]] || fail 'a dry run changed its output'
refused 2 nosuch -- "${command[@]}" --dry-run --algorithm nosuch

# Sanitizers need memory of their own.
if grep -q __asan_init "$KVBENCH" || grep -q __tsan_init "$KVBENCH"; then
  exit 0
fi
# A memory limit: fewer threads, or a refusal that names the methods that do not fit.
good synth -o long.h5 --layers 1 --q-heads 2 --kv-heads 1 --n 16384 --nq 1024 --gzip 0
limited=(replay long.h5 --budget 0.5 --memory-limit 120M --threads 64 --dry-run)
good "${limited[@]}" --algorithm knorm
threads=$(sed -nE 's/^memory: .* with ([0-9]+) threads .*/\1/p' <<< "$out")
((threads > 0 && threads < 64)) || fail "threads within a limit: $out"
refused 2 'memory-limit: got 125829120 bytes, expected at least' -- "${limited[@]}" \
  --algorithm knorm,attention-matching,oracle-matching
[[ $err =~ 'a job of '(attention|oracle)'-matching; also too large: '(attention|oracle)'-matching'$ ]] ||
  fail "methods that do not fit: $err"
