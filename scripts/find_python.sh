#!/usr/bin/env bash
# Prints the path of the first Python that has the modules asked for: $PYTHON where that is set,
# else every python3 on the PATH in its order, then /usr/bin/python3. The first on the PATH may be
# one of pyenv or conda, which does not see what Debian's packages install.
#
#   scripts/find_python.sh [MODULE...] [--prefer MODULE...]
#
# One that has the preferred modules as well goes before all that lack some.
# Exit code: 0; 1 and one line on stderr when no interpreter has the modules.
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

# has PYTHON MODULE...: can it import them?
has() {
  local python=$1 list
  shift
  list=$(printf ', %s' sys "$@")
  "$python" -c "import ${list#, }" < /dev/null > /dev/null 2>&1
}

# Not realpath: a virtual environment is known by the link that starts it.
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
  echo "find_python.sh: $PYTHON (from PYTHON) is no Python with ${needed[*]:-any modules}" >&2
else
  echo "find_python.sh: no python3 with ${needed[*]:-any modules}; scripts/bootstrap.sh installs" \
    "them on Debian, PYTHON names another interpreter" >&2
fi
exit 1
