#!/usr/bin/env bash
# The Python package against a daemon of the same build.
#   tests/python/run.sh BUILD_DIR [PYTEST_ARGUMENTS...]
# installs the package of BUILD_DIR into BUILD_DIR/python-tests, makes a virtual
# environment there (once per requirements.txt), and runs pytest.
#   ROPED_PYTHON=PYTHON       this interpreter has the packages: no environment
#   ROPED_INTEROP_TORCH=1     installs torch and transformers too: gigabytes
#   ROPED_TEST_RAY=1          with Ray, in an environment of its own; that it
#                             cannot be installed is a failure
# Exit 77: skipped, with a line that says why.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build_dir=$(cd "$1" && pwd)
shift
. "$here/../venv.sh"
work=$build_dir/python-tests
mkdir -p "$work"

skip() {
    echo "skipped: $*"
    [ -z "${ROPED_TEST_RAY:-}" ] || exit 1
    exit 77
}

prepare() {
    local venv wanted packages=(-r "$here/requirements.txt")
    venv=$work/venv${ROPED_TEST_RAY:+-ray}
    python=${ROPED_PYTHON:-$venv/bin/python}
    if [ -n "${ROPED_PYTHON:-}" ]; then
        return
    fi
    [ -z "${ROPED_TEST_RAY:-}" ] || packages+=(-r "$here/requirements-ray.txt")
    wanted=$(cat "$here"/requirements*.txt; echo "torch: ${ROPED_INTEROP_TORCH:-}")
    if [ "$(cat "$venv/installed" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if [ -n "${ROPED_INTEROP_TORCH:-}" ]; then
        packages+=(-r "$here/../interop/requirements-torch.txt")
    fi
    rm -rf "$venv" "$work/compiled"
    echo "installing ${packages[*]} into $venv"
    python3 -m venv "$venv" >"$work/pip.log" 2>&1 ||
        skip "python3 -m venv does not work here (Debian: apt-get install python3-venv)"
    install_into "$python" "${packages[@]}" >>"$work/pip.log" 2>&1 ||
        skip "pip could not install the packages: $(tail -n 1 "$work/pip.log")"
    printf '%s' "$wanted" >"$venv/installed"
}

prepare
keep_compiled "$work/compiled"
rm -rf "$work/package"
cmake --install "$build_dir" --component python --prefix "$work/package" >/dev/null
export PYTHONPATH=$work/package:/tmp/house_plug ROPED_TEST_BIN=$build_dir/bin/roped
export ROPED_TEST_HOSTILE=$build_dir/tests/test_attack_clients
cd "$here"
exec "$python" -m pytest -q -rs -p no:cacheprovider "$@"
