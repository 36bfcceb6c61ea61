#!/usr/bin/env bash
# Sets up .venv once, then runs the program, its tests or its benchmarks. `bash run.sh --help` says how.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
usage: bash run.sh [overrides]              the demo (experiment=demo), on what this machine has
       bash run.sh experiment=NAME [...]    another experiment of configs/experiment/
       bash run.sh test [pytest arguments]  lint, types, layers and tests; with arguments: pytest alone
       bash run.sh bench [arguments]        the benchmarks
       bash run.sh --help                   this text; `python -m ftppo --help` lists groups and presets

The first call installs what is needed into .venv; the following ones start at once.
FTPPO_VENV=FOLDER uses a virtual environment that you made, as it is.
TEXT
}

die() {
  printf 'run.sh: %s\n' "$*" >&2
  exit 1
}

# A version manager's shim may be on PATH and still fail, so a candidate counts only once it has run.
find_python() {
  local candidate
  for candidate in python3.12 python3.13 python3.14 python3 \
    "${PYENV_ROOT:-${HOME:-/root}/.pyenv}"/versions/3.1[2-9]*/bin/python3; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "no Python 3.12 or newer with the venv module was found.
Install one (Debian, Ubuntu: apt install python3.12 python3.12-venv; macOS: brew install python@3.12; pyenv: pyenv install 3.12)
or point FTPPO_VENV at a virtual environment that has ftppo's dependencies."
}

# The stamp names what was installed. It goes away before pip starts and comes back after it has succeeded, so an
# interrupted set-up is done again.
set_up() {
  local want=$1 venv=$here/.venv digest have='' python
  local stamp=$venv/.ftppo-stamp
  digest=$(cksum <"$here/pyproject.toml")
  if [[ -f $stamp ]]; then have=$(<"$stamp"); fi
  if [[ -x $venv/bin/python && ($have == "$digest $want" || $have == "$digest test") ]]; then return; fi
  if [[ $have == *' test' ]]; then want='test'; fi

  printf 'run.sh: setting up .venv: a few minutes and about 5 GB the first time, most of it PyTorch ...\n' >&2
  rm -f "$stamp"
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    rm -rf "$venv"
    "$python" -m venv "$venv" || die "$python -m venv failed"
  fi
  local target=$here
  if [[ $want == test ]]; then target="${here}[test]"; fi
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-warn-script-location -e "$target" ||
    die "pip could not install the dependencies; its message is above. Run the same command again to retry."
  printf '%s\n' "$digest $want" >"$stamp"
}

# Leaves the folder of the environment's programs in `bin`.
choose_venv() {
  if [[ -n ${FTPPO_VENV:-} ]]; then
    [[ -x $FTPPO_VENV/bin/python ]] || die "FTPPO_VENV=$FTPPO_VENV has no bin/python; name a virtual environment."
    bin=$(cd "$FTPPO_VENV/bin" && pwd)
  else
    set_up "$1"
    bin=$here/.venv/bin
  fi
}

check_source() {
  local check
  for check in 'ruff check' 'ruff format --check' mypy lint-imports; do
    printf '== %s\n' "$check"
    # shellcheck disable=SC2086  # the words of a check are the program and its arguments
    "$bin"/$check
  done
}

export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
case ${1:-} in
  -h | --help | help)
    usage
    ;;
  test)
    shift
    choose_venv test
    cd "$here"
    if (($# == 0)); then
      check_source
      set -- --numprocesses 2 --no-loadscope-reorder
    fi
    exec "$bin/python" -m pytest "$@"
    ;;
  bench)
    shift
    choose_venv test
    cd "$here"
    exec "$bin/python" -m tests.bench "$@"
    ;;
  *)
    choose_venv base
    for argument in "$@"; do
      case $argument in
        experiment=* | +experiment=* | ++experiment=* | '~experiment'*) exec "$bin/python" -m ftppo "$@" ;;
      esac
    done
    exec "$bin/python" -m ftppo experiment=demo "$@"
    ;;
esac
