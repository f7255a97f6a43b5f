#!/usr/bin/env bash
# A bad trace ends every command with 2 and one line; a replay leaves no table, manifest or lock.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace good.h5
good synth -o values.h5 --layers 1 --n 512 --gzip 0

echo 'no trace at all' > text.h5
: > empty.h5
mkdir folder.h5
head -c $(($(stat -c %s values.h5) / 2)) values.h5 > truncated.h5
cp values.h5 changed.h5
printf '\xff%.0s' {1..64} |
  dd of=changed.h5 bs=1 seek=$(($(stat -c %s values.h5) / 2)) conv=notrunc status=none
good info --no-values changed.h5 # the structure is whole: values are other ones

for trace in text empty folder truncated changed nowhere; do
  refused 2 "$trace.h5" -- info "$trace.h5"
  # Last among good ones, so that rows could have been written before it.
  refused 2 "$trace.h5" -- replay good.h5 "$trace.h5" -o out.csv --algorithm exact "${windows[@]}"
  refused 2 "$trace.h5" -- replay "$trace.h5" -o out.csv --algorithm exact --resume
done
refused 2 'chunk at [' -- info changed.h5 # where it is
refused 2 checksum -- info changed.h5
for trace in text empty folder truncated nowhere; do
  refused 2 "$trace.h5" -- replay "$trace.h5" --dry-run --algorithm exact
done
good replay good.h5 values.h5 -o out.csv --algorithm exact "${windows[@]}"

# Names in a trace do not command the terminal, nor break a line.
LC_ALL=C sed 's/p0\x00/\x1b\n\x00/g' good.h5 > escape.h5 # the prompt's
controls() { LC_ALL=C grep -c $'[\x01-\x09\x0b-\x1f\x7f]' || true; }
good info escape.h5
[[ $out == *'  prompt ??: 96 tokens'* && $(controls <<< "$out") == 0 ]] || fail "info says: $out"
good replay escape.h5 --dry-run --algorithm exact "${windows[@]}"
[[ $out == *'(prompt ?? layer 0)'* && $(controls <<< "$out") == 0 ]] || fail "the plan: $out"
refused 2 'expected some of ? ' -- replay escape.h5 --dry-run --algorithm exact --prompts p0 "${windows[@]}"
LC_ALL=C sed 's/p0\x00/\xc2\x9b\x00/g' good.h5 > c1.h5 # one character that some terminals obey as ESC [
good info c1.h5
[[ $out == *'  prompt ?: 96 tokens'* ]] || fail "info says: $out"
refused 2 "no algorithm matches '?[31mred'" -- replay good.h5 --dry-run --algorithm $'\e[31mred'
