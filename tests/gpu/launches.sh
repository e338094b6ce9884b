#!/usr/bin/env bash
# Would a device take every launch? tests/calls/test_launches with what the
# kernels of a build for sm_90 have. Nothing runs: no GPU is needed.
#   tests/gpu/launches.sh [BUILD_DIR [CALLS [SEED [COUNTS]]]]  default build/dev
# Wants cuobjdump: of the toolkit, or pip install nvidia-cuda-cuobjdump.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:/usr/local/cuda/bin
build=${1:-build/dev}
shift || true
command -v cuobjdump >/dev/null || { echo "skipped: no cuobjdump"; exit 77; }
mapfile -t objects < <(find "$build/kernels/cuda" -name '*.cu.o' | sort)
[ ${#objects[@]} -gt 0 ] || { echo "$build has no CUDA objects" >&2; exit 1; }

# "NAME REGISTERS SHARED_BYTES MOST_THREADS" of each kernel
usage() {
    local object
    for object in "${objects[@]}"; do
        {
            cuobjdump -arch sm_90 -elf "$object"
            cuobjdump -arch sm_90 -res-usage "$object"
        } 2>/dev/null | awk '
            /^\.nv\.info\./ {of = substr($1, 10)}
            /EIATTR_MAX_THREADS/ {is_next = 1}
            /Value:/ && is_next {is_next = 0; most[of] = product($2, $3, $4)}
            /^ Function / {name = $2; sub(/:$/, "", name)}
            /^ *REG:/ {
                for (i = 1; i <= NF; i++) {split($i, pair, ":"); value[pair[1]] = pair[2]}
                print name, value["REG"], value["SHARED"], most[name] + 0}
            function number(text, i, n) {
                for (i = 3; i <= length(text); i++)
                    n = 16 * n + index("0123456789abcdef", substr(text, i, 1)) - 1
                return n
            }
            function product(x, y, z) {return number(x) * number(y) * number(z)}'
    done
}

kernels=$build/kernels.txt
usage >"$kernels"
if [ ! -s "$kernels" ]; then
    echo "skipped: $build has no code for sm_90"
    exit 77
fi
"$build/tests/test_launches" "$kernels" "$@"
