#!/usr/bin/env bash
# The wheel as pip makes it, of the tree and of the sdist: its name, its files, a
# call in an environment with nothing but it and numpy; and which GPUs it is for.
#   tests/python/wheel.sh BUILD_DIR
# Exit 77: skipped, with a line that says why. ROPED_PYTHON as for run.sh.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build_dir=$(cd "$1" && pwd)
. "$root/tests/venv.sh"
work=$build_dir/python-wheel
log=$work/log
mkdir -p "$work"

skip() {
    echo "skipped: $*"
    exit 77
}

# What the other builds have compiled is not compiled again. For that the compiler
# has to have the same name, and flags the same order, which CMake's version decides.
if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
export CC=${CC:-cc}
python=${ROPED_PYTHON:-python3}
rm -rf "$work"/{venv,sdist,elsewhere,chips} "$work"/*.{whl,tar.gz}
"$python" -m venv "$work/venv" >"$log" 2>&1 || skip "python3 -m venv does not work here"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check)
install_into "$work/venv/bin/python" numpy build scikit-build-core ninja auditwheel >>"$log" 2>&1 ||
    skip "pip could not install scikit-build-core: $(tail -n 1 "$log")"
version=$(sed -n 's/^project(roped VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
try() { # try COMMAND... : shown where it fails
    "$@" >>"$log" 2>&1 || { tail -n 30 "$log"; echo "failed: $*"; exit 1; }
}

# Which GPUs the package is built for: those of this machine, if nobody says more
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    chips() { # chips EXPECTED [NAME=VALUE] : what CMake says of it
        rm -rf "$work/chips"
        env -u CUDAARCHS "${@:2}" cmake -G Ninja -S "$root" -B "$work/chips" \
            -DCMAKE_MAKE_PROGRAM="$work/venv/bin/ninja" -DROPED_PYTHON_ONLY=ON >"$work/chips.log" 2>&1
        if ! grep -qE "^-- $1" "$work/chips.log" || ! grep -q "CUDAARCHS=all" "$work/chips.log"; then
            cat "$work/chips.log"
            echo "expected: $1"
            exit 1
        fi
    }
    if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
        here=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -u |
            sed 's/$/-real/' | paste -sd ';')
        chips "CUDA backend for GPUs of $here\$"
    else
        chips "a CUDA compiler, but no GPU: the CPU backend alone"
    fi
    chips "CUDA backend for GPUs of 90\$" CUDAARCHS=90
    chips "CUDA backend for GPUs of 80-real;.*[0-9]\$" CUDAARCHS=all
else
    echo "no CUDA compiler: nobody looked for which GPUs the package is built"
fi

# The sdist is all that a folder elsewhere has.
"$work/venv/bin/python" -m build --no-isolation --sdist -o "$work" "$root/client/python" >>"$log" 2>&1 ||
    { tail -n 30 "$log"; exit 1; }
mkdir "$work/elsewhere"
cp "$work/roped-$version.tar.gz" "$work/elsewhere"
# -C is unknown to the pip of Debian 12, --config-settings to that of Ubuntu 22.04
export SKBUILD_CMAKE_DEFINE="ROPED_CUDA=OFF"
(cd "$work/elsewhere" && try "${pip[@]}" wheel --no-deps --no-build-isolation -w sdist -v "roped-$version.tar.gz")
try "${pip[@]}" wheel --no-deps --no-build-isolation -w "$work" "$root/client/python" -v
wheel=$(echo "$work"/*.whl)
case ${wheel##*/} in
"roped-$version-cp310-abi3-linux_"*) ;;
*) echo "a wheel called ${wheel##*/}" && exit 1 ;;
esac
files() { "$work/venv/bin/python" -m zipfile -l "$1" | awk 'NR > 1 {print $1}' | sort; }
diff <(files "$wheel") <(files "$work/elsewhere/sdist/${wheel##*/}") ||
    { echo "the wheels of the tree and of the sdist have other files" && exit 1; }
grep -q "roped-$version.dist-info/licenses/LICENSE" <(files "$wheel") || { echo "no licence" && exit 1; }
"$work/venv/bin/auditwheel" show "$wheel" >"$work/tags" 2>&1
grep -q manylinux "$work/tags" || { echo "not manylinux" && exit 1; }
has_headers=$("$python" -c 'import os, sysconfig
print(os.path.exists(sysconfig.get_path("include") + "/Python.h"))')
"${pip[@]}" uninstall --quiet --yes build scikit-build-core ninja auditwheel
"${pip[@]}" install --quiet --no-deps "$wheel"
cd "$work"
"$work/venv/bin/python" - "$version" "$has_headers" <<'PYTHON'
import importlib.util
import sys

import numpy as np

import roped
from roped import ops
import roped.compat.vllm

if sys.argv[2] == "True":
    import roped._fast
else:
    assert importlib.util.find_spec("roped._fast") is None

x = np.full((2, 8), 3, np.float32)
assert roped.__version__ == sys.argv[1]
assert np.allclose(ops.rmsnorm(x), 1) and np.allclose(ops.rope(x.reshape(2, 1, 8)).q[0], 3)
PYTHON
echo "${wheel##*/}: ok"
