#!/usr/bin/env bash
# Collects what tests/gpu/run.sh needs from a build into a small folder that
# runs on another machine: binaries, tests, and the libraries beside them.
#   tests/gpu/pack.sh BUILD_DIR PACK_DIR
set -euo pipefail
build=${1:?usage: pack.sh BUILD_DIR PACK_DIR}
pack=${2:?usage: pack.sh BUILD_DIR PACK_DIR}
rm -rf "$pack"
mkdir -p "$pack/bin" "$pack/tests" "$pack/lib"
find "$build/bin" -maxdepth 1 -type f -perm -u+x -exec cp {} "$pack/bin/" \;
find "$build/tests" -maxdepth 1 -type f -perm -u+x -exec cp {} "$pack/tests/" \;
cp -a "$build"/lib/libroped_*.so* "$pack/lib/"
"$(dirname "$0")/bundle.sh" "$pack"
strip --strip-debug "$pack"/bin/* "$pack"/tests/* "$pack"/lib/* 2>/dev/null || true
du -sh "$pack"
