#!/usr/bin/env bash
# Installs the finished build into a fresh prefix, then builds and runs two projects that only know
# find_package(kvbench): the consumer beside this script, and the one of docs/extending.md, whose
# numbers must be those of `kvbench replay`.
source "$(dirname -- "${BASH_SOURCE[0]}")/../cli/lib.bash"
: "${BUILD_DIR:?}" "${CONFIG:?}" "${CXX:?}" "${PYTHON:?}"
trace=$SRC/data/sample.h5

build() {  # build FOLDER
  cmake -S "$1" -B "$1/build" "-DCMAKE_PREFIX_PATH=$PWD/prefix" "-DCMAKE_CXX_COMPILER=$CXX" \
    "-DCMAKE_CXX_FLAGS=-Wall -Wextra" \
    "-DCMAKE_BUILD_TYPE=$CONFIG" "${@:2}" > configure.log 2>&1 ||
    fail "$1 cannot be configured: $(tail -n 20 configure.log)"
  cmake --build "$1/build" > build.log 2>&1 || fail "$1 cannot be built: $(tail -n 20 build.log)"
}

cmake --install "$BUILD_DIR" --prefix "$PWD/prefix" --config "$CONFIG" > install.log ||
  fail 'cannot be installed'
for script in share/bash-completion/completions/kvbench share/zsh/site-functions/_kvbench; do
  [[ -s prefix/$script ]] || fail "not installed: $script"
done
# Manual pages: every option of a command is in its page, and groff has nothing to say against it.
if command -v help2man > /dev/null; then
  good --help
  for command in '' $(sed -n '/^Subcommands:/,/^$/ s/^  \([a-z][a-z]*\) .*/\1/p' <<< "$out"); do
    name=kvbench${command:+-$command}
    page=prefix/share/man/man1/$name.1
    grep -qF "$name \\-" "$page" || fail "$name.1 does not name $name"
    good $command --help
    for option in $(grep -oE '^  (-[a-z], )?--[a-z-]+' <<< "$out" | grep -oE -e '--[a-z-]+'); do
      grep -qF -e "${option//-/\\-}" "$page" || fail "$name.1 lacks $option"
    done
    if command -v groff > /dev/null; then
      said=$(groff -man -ww -Tutf8 "$page" 2>&1 > /dev/null) || fail "groff: $said"
      [[ -z $said ]] || fail "groff of $name.1: $said"
    fi
  done
fi
headers=$(find prefix/include/kvbench -name '*.hpp' | wc -l)
((headers >= 40)) || fail "$headers headers, expected at least 40"

cp -r "$SRC/tests/install" consumer
build consumer
consumer/build/consumer || fail 'the consumer fails'

# Blocks of the page, each after a comment that names its file, and the program that it links to.
mkdir library
awk '/^<!-- file: .* -->$/ { name = $3 }
  /^```/ { inside = !inside && name != ""; if (!inside) name = ""; next }
  inside { print > "library/" name }' "$SRC/docs/extending.md"
cp "$SRC/tests/install/library/own_method.cpp" library
sed 's/one_job/own_method/g' library/CMakeLists.txt | grep own_method > own.cmake
cat own.cmake >> library/CMakeLists.txt
[[ $(ls library) == $'CMakeLists.txt\none_job.cpp\nown_method.cpp' ]] ||
  fail "files of the page: $(ls library)"
build library

# same PROGRAM ALGORITHM: what the program prints is that method's rel_error, to the last bit.
same() {
  "library/build/$1" "$trace" > "$1.txt" || fail "$1 fails"
  good replay "$trace" -o "$1.csv" --algorithm "$2" --budget 0.25 \
    --layers "$(cut -d' ' -f1 "$1.txt" | head -n 1)"
  "$PYTHON" - "$1.txt" "$1.csv" << 'EOF' || fail "$1: not what kvbench replay computes"
import csv
import sys

with open(sys.argv[1]) as file:
    printed = [line.split() for line in file]
with open(sys.argv[2], newline="") as file:
    rows = {row["q_head"]: row for row in csv.DictReader(file)}
assert printed, "nothing printed"
for layer, q_head, error in printed:
    row = rows[q_head]
    assert (row["layer"], float(row["rel_error"])) == (layer, float(error)), (row, error)
EOF
}
same one_job snapkv
same own_method local
! library/build/one_job nothing.h5 2> refusal || fail 'no refusal of a file that is not there'
grep -q 'nothing.h5' refusal || fail "the refusal is: $(cat refusal)"
