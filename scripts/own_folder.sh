#!/usr/bin/env bash
# Makes a folder for output, and refuses one in which somebody else's files would be replaced.
#
#   scripts/own_folder.sh FOLDER [PATTERN...]
#
# A folder that this script made, or found empty, has the file .made-by-kvbench from then on and is
# taken again. Any other folder is refused (exit code 2) where it holds a file that a PATTERN names;
# without patterns, where it holds anything. Nothing is ever removed.
set -euo pipefail
mark=.made-by-kvbench

if [[ $# -lt 1 || $1 == -* ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
folder=$1
shift
if [[ -e $folder && ! -d $folder ]]; then
  echo "$folder: is no folder" >&2
  exit 2
fi
[[ ! -f $folder/$mark ]] || exit 0
if [[ -d $folder ]]; then
  shopt -s nullglob dotglob
  found=()
  for pattern in "${@:-*}"; do found+=("$folder"/$pattern); done
  for file in "${found[@]}"; do
    [[ -e $file || -L $file ]] || continue
    echo "$folder: ${file##*/} is there, and kvbench did not make this folder: expected a new or" \
      "empty one" >&2
    exit 2
  done
fi
mkdir -p -- "$folder"
echo 'Made by kvbench, which replaces its own files here.' > "$folder/$mark"
