#!/usr/bin/env bash
# BalanceKV's figure 2 from one trace: replay over T, the picture, the table.
#
#   scripts/sweep_T.sh TRACE OUT_DIR [further arguments of `kvbench replay`]
#
# Writes OUT_DIR/balancekv_fig2.{csv,csv.json,png,pdf} and balancekv_fig2_summary.csv.
# KVBENCH names the program (default: build/kvbench), PYTHON the interpreter (default: the first
# python3 that has numpy, pandas and matplotlib).
# Exit code: that of the first step that failed; 1 when all steps ran but some rows failed.
set -euo pipefail

if [[ $# -lt 2 ]]; then
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
kvbench=${KVBENCH:-$root/build/kvbench}
trace=$1
out_dir=$2
shift 2

if ! command -v "$kvbench" >/dev/null; then
  echo "sweep_T.sh: $kvbench: no such program; build it or set KVBENCH" >&2
  exit 2
fi
# Before the long part, not after it.
python=$("$root/scripts/find_python.sh" numpy pandas matplotlib) || exit 2
"$python" "$root/scripts/kvbench-py" plot error --help >/dev/null

mkdir -p "$out_dir"
stem=$out_dir/balancekv_fig2

# 1 means that some rows failed: the others are still worth a picture.
status=0
"$kvbench" replay "$trace" --config "$root/configs/balancekv_fig2.toml" -o "$stem.csv" "$@" ||
  status=$?
if ((status > 1)); then
  exit "$status"
fi

"$python" "$root/scripts/kvbench-py" plot error "$stem.csv" -o "$stem"
"$kvbench" summarize "$stem.csv" --by layer --csv "${stem}_summary.csv"
exit "$status"
