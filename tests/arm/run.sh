#!/usr/bin/env bash
# The tests on aarch64, from an x86-64 machine: cross-compiled, and run by QEMU
# as processors with and without the bfloat16 instructions. Sweeps are short.
#   tests/arm/run.sh [BUILD_DIR]       default build/arm
#   ROPED_NO_INSTALL=1                 do not install compiler and QEMU
# Libraries for aarch64 are unpacked into BUILD_DIR/sysroot: the packages of this
# machine stay as they are. Exit 77: compiler, QEMU or libraries cannot be had.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/environment.sh
. tests/arm/cross.sh
build_dir=$(realpath -m "${1:-build/arm}")
sysroot=$build_dir/sysroot

skip() {
    echo "skipped: $*"
    exit 77
}

# fetch_sysroot DIR: what the build links, of this machine's distribution
fetch_sysroot() {
    local source
    . /etc/os-release
    case $ID in
    debian) source="http://deb.debian.org/debian $VERSION_CODENAME main" ;;
    ubuntu) source="http://ports.ubuntu.com/ubuntu-ports $VERSION_CODENAME main universe" ;;
    *) return 1 ;;
    esac
    unpack_packages "$1" arm64 "[signed-by=/usr/share/keyrings/$ID-archive-keyring.gpg] $source" \
        libc6-dev libmicrohttpd-dev libcjson-dev zlib1g-dev libcurl4-openssl-dev
}

# The first of these processors that this QEMU knows.
nearest() {
    local known cpu
    known=$(qemu-aarch64 -cpu help)
    for cpu in "$@"; do
        if grep -qx " *$cpu" <<<"$known"; then
            echo "$cpu"
            return
        fi
    done
}

run_ctest() {
    ctest --test-dir "$build_dir" --output-on-failure -j $((2 * $(nproc))) "$@"
}

command -v apt-get >/dev/null || skip "no apt-get here"
[ -n "${ROPED_NO_INSTALL:-}" ] || deploy/install-deps.sh build arm
command -v aarch64-linux-gnu-gcc >/dev/null || skip "no aarch64-linux-gnu-gcc here"
command -v qemu-aarch64 >/dev/null || skip "no qemu-aarch64 here"
if [ ! -e "$sysroot/.complete" ]; then
    quietly fetch_sysroot "$sysroot" || skip "no libraries for aarch64 to be had"
fi

export ROPED_SYSROOT=$sysroot QEMU_LD_PREFIX=$sysroot
build "$build_dir" "--preset cpu -B $build_dir --toolchain $PWD/tests/arm/toolchain.cmake"

# the kernel does not run what was built, and tests start the daemon
export ROPED_TEST_BIN=$build_dir/roped ROPED_TEST_QUICK=29
printf '#!/bin/sh\nexec qemu-aarch64 "%s/bin/roped" "$@"\n' "$build_dir" >"$ROPED_TEST_BIN"
chmod +x "$ROPED_TEST_BIN"

# Orin; Grace and Graviton; all that QEMU has
orin=$(nearest cortex-a78ae cortex-a78 cortex-a76)
graviton=$(nearest neoverse-v1 max)
for cpu in $(printf '%s\n' "$orin" "$graviton" max | sort -u); do
    echo "as $cpu:"
    export QEMU_CPU=$cpu
    run_ctest -L 'unit|kernel' -LE gpu -E 'test_installed|in_process_torch'
    run_ctest -R '^test_golden$'
done
