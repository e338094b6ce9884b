#!/usr/bin/env bash
# The Python package from its files, on a bare Debian 12 and 13 that know nothing
# of this tree: the sdist becomes a wheel on Debian 12, both are installed on
# each, and each makes a call in process and one of a daemon outside.
#   python.sh SOURCE_DIR BUILD_DIR [FILE...]   these sdists and wheels, made before
# Exit 77: skipped, with a line that says why.
set -eu
source=$1 build=$2 work=$2/python-debian here=$(cd "$(dirname "$0")" && pwd)
shift 2
# shellcheck source=tests/deploy/bare.sh
. "$here/bare.sh"
"$here/debian.sh" "$build/debian" || exit
"$here/debian.sh" "$build/debian13" trixie || exit
mkdir -p "$work"
rm -rf "$work"/{dist,venv,port}
mkdir "$work/dist"
cache=${CCACHE_DIR:-$(ccache -k cache_dir 2>/dev/null || true)}
server=
# shellcheck disable=SC2317 # a trap calls it
clean() {
    remove_root
    [ -z "$server" ] || kill "$server"
}
trap clean EXIT

# ------------------------------------------------------- the sdist, and a daemon
if [ $# -gt 0 ]; then
    cp "$@" "$work/dist"
else
    python3 -m venv "$work/venv" >"$work/said" 2>&1 || skip "python3 -m venv does not work here"
    "$work/venv/bin/pip" install --quiet build >"$work/said" 2>&1 ||
        skip "pip could not install build: $(tail -n 1 "$work/said")"
    check "the sdist is made" "$work/venv/bin/python" -m build --sdist -o "$work/dist" "$source/client/python"
fi
"$build/bin/roped" --backend cpu --listen 127.0.0.1:0 --port_file "$work/port" 2>"$work/log" &
server=$!
for _ in $(seq 100); do [ -s "$work/port" ] && break; sleep 0.1; done

# ------------------------------------------------------------------- a bare Debian
begin() { # begin DIR: with the files of dist/, a script that makes calls, and a cache
    enter "$build/$1" "$work"/dist/*
    cat >"$root/try.py" <<'PYTHON'
import sys

import numpy as np

import roped
from roped import ops

x = np.arange(1, 17, dtype=np.float32).reshape(2, 8)
expected = x / np.sqrt((x * x).mean(axis=1, keepdims=True))
with roped.Client(sys.argv[1]) as client:
    for owner in ops, client:
        assert np.allclose(owner.rmsnorm(x), expected), owner
print(roped.__file__, roped.__version__)
PYTHON
    if [ -d "$cache" ]; then
        mkdir "$root/ccache"
        mount --bind "$cache" "$root/ccache"
    fi
}
can_compile() { # with this machine's cache, where it has one
    apt gcc libc6-dev python3-dev ccache
    compiler="export SKBUILD_CMAKE_DEFINE=ROPED_CUDA=OFF"
    [ ! -d "$root/ccache" ] ||
        compiler+=" CMAKE_C_COMPILER_LAUNCHER=ccache CCACHE_DIR=/ccache CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=/"
}
has_python() {
    apt python3-venv
    [ -z "${PIP_CERT:-}" ] || { mkdir -p "$root/${PIP_CERT%/*}" && cp "$PIP_CERT" "$root/$PIP_CERT"; }
}
try() { # try FILE: installed into an environment of its own
    inside "rm -rf /venv; cd /; python3 -m venv /venv; ${compiler:-:}; /venv/bin/pip install /dist/$1
        /venv/bin/python /try.py http://127.0.0.1:$(cat "$work/port")"
}
each() { # each WHAT SUFFIX: every file of that kind
    local file
    for file in "$work"/dist/*"$2"; do
        [ ! -e "$file" ] || check "$1 ${file##*/}" try "${file##*/}"
    done
}

if [ $# -eq 0 ]; then
    begin debian
    check "Debian 12: has Python" has_python
    check "Debian 12: has a compiler" can_compile
    check "Debian 12: a wheel of the sdist" inside "python3 -m venv /venv; $compiler
        /venv/bin/pip wheel --no-deps -w /wheel /dist/*.tar.gz"
    cp "$root"/wheel/*.whl "$work/dist"
    remove_root
fi
for debian in "12 debian" "13 debian13"; do
    read -r version dir <<<"$debian"
    begin "$dir"
    check "Debian $version: has Python" has_python
    compiler=
    each "Debian $version: where nothing compiles," .whl
    if compgen -G "$work/dist/*.tar.gz" >/dev/null; then
        check "Debian $version: has a compiler" can_compile
        each "Debian $version:" .tar.gz
    fi
    remove_root
done
