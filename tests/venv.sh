# shellcheck shell=bash
# venv.sh - sourced by scripts that try Python packages: how they install them.
# uv keeps what it has unpacked and links it into the next environment; pip does
# without it what takes minutes where torch is among the packages. What nobody
# imports is not compiled: PYTHONPYCACHEPREFIX says where the rest is kept.

# keep_compiled DIR : what programs of an environment import is compiled once
keep_compiled() {
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX=$1
}

# install_into PYTHON ARGUMENT... : packages into the environment of PYTHON
install_into() {
    if command -v uv >/dev/null && uv pip install --quiet --python "$@"; then
        return
    fi
    "$1" -m pip install --quiet --disable-pip-version-check --no-compile "${@:2}"
}
