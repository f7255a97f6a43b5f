#!/usr/bin/env bash
# BumbleBee's sensitivity to lambda from one trace: replay over lambda, phi and budgets, table.
#
#   scripts/sweep_lambda.sh TRACE OUT_DIR [further arguments of `kvbench replay`]
#
# Writes OUT_DIR/bumblebee_lambda.{csv,csv.json} and bumblebee_lambda_summary.csv.
# KVBENCH: program (default: build/kvbench).
# Exit code: that of the first failed step; 1 if only some rows failed.
set -euo pipefail

if [[ $# -lt 2 ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
kvbench=${KVBENCH:-$root/build/kvbench}
trace=$1
out_dir=$2
shift 2

if ! command -v "$kvbench" >/dev/null; then
  echo "sweep_lambda.sh: $kvbench: no such program; build it or set KVBENCH" >&2
  exit 2
fi

mkdir -p "$out_dir"
stem=$out_dir/bumblebee_lambda
status=0
"$kvbench" replay "$trace" --config "$root/configs/bumblebee_lambda.toml" -o "$stem.csv" "$@" ||
  status=$?
if ((status > 1)); then
  exit "$status"
fi
"$kvbench" summarize "$stem.csv" --csv "${stem}_summary.csv"
exit "$status"
