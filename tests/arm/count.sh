#!/usr/bin/env bash
# Instructions per element of the CPU backend's rows on aarch64: in portable C,
# with NEON, and with NEON and bfloat16's instructions. QEMU counts; no time is
# measured. Wants what tests/arm/run.sh leaves in its build folder.
#   tests/arm/count.sh [BUILD_DIR]     default build/arm
set -euo pipefail
shopt -s extglob
cd "$(dirname "$0")/../.."
build_dir=$(realpath -m "${1:-build/arm}")
sysroot=$build_dir/sysroot out=$build_dir/count
if [ ! -e "$build_dir/lib/libroped_ops.a" ]; then
    echo "count.sh: $build_dir has no library; tests/arm/run.sh builds it" >&2
    exit 1
fi
export QEMU_LD_PREFIX=$sysroot
mkdir -p "$out"

# -O3 and so on: row_flags of kernels/cpu/CMakeLists.txt
cc=(aarch64-linux-gnu-gcc "--sysroot=$sysroot" -std=gnu17 -D_GNU_SOURCE -DNDEBUG
    -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast
    -I kernels -I kernels/include)
isas=(portable neon neonbf16)
for isa in "${isas[@]}"; do
    flags=("-DCPU_ISA=$isa" "-DROWS=cpu_rows_$isa")
    case $isa in
    portable) flags+=(-DVECTOR_PORTABLE) ;;
    neonbf16) flags+=(-march=armv8.2-a+bf16) ;;
    esac
    "${cc[@]}" "${flags[@]}" tests/arm/count_rows.c kernels/cpu/rows!(_select).c kernels/cpu/*_rows.c \
        "$build_dir/lib/libroped_ops.a" -lm \
        -o "$out/$isa"
done
cc -O2 -shared -fPIC tests/arm/count_plugin.c -o "$out/count.so"

executed() { # executed ISA CASE TIMES
    QEMU_CPU=max qemu-aarch64 -plugin "$out/count.so" "$out/$1" "$2" "$3" 2>&1
}

printf '%-30s %9s %9s %9s\n' "instructions per element" "${isas[@]}"
qemu-aarch64 "$out/portable" | while read -r name n_elements; do
    printf '%-30s' "$name"
    for isa in "${isas[@]}"; do
        once=$(executed "$isa" "$name" 1)
        twice=$(executed "$isa" "$name" 2)
        awk -v n=$((twice - once)) -v e="$n_elements" 'BEGIN {printf " %9.2f", n / e}'
    done
    echo
done
