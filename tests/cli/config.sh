#!/usr/bin/env bash
# Every option can stand in a TOML file, and the command line wins over it.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace t.h5
configuration() { sed -n '/^  "configuration"/,/^  }/p' "$1.json"; }

echo '{"format": "kvbench-policy", "version": 1, "budget": 0.5,
  "layers": [{"layer": 0, "algorithm": "snapkv", "budget": 0.25}]}' > p.json
cat > all.toml << 'TOML'
# every kind of option: strings, numbers, lists, flags
[replay]
output = "file.csv"
algorithm = [            # a list over lines, with comments and a last comma
  "uniform:T=1,2",       # 'T=1,2' is one spec
  'local',
]
policy = ["p.json"]
budget = [0.5, 0.25]
total-budget = [] # no other than these
seeds = 2
layers = [0]
heads = [0, 1]
prompts = ["p0"]
protocol = "prefill"
sink = 4                 # tokens
recent = 1_6
queries = +8
eval-every = 0
scores = "all"
device = "cpu"
precision = "float64"
repeat = 2
threads = 1
memory-limit = "1G"
shard = "1/1"
resume = true
extend = false
overwrite = false
keep-log = true
kept = true
per-query = true
export-caches = "caches.h5"
dry-run = false
TOML
good replay t.h5 --config all.toml
mv caches.h5 file.h5
good replay t.h5 -o line.csv --algorithm uniform:T=1,2 --algorithm local --policy p.json --budget 0.5,0.25 \
  --seeds 2 --layers 0 --heads 0,1 --prompts p0 --protocol prefill "${windows[@]}" --scores all \
  --device cpu --precision float64 --repeat 2 --threads 1 --memory-limit 1G --shard 1/1 \
  --resume --keep-log --kept --per-query --export-caches caches.h5
same file.csv line.csv
[[ -s file.h5 && -s caches.h5 ]] || fail 'no caches'
printf '[evaluate]\ncaches = "caches.h5"\noutput = "again.csv"\nheads = [0]\n' > evaluate.toml
good evaluate t.h5 --config evaluate.toml
[[ $(column again.csv q_head | sort -u) == 0 ]] || fail 'evaluate: heads are not those of the file'
cmp file.kept.csv line.kept.csv || fail "kept tokens differ"
cmp file.queries.csv line.queries.csv || fail "errors of queries differ"
[[ -n $(configuration file.csv) ]] || fail 'no configuration in the manifest'
diff <(configuration file.csv) <(configuration line.csv) || fail 'the configurations differ'

# Budgets of two kinds, one of the file and one of the line.
printf 'total-budget = "1/2"\n' > total.toml
refused 2 '--budget and --total-budget exclude each other' -- \
  replay t.h5 --config total.toml -o total.csv --algorithm local --budget 0.5

# Each option of replay is in the file above: a new one must be added there.
good replay --help
for option in $(grep -oE -e '--[a-z][a-z-]+' <<< "$out" | sort -u); do
  case $option in --help | --help-all | --config) continue ;; esac
  # A line that begins with the option declares it; others only mention it.
  grep -qE "^  (-[a-z], )?$option( |\$)" <<< "$out" || continue
  grep -qE "^${option#--} = " all.toml || fail "$option is in no configuration of this test"
done

# A flag that may have a value.
rm caches.h5
printf 'per-query = "all"\n' > all_queries.toml
few=(--algorithm uniform:T=1 "${windows[@]}" --layers 0 --heads 0)
good replay t.h5 --config all_queries.toml -o every.csv "${few[@]}"
good replay t.h5 -o every_line.csv "${few[@]}" --per-query=all
good replay -o two_words.csv "${few[@]}" --per-query all t.h5
for name in every_line two_words; do
  cmp every.queries.csv $name.queries.csv || fail "errors of each query differ in $name"
done
[[ $(head -1 every.queries.csv) == *,step,offset,rel_error,run_id,row_crc ]] || fail 'no line per query'
good replay --config all_queries.toml -o bins.csv "${few[@]}" --per-query t.h5
[[ $(head -1 bins.queries.csv) == *,first,last,queries,* ]] || fail 'the command line does not win'
printf 'kept = "all"\n' > wrong.toml
refused 2 'kept: got all, expected true or false' -- replay t.h5 --config wrong.toml -o x.csv "${few[@]}"

# The command line wins, also with another number of values.
good replay t.h5 --config all.toml -o wins.csv --sink 9 --algorithm h2o --seeds 1 --budget 1
[[ $(column wins.csv sink | sort -u) == 9 ]] || fail 'sink is not that of the command line'
[[ $(column wins.csv algorithm | sort -u | xargs) == 'h2o policy' ]] || fail 'algorithms of the file were added'
[[ $(column wins.csv scores | sort -u) == all ]] || fail 'scores is not that of the file'

# Strings of lists, as on the command line; keys without a section; no end of line.
printf '%s' 'algorithm = "local"
budget = "0.5,0.25"
sink=4
recent=16
queries = 8
seeds = "0:2"
layers = []
"heads" = 1' > plain.toml
good replay t.h5 --config plain.toml -o plain.csv
[[ $(column plain.csv budget_requested | sort -u | paste -sd' ') == '0.25 0.5' ]] ||
  fail 'budgets from a string'
[[ $(column plain.csv q_head | sort -u) == 1 ]] || fail 'heads from a number'
printf 'sink = 4\r\nrecent = 16\r\nqueries = 8\r\nalgorithm = "exact"\r\n' > dos.toml
good replay t.h5 --config dos.toml -o dos.csv
: > empty.toml
good replay t.h5 --config empty.toml -o empty.csv --algorithm exact
printf 'n = 64\nd = 16\ndtype = "bfloat16"\nseed = 3\n' > synth.toml
good synth -o a.h5 --config synth.toml
good synth -o b.h5 --n 64 --d 16 --dtype bfloat16 --seed 3
cmp a.h5 b.h5 || fail 'synth from a file differs'

bad() { # bad WORDS TEXT: a file that is refused, named with WORDS
  printf '%s\n' "$2" > bad.toml
  refused 2 "$1" -- replay t.h5 -o out.csv --algorithm exact --config bad.toml
  [[ $err == *bad.toml* ]] || fail "the file is not named: $err"
}
bad "'sinks'" 'sinks = 4'
bad "'memory_limit'" 'memory_limit = "1G"'
bad "'traces'" 'traces = ["t.h5"]'
bad "'help'" 'help = true'
bad "[synth]" $'[synth]\nn = 4'
bad 'line 3: `sink = 5`' $'sink = 4\nseeds = 1\nsink = 5'
bad 'line 1: `sink = 010`' 'sink = 010'
bad 'line 1' 'sinks = 4'
bad "'sink' is given twice" $'sink = 4\n[replay]\nsink = 5'
bad sink 'sink = "four"'
bad sink 'sink = [4, 5]'
bad sink 'sink = 1.5'
bad budget 'budget = [0.5, "x"]'
bad threads 'threads = true'
bad resume 'resume = "yes"'
bad resume 'resume = [true]'
bad 'line 2' $'# text\nscores = past'
bad 'line 3' $'\n\nsink 4'
bad 'line 1' 'scores = "past'
bad 'line 1' 'sink = 4 5'
bad 'line 2' $'layers = [0\nheads = 1'
bad 'line 1' 'sink ='
bad 'line 1' '= 4'
bad 'line 1' '[[replay]]'
bad 'line 1' '[replay'
bad 'line 1' 'a.b = 1'
bad 'line 1' 'created = 2024-01-01'
bad 'line 1' 'sink = {x = 1}'
echo 'recent = 3' > bad.toml # a value is judged as one of the command line
refused 2 --recent -- replay t.h5 -o out.csv --algorithm exact --config bad.toml
# More than options: what never ends, what is no text.
bad "'config' is allowed only on the command line" 'config = "x.toml"'
bad "'help-all' is allowed only on the command line" 'help-all = true'
bad 'got a byte 0, expected text' 'algorithm = "ex\u0000act"'
bad "--budget: got '', expected a decimal number" 'budget = ""'
printf 'sink = 4\nscores = "p\0st"\n' > zero.toml
refused 2 'zero.toml: line 2: got a byte 0, expected text' -- \
  replay t.h5 -o out.csv --algorithm exact --config zero.toml
head -c 1048577 /dev/zero | tr '\0' '#' > long.toml
for endless in /dev/zero long.toml; do
  refused 2 "$endless: got more than 1048576 bytes" -- \
    replay t.h5 -o out.csv --algorithm exact --config "$endless"
done
good replay t.h5 -o pipe.csv --config <(printf 'algorithm = "exact"\nsink = 4\n')
mkdir folder.toml
refused 2 folder.toml -- replay t.h5 -o out.csv --algorithm exact --config folder.toml
