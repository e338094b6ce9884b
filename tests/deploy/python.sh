#!/usr/bin/env bash
# The Python package from its files, on a bare Debian 12 and 13 that know nothing
# of this tree: the sdist becomes a wheel on Debian 12, both are installed on
# each, and each makes a call in process and one of a daemon outside.
#   python.sh SOURCE_DIR BUILD_DIR
# Exit 77: skipped, with a line that says why.
set -eu
source=$1 build=$2 work=$2/python-debian here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: $*"; exit 77; }
"$here/debian.sh" "$build/debian" || exit
"$here/debian.sh" "$build/debian13" trixie || exit
mkdir -p "$work"
rm -rf "$work"/{dist,venv,port}
root=
server=
# shellcheck disable=SC2317 # a trap calls it
clean() {
    remove_root
    [ -z "$server" ] || kill "$server"
}
remove_root() {
    [ -n "$root" ] || return 0
    umount "$root/proc" "$root/ccache" 2>/dev/null || true
    rm -rf --one-file-system "$root"
    root=
}
trap clean EXIT
check() { # check WHAT COMMAND... : what it says is shown where it fails
    "${@:2}" >"$work/said" 2>&1 || { tail -n 40 "$work/said"; echo "FAILED $1"; exit 1; }
    echo "ok     $1"
}

# ------------------------------------------------------- the sdist, and a daemon
python3 -m venv "$work/venv" >"$work/said" 2>&1 || skip "python3 -m venv does not work here"
"$work/venv/bin/pip" install --quiet build >"$work/said" 2>&1 ||
    skip "pip could not install build: $(tail -n 1 "$work/said")"
check "the sdist is made" "$work/venv/bin/python" -m build --sdist -o "$work/dist" "$source/client/python"
"$build/bin/roped" --backend cpu --listen 127.0.0.1:0 --port_file "$work/port" 2>"$work/log" &
server=$!
for _ in $(seq 100); do [ -s "$work/port" ] && break; sleep 0.1; done

# ------------------------------------------------------------------- a bare Debian
# enter DIR: 'inside' is in a copy of it, which has the files of dist/ and no more
enter() {
    root=$(mktemp -d)
    cp -a "$1/." "$root"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    cp -r "$work/dist" "$root/dist"
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
    mount -t proc proc "$root/proc"
    if command -v ccache >/dev/null; then
        mkdir "$root/ccache"
        mount --bind "$(ccache -k cache_dir)" "$root/ccache"
    fi
}
inside() { chroot "$root" env -u PIP_FIND_LINKS DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 bash -ec "$1"; }
apt() { inside "apt-get -q update && apt-get -q install -y --no-install-recommends $*"; }
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

enter "$build/debian"
check "Debian 12: has Python" has_python
check "Debian 12: has a compiler" can_compile
check "Debian 12: a wheel of the sdist" inside "python3 -m venv /venv; $compiler
    /venv/bin/pip wheel --no-deps -w /wheel /dist/*.tar.gz"
cp "$root"/wheel/*.whl "$work/dist"
remove_root
for debian in "12 debian" "13 debian13"; do
    read -r version dir <<<"$debian"
    enter "$build/$dir"
    check "Debian $version: has Python" has_python
    compiler=
    check "Debian $version: the wheel, where nothing compiles" try '*.whl'
    check "Debian $version: has a compiler" can_compile
    check "Debian $version: the sdist" try '*.tar.gz'
    remove_root
done
