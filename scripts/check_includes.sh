#!/usr/bin/env bash
# Checks that includes go one way:
#   apps -> lib/replay -> lib/{trace,algorithms,metrics,cluster,report,gpu} -> lib/attention
#        -> lib/streams -> lib/core
# A module may include itself and any module to its right, but none to its left and no other module of
# its group.
# tests/reference/ holds independent references, which may include only "core/types.hpp" and each other.
#
# usage: scripts/check_includes.sh [ROOT]     (default: the repository that holds this script)
# Prints file:line of each bad include. Exit code: 0, clean; 1, bad includes; 2, no such tree.
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
  if (part[1] == "lib") module = (n > 2) ? part[2] : ""
  else if (part[1] == "apps") module = "apps"
  else module = "reference"
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
    complain("relative path; write \"module/file.hpp\"")
  } else if (module == "reference") {
    if (ours ? path != "core/types.hpp" : (quoted && slash && target != "reference"))
      complain("tests/reference may include only \"core/types.hpp\" and its own headers")
  } else if (module == "apps") {
    # May include every module.
  } else if (!(module in rank)) {
    complain("lib/" module " is an unknown module; add it to scripts/check_includes.sh")
  } else if (ours) {
    if (target != module && rank[target] <= rank[module])
      complain((rank[target] == rank[module] ? "sideways" : "backwards") ": lib/" module \
               " must not include " (target == "apps" ? "apps" : "lib/" target))
  } else if (quoted) {
    complain("lib/" module ": a quoted include must name a module (\"module/file.hpp\")")
  }
}

END {
  if (bad) {
    printf "check_includes: %d bad include(s)\n", bad
    exit 1
  }
  printf "check_includes: %d files, no bad include\n", files
}'
