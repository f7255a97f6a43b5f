#!/usr/bin/env bash
# Includes go one way:
#   apps -> lib/replay -> lib/{trace,algorithms,metrics,cluster,report,gpu} -> lib/attention
#        -> lib/streams -> lib/core
# A module may include itself and any module to its right; never back, never among the six.
# tests/reference/ holds independent references: of ours it may include "core/types.hpp" and its own.
#
# usage: scripts/check_includes.sh [ROOT]     (default: the repository that holds this script)
# Prints file:line for each offender. Exit code 0: clean, 1: offenders, 2: no such tree.
set -euo pipefail

root=${1:-$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)}
if [[ ! -d $root/lib ]]; then
  echo "check_includes: $root has no lib/" >&2
  exit 2
fi
cd -- "$root"

dirs=(lib)
for dir in apps tests/reference; do
  if [[ -d $dir ]]; then dirs+=("$dir"); fi
done

find "${dirs[@]}" -type f \
  \( -name '*.hpp' -o -name '*.h' -o -name '*.cpp' -o -name '*.cc' -o -name '*.cu' \
  -o -name '*.cuh' -o -name '*.inc' -o -name '*.in' \) -print0 | sort -z | xargs -0 -r awk '
BEGIN {
  rank["apps"] = 0
  rank["replay"] = 1
  rank["trace"] = rank["algorithms"] = rank["metrics"] = rank["cluster"] = rank["report"] = 2
  rank["gpu"] = 2
  rank["attention"] = 3
  rank["streams"] = 4
  rank["core"] = 5
}

function complain(why) {
  printf "%s:%d: %s: #include %s\n", FILENAME, FNR, why, header
  bad++
}

FNR == 1 {
  files++
  n = split(FILENAME, part, "/")
  if (part[1] == "lib") room = (n > 2) ? part[2] : ""
  else if (part[1] == "apps") room = "apps"
  else room = "reference"
}

/^[ \t]*#[ \t]*include[ \t]*["<]/ {
  header = $0
  sub(/^[ \t]*#[ \t]*include[ \t]*/, "", header)
  quoted = substr(header, 1, 1) == "\""
  path = substr(header, 2)
  sub(/[">].*$/, "", path)
  header = (quoted ? "\"" path "\"" : "<" path ">")
  target = path
  slash = sub(/\/.*$/, "", target)       # first folder of the path
  ours = slash && (target in rank)

  if (path ~ /(^|\/)\.\.?\//) {
    complain("relative path; write \"room/file.hpp\"")
  } else if (room == "reference") {
    if (ours ? path != "core/types.hpp" : (quoted && slash && target != "reference"))
      complain("tests/reference may include only \"core/types.hpp\" and its own headers")
  } else if (room == "apps") {
    # May include every room.
  } else if (!(room in rank)) {
    complain("lib/" room " is not a known room; give it a place in scripts/check_includes.sh")
  } else if (ours) {
    if (target != room && rank[target] <= rank[room])
      complain((rank[target] == rank[room] ? "sideways" : "backwards") ": lib/" room \
               " must not include " (target == "apps" ? "apps" : "lib/" target))
  } else if (quoted) {
    complain("lib/" room ": a quoted include must name a room (\"room/file.hpp\")")
  }
}

END {
  if (bad) {
    printf "check_includes: %d offending include(s)\n", bad
    exit 1
  }
  printf "check_includes: %d files, all includes go one way\n", files
}'
