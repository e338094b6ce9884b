#!/usr/bin/env bash
# The wheel, as pip makes it: its name, its files, and a call in an environment
# with nothing but it and numpy.
#   tests/python/wheel.sh BUILD_DIR
# Exit 77: skipped, with a line that says why. ROPED_PYTHON as for run.sh.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build_dir=$(cd "$1" && pwd)
work=$build_dir/python-wheel
log=$work/log
mkdir -p "$work"

skip() {
    echo "skipped: $*"
    exit 77
}

if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
python=${ROPED_PYTHON:-python3}
rm -rf "$work"/*.whl "$work/venv"
"$python" -m venv "$work/venv" >"$log" 2>&1 || skip "python3 -m venv does not work here"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet numpy scikit-build-core cmake ninja auditwheel >>"$log" 2>&1 ||
    skip "pip could not install scikit-build-core: $(tail -n 1 "$log")"
# -C is unknown to the pip of Debian 12, --config-settings to that of Ubuntu 22.04
SKBUILD_CMAKE_DEFINE="ROPED_CUDA=OFF;ROPED_WERROR=ON" \
    "${pip[@]}" wheel --no-deps --no-build-isolation -w "$work" "$root/client/python" -v >>"$log" 2>&1 ||
    { tail -n 30 "$log"; exit 1; }
wheel=$(echo "$work"/*.whl)
version=$(sed -n 's/^project(roped VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
case ${wheel##*/} in
"roped-$version-cp310-abi3-linux_"*) ;;
*) echo "a wheel called ${wheel##*/}" && exit 1 ;;
esac
"$work/venv/bin/auditwheel" show "$wheel" >"$work/tags" 2>&1
grep -q manylinux "$work/tags" || { echo "not manylinux" && exit 1; }
has_headers=$("$python" -c 'import os, sysconfig
print(os.path.exists(sysconfig.get_path("include") + "/Python.h"))')
"${pip[@]}" uninstall --quiet --yes scikit-build-core cmake ninja auditwheel
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
