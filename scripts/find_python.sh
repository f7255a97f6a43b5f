#!/usr/bin/env bash
# Prints the path of the first Python with the given modules: $PYTHON if set, otherwise the python3s on
# the PATH and /usr/bin/python3. The first on the PATH may be one of pyenv or conda, which does not see
# Debian's packages.
#
#   scripts/find_python.sh [MODULE...] [--prefer MODULE...]
#
# An interpreter that also has the preferred modules takes precedence.
# Exit code: 0; 1 and one line on stderr if no interpreter has the modules.
set -euo pipefail

needed=()
preferred=()
prefer=no
for word; do
  if [[ $word == --prefer ]]; then
    prefer=yes
  elif [[ $prefer == yes ]]; then
    preferred+=("$word")
  else
    needed+=("$word")
  fi
done

candidates=()
if [[ -n ${PYTHON:-} ]]; then
  candidates=("$PYTHON")
else
  mapfile -t candidates < <(type -ap python3 || true)
  candidates+=(/usr/bin/python3)
fi

# has PYTHON MODULE...: whether it can import them.
has() {
  local python=$1 list
  shift
  list=$(printf ', %s' sys "$@")
  "$python" -c "import ${list#, }" < /dev/null > /dev/null 2>&1
}

# Not realpath: the link identifies a virtual environment.
found() {
  local path
  path=$(command -v -- "$1")
  [[ $path == /* ]] || path=$PWD/$path
  echo "$path"
  exit 0
}

first=
for candidate in "${candidates[@]}"; do
  has "$candidate" "${needed[@]}" || continue
  if ((${#preferred[@]} == 0)) || has "$candidate" "${preferred[@]}"; then found "$candidate"; fi
  first=${first:-$candidate}
done
if [[ -n $first ]]; then found "$first"; fi

if [[ -n ${PYTHON:-} ]]; then
  echo "find_python.sh: $PYTHON (from PYTHON) is not a Python with ${needed[*]:-any modules}" >&2
else
  echo "find_python.sh: found no python3 with ${needed[*]:-any modules}; run scripts/bootstrap.sh" \
    "(Debian) or set PYTHON" >&2
fi
exit 1
