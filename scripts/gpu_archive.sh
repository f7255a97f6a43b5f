#!/usr/bin/env bash
# Packs what scripts/gpu_check.sh needs on a machine with a GPU driver, python3 and nothing else.
#
#   scripts/gpu_archive.sh BUILD_DIR OUT.tar.gz
#
# BUILD_DIR: a build with CUDA, the tests and statically linked libraries (make gpu-archive). Data is not packed:
# the script runs in a source tree. Fails if the archive exceeds 25 MiB, if a program needs a library that a
# driver and the C library do not bring, or a C library after 2.36.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

[[ $# == 2 ]] || {
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
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
mkdir -p "$top"/{build,scripts,bench,python/kvbench,configs}
for program in kvbench kvbench_gpu_tests; do
  [[ -x $build/$program ]] || die "$build/$program: no such program"
  needed=$(objdump -p "$build/$program" | awk '$1 == "NEEDED" { print $2 }' |
    grep -vE '^(libc|libm|libdl|librt|libpthread|ld-linux-x86-64|libgomp)\.so' || true)
  [[ -z $needed ]] || die "$build/$program needs ${needed//$'\n'/, }, expected static libraries"
  glibc=$(objdump -T "$build/$program" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
  [[ $(printf '%s\nGLIBC_2.36\n' "$glibc" | sort -V | tail -n 1) == GLIBC_2.36 ]] ||
    die "$build/$program needs $glibc, expected at most GLIBC_2.36"
  strip -o "$top/build/$program" "$build/$program"
done
cp scripts/{gpu_check.sh,compare_runs.py} "$top/scripts"
cp bench/{gpu_peers,gpu_report,pages,peer_torch}.py "$top/bench"
cp python/kvbench/*.py "$top/python/kvbench"
cp configs/{all_methods,stream}.toml "$top/configs"
mkdir -p -- "$(dirname -- "$out")"
tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner -czf "$out" kvbench-gpu
size=$(stat -c %s "$out")
((size <= 25 << 20)) || die "$out: $size bytes, expected at most 25 MiB"
echo "$out: $((size >> 20)) MiB"
