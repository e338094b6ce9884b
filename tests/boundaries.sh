#!/usr/bin/env bash
# Does a forbidden #include fail to compile? Each room is asked with the flags
# and from the folder of one of its own files, first for a header that it may
# see, so that a refusal below is one of the header and not of the flags.
#   tests/boundaries.sh [BUILD_DIR]   (default build/cpu)
set -u
cd "$(dirname "$0")/.." || exit 1
commands=${1:-build/cpu}/compile_commands.json
if [ ! -f "$commands" ]; then
    echo "skipped: $commands is not there"
    exit 77
fi
n_failed=0

# includes FILE HEADER: would FILE compile with that #include?
includes() {
    local flags
    mapfile -t flags < <(grep "\"command\": .* -c [^ ]*/$1\"" "$commands" | head -n 1 |
        grep -oE -- '-(I|isystem )[^ ]+' | sed 's/^-isystem /-isystem/')
    if [ "${#flags[@]}" -eq 0 ]; then
        echo "$1 is not compiled in $commands"
        return 2
    fi
    (cd "$(dirname "$1")" && echo "#include \"$2\"" |
        "${CC:-cc}" -std=gnu17 -D_GNU_SOURCE -fsyntax-only -x c "${flags[@]}" - 2>&1)
}

# room FILE MAY MAY_NOT...: FILE sees the header MAY and none of MAY_NOT
room() {
    local file=$1 header output
    shift
    if ! output=$(includes "$file" "$1"); then
        printf 'FAILED   %s does not see %s, which it needs\n%s\n' "$file" "$1" "$output"
        n_failed=$((n_failed + 1))
    fi
    shift
    for header in "$@"; do
        output=$(includes "$file" "$header")
        if ! grep -qF "fatal error: $header: No such file" <<<"$output" &&
            ! grep -qF "fatal error: '$header' file not found" <<<"$output"; then
            printf 'FAILED   %s may include %s\n%s\n' "$file" "$header" "$output"
            n_failed=$((n_failed + 1))
        else
            printf 'ok       %s cannot include %s\n' "$file" "$header"
        fi
    done
}

for header in exec/heap.h wire/json.h http/route.h metrics/metrics.h base/config.h base/log.h; do
    [ -f "server/$header" ] || { echo "FAILED   there is no server/$header"; exit 1; }
done
room kernels/core/angles.c roped/angles.h exec/heap.h wire/json.h http/route.h log.h
room kernels/cpu/backend.c cpu/pool.h exec/heap.h wire/json.h http/route.h log.h
room server/wire/json.c wire/json.h exec/heap.h http/route.h log.h metrics.h cpu/pool.h
room server/exec/heap.c exec/heap.h wire/json.h http/route.h log.h metrics.h cpu/pool.h
room server/base/log.c log.h exec/heap.h wire/json.h http/route.h metrics.h cpu/pool.h
room server/metrics/metrics.c metrics.h http/route.h cpu/pool.h
room server/http/route.c http/route.h cpu/pool.h
room client/roped_client.c wire/safetensors.h exec/heap.h http/route.h log.h metrics.h
[ "$n_failed" -eq 0 ]
