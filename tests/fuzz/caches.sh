#!/usr/bin/env bash
# Runs the target of caches files on damage of one that a replay made: caches.sh PROGRAM COUNT
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$KVBENCH" synth -o "$folder/t.h5" --layers 1 --q-heads 1 --kv-heads 1 --n 64 --d 16 --dv 4 > /dev/null
# Kept tokens, merged ones, and a denominator with keys of its own.
"$KVBENCH" replay "$folder/t.h5" --algorithm h2o --algorithm kmeans --algorithm clustergen --budget 0.5 \
  --sink 2 --recent 8 --queries 4 -o "$folder/t.csv" --export-caches "$folder/c.h5"
"$1" "$2" "$folder/c.h5"
