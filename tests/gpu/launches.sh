#!/usr/bin/env bash
# Would a device take every launch? tests/calls/test_launches with what the
# kernels of a build for sm_90 have. Nothing runs: no GPU is needed.
#   tests/gpu/launches.sh [BUILD_DIR [CALLS [SEED [COUNTS]]]]  default build/dev
# Wants cuobjdump (tests/gpu/kernels.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/dev}
shift || true
. tests/gpu/kernels.sh

# "FUNCTION THREADS" of each kernel that states a bound
bounds() {
    local object
    for object in "${objects[@]}"; do
        cuobjdump -arch sm_90 -elf "$object" 2>/dev/null | awk '
            /^\.nv\.info\./ {of = substr($1, 10)}
            /EIATTR_MAX_THREADS/ {is_next = 1}
            /Value:/ && is_next {is_next = 0; print of, number($2) * number($3) * number($4)}
            function number(text, i, n) {
                for (i = 3; i <= length(text); i++)
                    n = 16 * n + index("0123456789abcdef", substr(text, i, 1)) - 1
                return n
            }'
    done
}

# "FUNCTION REGISTERS SHARED THREADS", 0 threads without a bound
kernels=$build/kernels.txt
{ bounds && usage sm_90; } |
    awk 'NF == 2 {most[$1] = $2; next} {print $6, $3, $5, most[$6] + 0}' >"$kernels"
if [ ! -s "$kernels" ]; then
    echo "skipped: $build has no code for sm_90"
    exit 77
fi
"$build/tests/test_launches" "$kernels" "$@"
