#!/usr/bin/env bash
# What `make package` made: the tar.gz runs where there is nothing else, the .deb is clean and its
# program computes the same rows.
#
# usage: tests/package/run.sh FOLDER      (PYTHON: the interpreter of scripts/compare_runs.py)
# Exit code 0: all that could be run here is well; what could not is said aloud.
set -euo pipefail
folder=$(realpath -- "${1:?usage: tests/package/run.sh FOLDER}")
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
bare=$scratch/bare

fail() {
  echo "package: FAILED: $*" >&2
  exit 1
}
one() {  # one PATTERN: the only file of that name
  local found=("$folder"/$1)
  [[ ${#found[@]} == 1 && -f ${found[0]} ]] || fail "$1: got ${found[*]##*/}, expected one file"
  echo "${found[0]}"
}
tar=$(one '*.tar.gz')
deb=$(one '*.deb')
replay=(replay --algorithm 'balancekv,snapkv,kmeans,kvreviver,attention-matching' --budget 0.25
  --layers 10 --threads 2)

# The tar.gz: no shared library, the licences of what is linked in.
mkdir -p "$bare"
tar -xzf "$tar" -C "$bare" --strip-components=1
program=$bare/bin/kvbench
[[ -x $program ]] || fail "$tar: no bin/kvbench"
! readelf -d "$program" | grep -q NEEDED || fail "$tar: its program needs shared libraries"
! readelf -l "$program" | grep -q INTERP || fail "$tar: its program needs a loader"
for name in LICENSE licences/libhdf5-dev licences/libc6-dev licences/libssl-dev; do
  [[ -s $bare/share/doc/kvbench/$name ]] || fail "$tar: no $name"
done

# In a folder that holds the package and a trace alone: no library, no /proc, no /dev, no /tmp.
cp -- "$root/data/sample.h5" "$bare/"
inside=()
if [[ $(id -u) == 0 ]]; then
  inside=(chroot "$bare")
elif unshare -r true 2> /dev/null; then
  inside=(unshare -r chroot "$bare")
fi
if ((${#inside[@]})); then
  version=$("${inside[@]}" /bin/kvbench --version)
  "${inside[@]}" /bin/kvbench list > "$scratch/list"
  "${inside[@]}" /bin/kvbench "${replay[@]}" /sample.h5 -o /static.csv
else
  echo 'package: SKIPPED: no chroot for this user; the tar.gz ran outside of one'
  version=$("$program" --version)
  "$program" list > "$scratch/list"
  "$program" "${replay[@]}" "$bare/sample.h5" -o "$bare/static.csv"
fi
grep -q '^balancekv ' "$scratch/list" || fail "$tar: list: $(head -n 3 "$scratch/list")"

# The .deb: the same program, with shared libraries.
dpkg-deb -x "$deb" "$scratch/deb"
program=$scratch/deb/usr/bin/kvbench
[[ $("$program" --version) == "$version" ]] || fail "$deb: version, expected $version"
[[ $version == "kvbench $(dpkg-deb -f "$deb" Version | cut -d- -f1) "* ]] || fail "$deb: $version"
"$program" list | cmp - "$scratch/list" || fail 'list differs'
"$program" "${replay[@]}" "$root/data/sample.h5" -o "$bare/deb.csv"
"${PYTHON:-python3}" "$root/scripts/compare_runs.py" "$bare/deb.csv" "$bare/static.csv" --relative 0 ||
  fail 'rows differ'
dpkg-deb -f "$deb" Depends | grep -q 'libhdf5' || fail "$deb: depends on no libhdf5"

if command -v lintian > /dev/null; then
  lintian --allow-root --fail-on error,warning "$deb" || fail 'lintian'
else
  echo 'package: SKIPPED: no lintian'
fi
echo "package: ${tar##*/} and ${deb##*/} are well"
