#!/usr/bin/env bash
# Makes a folder for output. Rejects a folder in which files of the user would be replaced.
#
#   scripts/own_folder.sh FOLDER [PATTERN...]
#
# Folders that this script made or found empty get the file .made-by-kvbench and are accepted again.
# Any other folder is rejected (exit code 2) if it holds a file that matches a PATTERN or, without
# patterns, any file. Nothing is removed.
set -euo pipefail
mark=.made-by-kvbench

if [[ $# -lt 1 || $1 == -* ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
folder=$1
shift
if [[ -e $folder && ! -d $folder ]]; then
  echo "$folder: is not a folder" >&2
  exit 2
fi
[[ ! -f $folder/$mark ]] || exit 0
if [[ -d $folder ]]; then
  shopt -s nullglob dotglob
  found=()
  for pattern in "${@:-*}"; do found+=("$folder"/$pattern); done
  for file in "${found[@]}"; do
    [[ -e $file || -L $file ]] || continue
    echo "$folder: ${file##*/} exists, and kvbench did not make this folder; expected a new or" \
      "empty folder" >&2
    exit 2
  done
fi
mkdir -p -- "$folder"
echo 'Made by kvbench, which replaces its own files here.' > "$folder/$mark"
