#!/usr/bin/env bash
# Copies the shared libraries that a build needs, other than the C library and
# the NVIDIA driver, beside its binaries, so that the build folder runs on
# another machine of the same architecture without its packages.
#   tests/gpu/bundle.sh BUILD_DIR
set -euo pipefail
build=${1:?usage: bundle.sh BUILD_DIR}
mkdir -p "$build/lib"
find "$build/bin" "$build/tests" -maxdepth 1 -type f -perm -u+x -print0 |
    xargs -0 -n1 ldd 2>/dev/null | awk '$3 ~ /^\// {print $3}' | sort -u |
    while read -r library; do
        case $(basename "$library") in
        libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | ld-linux* | libcuda.so* | libresolv.so*) ;;
        libroped*) ;;
        *) cp -Lu "$library" "$build/lib/" ;;
        esac
    done
echo "bundled: $(du -sh "$build/lib" | cut -f1) of libraries in $build/lib"
