# shellcheck shell=bash
# What is known of the kernels of $build without running them: for resources.sh
# and launches.sh, which source this in the root of the repository. Ends with 77
# without cuobjdump, which is of the toolkit, or of
# pip install nvidia-cuda-cuobjdump.
export PATH=$PATH:/usr/local/cuda/bin
command -v cuobjdump >/dev/null || { echo "skipped: no cuobjdump"; exit 77; }
# shellcheck disable=SC2154 # who sources this sets build
mapfile -t objects < <(find "$build/kernels/cuda" -name '*.cu.o' | sort)
[ ${#objects[@]} -gt 0 ] || { echo "$build has no CUDA objects" >&2; exit 1; }

# usage [ARCHITECTURE]: "CHIP FILE REGISTERS STACK SHARED FUNCTION" of each kernel
usage() {
    local object
    for object in "${objects[@]}"; do
        cuobjdump -res-usage ${1:+-arch "$1"} "$object" 2>/dev/null |
            awk -v file="$(basename "$object" .o)" '
                /^arch = / {chip = $3}
                /^ Function / {name = $2; sub(/:$/, "", name)}
                /^ *REG:/ {
                    for (i = 1; i <= NF; i++) {split($i, pair, ":"); value[pair[1]] = pair[2]}
                    print chip, file, value["REG"], value["STACK"] + value["LOCAL"], value["SHARED"], name}'
    done
}
