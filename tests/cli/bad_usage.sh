#!/usr/bin/env bash
# Every bad usage ends with 2 and one line that names the trouble; nothing is written.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace t.h5

refused 2 nosuch -- nosuch
refused 2 "got '--nosuch' in place of a subcommand, expected one of info" -- --nosuch
for command in 'info t.h5' list 'synth -o o.h5' 'replay t.h5' 'summarize t.h5' 'merge a -o o'; do
  # shellcheck disable=SC2086
  refused 2 --nosuch -- $command --nosuch
done
refused 2 "no trace" -- info
refused 2 "no output" -- synth
refused 2 "no table" -- summarize
refused 2 "no input" -- merge -o out.csv
refused 2 'no trace' -- replay -o out.csv --algorithm exact
refused 2 nosuch -- list nosuch

bad() { # bad WORDS OPTIONS...: a replay of a good trace with OPTIONS
  refused 2 "$1" -- replay t.h5 "${windows[@]}" -o out.csv "${@:2}"
}
bad --algorithm
bad nosuch --algorithm nosuch
bad nosuch --algorithm exact --algorithm nosuch
bad "'X'" --algorithm uniform:X=1
bad "'63'" --algorithm uniform:T=63
bad "'T'" --algorithm uniform:T
bad "duplicate parameter T" --algorithm 'uniform:T=1;T=2'
bad '4:1' --algorithm uniform:T=4:1
bad 'more than one size' --algorithm 'uniform:T=1;tokens=2'
bad combinations --algorithm 'uniform:tokens=1:100000;T=1:60'
bad --budget --algorithm uniform
bad --budget --algorithm uniform --budget
for value in 1.5 -0.5 nan half 0.5,x; do bad --budget --algorithm uniform --budget $value; done
bad '--total-budget: got 1.5' --algorithm uniform --total-budget 1.5
values() { # values OPTION VALUES...: each alone is bad
  for value in "${@:2}"; do bad "$1" --algorithm exact "$1" "$value"; done
}
values --seeds x 0 5:2
values --layers 7 zero
values --heads 2
values --prompts p1
values --protocol decode
values --scores some
values --precision half
values --device tpu
values --threads -1 1000000 many
values --memory-limit 0 0.5 8Q 1K
values --shard 0/2 3/2 1 1/2/3 1/99999999999999999999
bad --resume --algorithm exact --resume --overwrite
bad --seeds --algorithm exact --seeds 1 --seeds 2
bad nosuch.toml --algorithm exact --config nosuch.toml
bad 'a b' --algorithm $'a\nb'

refused 2 --sink -- replay t.h5 -o out.csv --algorithm exact --sink -1
refused 2 --sink -- replay t.h5 -o out.csv --algorithm exact --sink 1e3
# Integers are decimal, and those that do not fit are refused.
for value in 010 0x10 00 +4 99999999999999999999 -99999999999999999999 4.0 ' 4'; do
  for option in --sink --recent --queries --threads --layers --heads; do
    refused 2 "$option" -- replay t.h5 -o out.csv --algorithm exact "$option" "$value"
  done
done
refused 2 --threads -- replay t.h5 -o out.csv --algorithm exact --threads 4294967297
refused 2 --n -- synth -o o.h5 --n 010
refused 2 --k -- cluster t.h5 -o dir --k 010
printf 'sink = 010\n' > octal.toml
refused 2 sink -- replay t.h5 -o out.csv --algorithm exact --config octal.toml
# What a row would refuse is refused before the first row.
bad kernel --algorithm snapkv:kernel=8 --budget 0.5
bad kernel --algorithm 'h2o+snapkv:snapkv.kernel=8' --budget 0.5
bad 't: got 7' --protocol stream --algorithm balancekv-stream:t=7 --budget 0.5
bad ratio --algorithm 'kvreviver:recent_ratio=0.9;candidate_ratio=0.9' --budget 0.5
bad fisher --algorithm kvreviver:layer_budget=fisher --budget 0.5
bad /rope --algorithm expected-attention:rope=tables --budget 0.5
bad /rope --algorithm leverage --budget 0.5
bad /rope --algorithm all,compactor --budget 0.5
bad o_proj --algorithm criticalkv --budget 0.5
bad 'count-merge' --algorithm d2o-merge --budget 0.5
bad OUT.steps.csv --protocol stream --algorithm exact --per-query
bad "--per-query: got 'every', expected none, bins or all" --algorithm exact --per-query=every
bad "''" --algorithm exact,,uniform --budget 0.5
refused 2 --recent -- replay t.h5 -o out.csv --algorithm exact --recent 8 --queries 9
refused 2 --queries -- replay t.h5 -o out.csv --algorithm exact --queries 0
refused 2 -o -- replay t.h5 --algorithm exact
refused 2 'duplicate trace name' -- replay t.h5 t.h5 -o out.csv --algorithm exact

# Commas before the first colon separate algorithms.
good replay "${windows[@]}" -o list.csv --budget 0.5 --algorithm exact,local,uniform:T=1,2 t.h5
[[ $(cut -d, -f7 list.csv | sort -u | xargs) == 'algorithm exact local uniform' ]] ||
  fail "a,b,c: $(cut -d, -f7 list.csv | sort -u | xargs)"

# One value per mention: what follows a repeatable option is a trace again.
good replay "${windows[@]}" -o one.csv --algorithm exact t.h5
good replay "${windows[@]}" -o two.csv --algorithm uniform --budget 0.5 --layers 0 t.h5
