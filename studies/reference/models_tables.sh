#!/usr/bin/env bash
# Writes the tables over all models from their stores: loss, loss of tuned methods, loss of policies,
# by total bytes, agreement between models on the order of methods, heads and the methods that serve them. Models with
# fewer than four works in stage `judged` are skipped, and stages `others` and `tuned` with fewer works
# than that.
#   studies/reference/models_tables.sh [RESULTS]      (default: studies/reference/results/models)
# PYTHON: interpreter (default: scripts/find_python.sh). WORKS: the works' kinds (default: prompts/sources.toml).
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
out=${1:-studies/reference/results/models}
python=$(scripts/find_python.sh)
works_file=${WORKS:-studies/reference/prompts/sources.toml}
parts=$(mktemp -d)
trap 'rm -rf -- "$parts"' EXIT

# NAME:FOLDER of each model, by size.
models=(SmolLM2-135M:smollm2-135m Qwen2.5-Coder-0.5B:qwen2.5-coder-0.5b Qwen2.5-Coder-1.5B:qwen2.5-coder-1.5b)
least=4
# Methods of the smallest stage `judged` that fit 1/8 of the bytes, without oracles.
served=(snapkv h2o expected-attention tova bumblebee local attention-matching kmeans
  attention-matching@quant-kivi h2o@quant-kivi)
# Oracles, codes, losses of whole nats.
apart=(exact oracle oracle-matching {h2o,snapkv,attention-matching}@quant-kivi quant-kivi quant-rotated lowrank
  cam clustergen kvreviver)
# Prompts of a stage: works STORE STAGE; rows of some of them, a file or nothing: works STORE STAGE TABLE ID... -o FILE.
works() {
  PYTHONPATH=python:studies/reference "$python" -m kvbench_study.reference.works "$@"
}
# Appends to an array the files with the rows of the works `ids` in stages: add_works ARRAY TABLE STORE/STAGE...
add_works() {
  local -n files_of=$1
  local stage found
  for stage in "${@:3}"; do
    found=$(works "${stage%/*}" "${stage##*/}" "$2" "${ids[@]}" -o "$(mktemp -p "$parts" XXXXXX.csv.gz)")
    [[ ! $found ]] || files_of+=("$found")
  done
}
usual=()
sampled=()
tuned=()  # with the rows of the defaults
for model in "${models[@]}"; do
  store=$out/${model#*:}/store
  files=("$store/judged.scores.csv.gz")
  count=$(works "$store" judged | wc -l)
  ((count >= least)) || continue
  more=$(works "$store" others | wc -l)
  if ((more >= count)); then
    files+=("$store/others.scores.csv.gz")
    sampled+=(--score-table "${model%%:*}" "$store/others.scores.csv.gz")
    [[ ! -e $store/authors.scores.csv.gz ]] || sampled+=("$store/authors.scores.csv.gz")
  fi
  usual+=(--score-table "${model%%:*}" "${files[@]}")
  more=$(works "$store" tuned | wc -l)
  if ((more >= count)); then
    tuned+=(--score-table "${model%%:*}" "${files[@]}" --tuned "${model%%:*}" "$store/tuned.scores.csv.gz")
  fi
done
if ((${#usual[@]} == 0)); then
  echo "models_tables.sh: $out: found no scores of a model, expected */store/judged" >&2
  exit 2
fi
compare() {
  "$python" scripts/kvbench-py compare "$@"
}
compare "${usual[@]}" --exclude exact --to snapkv --csv "$out/losses.csv" --markdown "$out/losses.md"
# Against what needs no queries and no scores.
compare "${usual[@]}" --exclude exact --to local --csv "$out/losses.to_local.csv" --markdown "$out/losses.to_local.md" \
  --sources "$parts/sources.csv"
"$python" studies/reference/kvbench-study kinds "$parts/sources.csv" --works "$works_file" --to local \
  --csv "$out/losses.kinds.csv"
# How alike the models order methods that keep 16-bit tokens: oracles, codes and losses of whole nats agree anyway.
compare "${usual[@]}" --orders "$out/losses.orders.csv" --exclude "$(IFS=,; echo "${apart[*]}")"
# The smallest losses, two methods of reference, and what selection could gain at most.
shown=()
for method in oracle h2o@quant-kivi attention-matching@quant-kivi quant-kivi h2o attention-matching expected-attention bumblebee \
  snapkv local; do
  if grep -q ",$method," "$out/losses.csv"; then shown+=("$method"); fi
done
compare "${usual[@]}" --exclude exact --show "$(IFS=,; echo "${shown[*]}")" --figures "$out/losses"
# Against the 16-bit method with the smallest mean loss, without oracles.
compare "${usual[@]}" --exclude exact,oracle,oracle-matching --to h2o --csv "$out/losses.to_h2o.csv" \
  --markdown "$out/losses.to_h2o.md"
# BalanceKV against samples of as many tokens.
if ((${#sampled[@]})) && grep -q ",balancekv," "$out/losses.csv"; then
  compare "${sampled[@]}" --algorithm balancekv,uniform --to uniform --csv "$out/losses.sampling.csv" \
    --markdown "$out/losses.sampling.md"
fi
# Policies beside the single methods, over the works that both have: what the model loses, also with tuned single
# methods, and the errors of the replay.
policies=()
better=()
errors=()
for model in "${models[@]}"; do
  name=${model%%:*}
  folder=$out/${model#*:}
  both=$(works "$folder-policies/store" judged)
  single=$(works "$folder/store" judged)
  both=$(comm -12 <(sort <<<"$both") <(sort <<<"$single"))
  [[ $both ]] || continue
  mapfile -t ids <<<"$both"
  stages=("$folder-policies/store/"judged{,_controls,_more} "$folder/store/judged")
  files=() layers=() settings=()
  add_works files scores "${stages[@]}"
  add_works layers layers "${stages[@]}"
  add_works settings scores "$folder/store/tuned"
  policies+=(--score-table "$name" "${files[@]}")
  errors+=(--score-table "$name" "${layers[@]}")
  ((${#settings[@]} == 0)) || better+=(--tuned "$name" "${settings[@]}")
done
if ((${#policies[@]})); then
  compare "${policies[@]}" --exclude exact --to h2o@quant-kivi --csv "$out/policies.csv" --markdown "$out/policies.md"
  compare "${policies[@]}" --metric loss_change --exclude exact --to h2o@quant-kivi --csv "$out/policies.loss_change.csv"
  compare "${errors[@]}" --metric residual_rel_error --exclude exact --to h2o@quant-kivi --csv "$out/policies.errors.csv" \
    --markdown "$out/policies.errors.md"
fi
if ((${#better[@]})); then
  compare "${policies[@]}" "${better[@]}" --budget 0.125 --exclude exact --to h2o@quant-kivi --csv "$out/policies.tuned.csv" \
    --markdown "$out/policies.tuned.md"
fi
# Policies against one that chooses method and budget of each layer, of each model alone.
for model in "${models[@]}"; do
  scores=()
  for stage in judged{,_controls,_more}; do
    table=$out/${model#*:}-policies/store/$stage.scores.csv.gz
    [[ ! -e $table ]] || scores+=("$table")
  done
  ((${#scores[@]})) || continue
  for budget in 4:0.25 8:0.125 16:0.0625; do
    compare --score-table "${model%%:*}" "${scores[@]}" --budget "${budget#*:}" --to "policy:both-${budget%%:*}" --digits 4 \
      --markdown "$out/${model#*:}-policies/against-both-${budget%%:*}.md"
  done
done
# Policies that the test works chose, on the development works, against those that the development works chose.
for model in "${models[@]}"; do
  folder=$out/${model#*:}-policies
  table=$folder/store/judged_swapped.scores.csv.gz
  [[ -e $table ]] || continue
  compare --score-table "${model%%:*}" "$table" --to h2o@quant-kivi --csv "$folder/swapped.csv"
  for budget in 4:0.25 8:0.125 16:0.0625; do
    compare --score-table "${model%%:*}" "$table" --algorithm policy --budget "${budget#*:}" \
      --to "policy:equal-${budget%%:*}" --csv "$folder/swapped-${budget%%:*}.csv"
  done
done
# Longer prompts beside those of 4096 tokens from the same works. IDs end in -8k or -16k.
long=()
for model in "${models[@]}"; do
  folder=$out/${model#*:}-long
  [[ -e $folder/store ]] || continue
  mapfile -t longer < <(works "$folder/store" judged)
  ((${#longer[@]} >= least)) || continue
  ids=("${longer[@]%-*k}") files=()
  add_works files scores "$out/${model#*:}/store/judged" "$out/${model#*:}-policies/store/judged" "$folder/store/short"
  tokens=${longer[0]##*-}
  long+=(--score-table "${model%%:*} 4096 tokens" "${files[@]}"
    --score-table "${model%%:*} $((${tokens%k} * 1024)) tokens" "$folder/store/judged.scores.csv.gz")
done
if ((${#long[@]})); then
  compare "${long[@]}" --to local --csv "$out/long.csv" --markdown "$out/long.md" --algorithm local,h2o,snapkv,\
expected-attention,attention-matching,quant-kivi,oracle,h2o@quant-kivi,policy:heads-4,policy:heads-8,policy:heads-16
fi
# One window of a work, and three.
store=$out/smollm2-135m-windows/store
if [[ -e $store ]] && (($(works "$store" judged | wc -l) >= 24)); then
  mapfile -t ids < <(works "$store" judged | sed 's/-w[23]$//' | sort -u)
  one=()
  add_works one scores "$out/smollm2-135m/store/judged" "$out/smollm2-135m-policies/store/judged_controls"
  compare --score-table "one window" "${one[@]}" --score-table "three windows" "${one[@]}" "$store/judged.scores.csv.gz" \
    --budget 0.125 --to local --csv "$out/windows.csv" --markdown "$out/windows.md" --algorithm local,h2o,snapkv,adakv,\
expected-attention,attention-matching,oracle,h2o@quant-kivi,snapkv@quant-kivi,attention-matching@quant-kivi,\
policy:equal-heads-8
fi
# Answers under policies beside the single methods.
for model in "${models[@]}"; do
  folder=$out/${model#*:}
  answers=()
  for setting in unseen seen; do
    tasks=$(works "$folder-policies/store" "tasks_$setting")
    [[ $tasks ]] || continue
    mapfile -t tasks <<<"$tasks"
    # Where single methods are not in the same table.
    single=$(works "$folder/store" "tasks_$setting" scores "${tasks[@]}" -o "$parts/${model#*:}.$setting.csv.gz")
    answers+=(--score-table "$setting" "$folder-policies/store/tasks_$setting.scores.csv.gz" ${single:+"$single"})
  done
  ((${#answers[@]})) || continue
  "$python" studies/reference/kvbench-study answers "${answers[@]}" --records "build/prompts/${model#*:}/tasks.jsonl" \
    --csv "$folder-policies/answers.csv" --markdown "$folder-policies/answers.md"
done
# Heads of the models and the methods that serve them, over the methods that all models have.
heads=()
for model in "${models[@]}"; do
  clusters=$out/${model#*:}-heads/store/heads  # .attention.csv.gz, .keys.csv.gz, ...
  rows=$out/${model#*:}/store/judged.csv.gz
  [[ -e $clusters.keys.csv.gz && -e $rows ]] || continue
  heads+=(--cluster "${model%%:*}" "$clusters" --row-table "${model%%:*}" "$rows")
  "$python" studies/reference/kvbench-study scaling --row-table 4096 "$rows" --cluster 4096 "$clusters" \
    --algorithm "$(IFS=,; echo "${served[*]}")" --csv "$out/${model#*:}-heads/scaling.csv" \
    --markdown "$out/${model#*:}-heads/scaling.md"
  policy=$out/${model#*:}-policies/budgets-8.json
  [[ ! -e $policy ]] || heads+=(--policy "${model%%:*}" "$policy")
done
if ((${#heads[@]})); then
  "$python" studies/reference/kvbench-study atlas "${heads[@]}" --budget 0.125 --algorithm "$(IFS=,; echo "${served[*]}")" \
    --csv "$out/heads.csv" --markdown "$out/heads.md" --figures "$out/heads"
  # Those that select tokens and store them in 16 bits.
  "$python" studies/reference/kvbench-study atlas "${heads[@]}" --budget 0.125 --markdown "$out/heads.tokens.md" \
    --csv "$out/heads.tokens.csv" --algorithm snapkv,h2o,expected-attention,tova,bumblebee,local
fi
if ((${#tuned[@]})); then
  compare "${tuned[@]}" --budget 0.125 --exclude exact --to snapkv --csv "$out/tuned.csv" --markdown "$out/tuned.md"
  compare "${tuned[@]}" --budget 0.125 --exclude exact --to local --csv "$out/tuned.to_local.csv" \
    --markdown "$out/tuned.to_local.md"
fi
# By the bytes of the whole cache, over other windows; with fewer works than intervals need a model is left out.
total=()
for model in "${models[@]}" "Gemma 3 270M:gemma3-270m"; do
  files=()
  [[ -e $out/${model#*:}-total/store ]] && (($(works "$out/${model#*:}-total/store" judged | wc -l) >= 8)) || continue
  for stage in judged formats; do
    table=$out/${model#*:}-total/store/$stage.scores.csv.gz
    [[ ! -e $table ]] || files+=("$table")
  done
  ((${#files[@]} == 0)) || total+=(--score-table "${model%%:*}" "${files[@]}")
done
if ((${#total[@]})); then
  compare "${total[@]}" --to local --csv "$out/total.csv" --markdown "$out/total.md"
  ! grep -q ",h2o@quant-kivi," "$out/total.csv" || compare "${total[@]}" --to h2o@quant-kivi --csv "$out/total.to_h2o_4_bits.csv"
  shown=()
  for method in local quant-kivi h2o attention-matching snapkv@quant-kivi adakv@quant-kivi h2o@quant-kivi policy:layers policy:heads \
    oracle; do
    if grep -qE ",$method( [^,]*|-[0-9]+)?," "$out/total.csv"; then shown+=("$method"); fi
  done
  compare "${total[@]}" --axis bytes --show "$(IFS=,; echo "${shown[*]}")" --figures "$out/total"
fi
store=$out/smollm2-135m-total/store
if [[ -e $store/tuned_bits.scores.csv.gz ]]; then
  compare --score-table SmolLM2-135M "$store"/{judged,tuned_bits}.scores.csv.gz --algorithm h2o@quant-kivi --csv "$out/total.bits.csv"
fi
rm -f -- "$out"/*.pdf  # pages show the .png
