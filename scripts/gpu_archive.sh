#!/usr/bin/env bash
# Packs what scripts/gpu_check.sh needs on a machine with a GPU driver, python3 and nothing else.
#
#   scripts/gpu_archive.sh BUILD_DIR OUT.tar.gz
#
# BUILD_DIR: a build with CUDA, the tests and statically linked libraries (make gpu-archive). Fails if the
# archive exceeds 64 MiB, or if a program needs a library that a driver and the C library do not bring.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

[[ $# == 2 ]] || {
  sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}
build=$1
out=$2
die() {
  echo "gpu_archive.sh: $1" >&2
  exit 1
}

stage=$(mktemp -d)
trap 'rm -rf -- "$stage"' EXIT
top=$stage/kvbench-gpu
mkdir -p "$top"/{build,scripts,bench,python,data,configs,tests}
for program in kvbench kvbench_tests; do
  [[ -x $build/$program ]] || die "$build/$program: no such program"
  needed=$(objdump -p "$build/$program" | awk '$1 == "NEEDED" { print $2 }' |
    grep -vE '^(libc|libm|libdl|librt|libpthread|ld-linux-x86-64|libgomp)\.so' || true)
  [[ -z $needed ]] || die "$build/$program needs ${needed//$'\n'/, }, expected static libraries"
  strip -o "$top/build/$program" "$build/$program"
done
cp scripts/{gpu_check.sh,compare_runs.py} "$top/scripts"
cp bench/{gpu_peers,gpu_report,pages,peer_torch}.py "$top/bench"
cp -r python/kvbench "$top/python"
cp data/sample.h5 "$top/data"
cp configs/{all_methods,stream}.toml "$top/configs"
cp -r tests/data "$top/tests"
find "$top" -name __pycache__ -prune -exec rm -rf {} +
mkdir -p -- "$(dirname -- "$out")"
tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner -czf "$out" kvbench-gpu
size=$(stat -c %s "$out")
((size <= 64 << 20)) || die "$out: $size bytes, expected at most 64 MiB"
echo "$out: $((size >> 20)) MiB"
