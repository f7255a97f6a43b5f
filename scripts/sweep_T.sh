#!/usr/bin/env bash
# BalanceKV's figure 2 from one trace: replay over T, figure, table.
#
#   scripts/sweep_T.sh TRACE OUT_DIR [further arguments of `kvbench replay`]
#
# Writes OUT_DIR/balancekv_fig2.{csv,csv.json,png,pdf} and balancekv_fig2_summary.csv.
# KVBENCH: program (default: build/kvbench). PYTHON: interpreter (default: scripts/find_python.sh).
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
  echo "sweep_T.sh: $kvbench: no such program; build it or set KVBENCH" >&2
  exit 2
fi
# Check the plotting program before the replay.
python=$("$root/scripts/find_python.sh") || exit 2
"$python" "$root/scripts/kvbench-py" plot error --help >/dev/null

mkdir -p "$out_dir"
stem=$out_dir/balancekv_fig2

# Exit code 1: some rows failed, plot the others.
status=0
"$kvbench" replay "$trace" --config "$root/configs/balancekv_fig2.toml" -o "$stem.csv" "$@" ||
  status=$?
if ((status > 1)); then
  exit "$status"
fi

"$python" "$root/scripts/kvbench-py" plot error "$stem.csv" -o "$stem"
"$kvbench" summarize "$stem.csv" --by layer --csv "${stem}_summary.csv"
exit "$status"
