#!/usr/bin/env bash
# What the kernels of a build want of a chip: the most registers, shared memory
# and stack, and which kernels those are. Fails where one has more static shared
# memory than a block may have (48 KiB) or keeps more than 128 B on its stack,
# in local memory. Nothing runs: no GPU is needed.
#   tests/gpu/resources.sh [BUILD_DIR [ARCHITECTURE]]    default build/dev, all
# for Orin:
#   cmake --preset release -G Ninja -B build/orin -DCMAKE_CUDA_ARCHITECTURES=87-real
#   ninja -C build/orin lib/libroped_cuda.a && tests/gpu/resources.sh build/orin
# Wants cuobjdump (tests/gpu/kernels.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/dev} architecture=${2:-}
most_shared=49152 most_stack=128
. tests/gpu/kernels.sh

all=$(usage "$architecture")
printf '%-8s %8s %10s %8s %8s %8s\n' chip kernels registers stack shared "on stack"
awk '{
    n[$1]++
    if ($3 > reg[$1]) reg[$1] = $3
    if ($4 > stack[$1]) stack[$1] = $4
    if ($5 > shared[$1]) shared[$1] = $5
    spilled[$1] += $4 > 0}
    END {for (chip in n) printf "%-8s %8d %10d %8d %8d %8d\n", chip, n[chip], reg[chip],
        stack[chip], shared[chip], spilled[chip]}' <<<"$all" | sort -V
for column in "3 registers" "4 stack" "5 shared"; do
    read -r field what <<<"$column"
    echo "most $what:"
    sort -k"$field,$field"nr <<<"$all" |
        awk 'NR <= 3 {printf "  %s %s: %d registers, %d B of stack, %d B shared: %s\n", $1, $2, $3, $4, $5, $6}'
done
awk -v shared=$most_shared -v stack=$most_stack '$5 > shared || $4 > stack {n++; print "FAILED", $0}
    END {exit n > 0}' <<<"$all"
