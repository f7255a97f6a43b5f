#!/usr/bin/env bash
# What the program says of itself: help by name, what a wrong word may have meant, completion.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace t.h5

good --help
top=$out
commands=$(sed -n '/^Subcommands:/,/^$/ s/^  \([a-z][a-z]*\) .*/\1/p' <<< "$top")
[[ $(wc -w <<< "$commands") -ge 11 ]] || fail "the subcommands: $commands"
good help
[[ $out == "$top" ]] || fail "help is not --help: $out"
for command in $commands; do
  good "$command" --help
  text=$out
  [[ $text == *"Usage: kvbench $command"* ]] || fail "usage of $command: $out"
  good help "$command"
  [[ $out == "$text" ]] || fail "help $command is not $command --help: $out"
done
for command in replay evaluate cluster merge synth; do
  good "$command" --help
  [[ $out == *'-o, --output '* ]] || fail "$command: $out"
done
refused 2 'did you mean replay?' -- help repaly
refused 2 'expected one of info, ' -- help nosuch

# A wrong word.
meant() { # meant WORD ARGS...: refused in one line that asks whether WORD was meant
  refused 2 "(did you mean $1?)" -- "${@:2}"
}
run_it=(replay t.h5 -o out.csv)
meant replay rpelay t.h5
meant --algorithm "${run_it[@]}" --algoritm h2o
meant --budget "${run_it[@]}" --algorithm h2o --bugdet=0.5
meant --output synth --ouput o.h5
meant --layers cluster t.h5 -o c --layer 0
meant snapkv "${run_it[@]}" --algorithm snpakv
meant window "${run_it[@]}" --algorithm snapkv:windw=4
meant greedy "${run_it[@]}" --algorithm balancekv:step=greddy
meant @eviction "${run_it[@]}" --algorithm @evictions
meant stream "${run_it[@]}" --algorithm h2o --protocol steam
meant float64 "${run_it[@]}" --algorithm h2o --precision floaf64
meant knorm list knrom
printf '\nbudgets = 0.5\n' > config.toml
meant budget "${run_it[@]}" --config config.toml
good replay t.h5 -o good.csv --algorithm exact "${windows[@]}"
refused 2 "no algorithm 'nosuch', expected" -- list nosuch # nothing is near

# Completion, as bash calls it.
good completion bash
cp "$scratch/out" completion.bash
completed() { # completed WORDS...: what the last word may become
  bash -c '
    source completion.bash
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    _kvbench
    printf "%s\n" "${COMPREPLY[@]}"' bash "$@"
}
expect() { # expect WORDS_EXPECTED WORDS...
  [[ $(completed "${@:2}" | sort | xargs) == "$1" ]] ||
    fail "completion of ${*:2}: $(completed "${@:2}" | xargs), not $1"
}
expect "$(sort <<< "$commands" | xargs)" kvbench ''
expect 'replay' kvbench re
expect '--resume' kvbench replay t.h5 --res
expect 'prefill retrieval stream' kvbench replay t.h5 --protocol ''
expect 'auto' kvbench replay --device a
expect 'snapkv' kvbench replay t.h5 --algorithm snap
expect 'h2o,knorm,snapkv' kvbench replay t.h5 --algorithm h2o,knorm,sn
expect 'keys,values' kvbench cluster t.h5 --what keys,v
expect 'pyramidkv' kvbench list pyr
expect 'amnesia_count amnesia_mass' kvbench summarize out.csv --metric amnesia_
expect 'replay' kvbench help rep
expect '' kvbench replay t. # a file: bash completes it
good replay --help
for option in $(grep -oE '^  (-[a-z], )?--[a-z-]+' <<< "$out" | grep -oE -e '--[a-z-]+'); do
  completed kvbench replay "$option" | grep -xF -e "$option" > "$scratch/found" || fail "$option is not completed"
done
expect 'all' kvbench replay --algorithm al
expect 'csv markdown text' kvbench summarize out.csv --format ''
# bash takes @ and = for words of their own, and puts its answer in place of what is behind them.
line() { # line TEXT WORDS...: as bash calls the function where TEXT is typed
  COMP_LINE=$1 COMP_POINT=${#1} completed "${@:2}"
}
[[ $(line 'kvbench replay --algorithm @me' kvbench replay --algorithm @ me) == merging ]] ||
  fail "@me: $(line 'kvbench replay --algorithm @me' kvbench replay --algorithm @ me)"
[[ $(line 'kvbench list h2o,@me' kvbench list h2o, @ me) == merging ]] || fail 'h2o,@me'
[[ $(line 'kvbench replay --algorithm=snap' kvbench replay --algorithm = snap) == snapkv ]] ||
  fail '--algorithm=snap'
[[ $(line 'kvbench replay --protocol=' kvbench replay --protocol = | xargs) == 'prefill stream retrieval' ]] ||
  fail '--protocol='
# bash knows the function by the name of the program.
[[ $(bash -c 'source completion.bash; complete -p kvbench') == *'-F _kvbench kvbench' ]] ||
  fail 'nothing is registered'
good completion zsh
[[ $out == '#compdef kvbench'* ]] || fail "zsh: $out"
if command -v zsh > /dev/null; then
  zsh -n "$scratch/out" || fail 'zsh does not parse its completion'
fi
refused 2 'expected bash or zsh' -- completion fish
