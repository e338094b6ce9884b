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

# ------------------------------------------------- the order inside a room
# The files of a room from the bottom up. A file includes and calls only what
# stands before it, so there is no circle, and whoever reads in this order has
# read what a file builds on. A '+' marks a table, which names functions of the
# files above it and calls none of them.

# uses FOLDER OBJECTS: "user used includes" for each #include of a file of the
# folder, "imports" in Python, and "calls" for each symbol that one object takes
# from another, where they are built from what is there now. roped_client.h is
# public and includes nothing of its room. Two functions of transport.c stand in for the C library's.
uses() {
    grep -HoE '^#include "(http/)?[a-z0-9_]+\.h"' /dev/null "$1"/*.[ch] | grep -v roped_client.h |
        sed -E 's|.*/([a-z0-9_]+)\.[ch]:#include "(http/)?([a-z0-9_]+)\.h"|\1 \3 includes|'
    grep -HE '^ *from roped(\.\w+)? import' /dev/null "$1"/*.py |
        sed -E 's/ as \w+//; s/,//g; s|.*/(\w+)\.py: *from roped|\1|
            s/^(\w+)\.(\w+) import.*/\1 \2/; s/^(\w+) import/\1/' |
        awk '{ for (i = 2; i <= NF; i++) print $1, $i, "imports" }'
    local built=() object
    for object in "$2"/*.c.o; do
        object=${object##*/}
        [ ! -f "$1/${object%.o}" ] || built+=("$2/$object")
    done
    [ ${#built[@]} -eq 0 ] || nm -A "${built[@]}" | awk '
        { split($1, where, ":"); file = where[1]; kind = $(NF - 1)
          sub(/.*\//, "", file); sub(/\.c\.o$/, "", file) }
        $NF == "write" || $NF == "epoll_wait" { next }
        kind ~ /^[TDRBC]$/ { owner[$NF] = file }
        kind == "U" { user[++n] = file; wants[n] = $NF }
        END { for (i = 1; i <= n; i++)
                  if (wants[i] in owner) print user[i], owner[wants[i]], "calls" }'
}

# order FOLDER OBJECTS NAME...
order() {
    shopt -s nullglob
    local folder=$1 objects=${commands%/*}/$2 name wrong
    shift 2
    wrong=$(
        for name; do
            compgen -G "$folder/${name%+}.*" >/dev/null || echo "there is no ${name%+}"
        done
        { printf '%s\n' "$folder"/*.{c,h,py} | sed -E 's|.*/(.*)\..*|\1 \1 is|'; uses "$folder" "$objects"; } |
            sort -u | awk -v names="$*" '
                BEGIN { n = split(names, name, " ")
                        for (i = 1; i <= n; i++) {
                            is_table = sub(/\+$/, "", name[i])
                            place[name[i]] = i
                            table[name[i]] = is_table } }
                !($1 in place) { if ($3 == "is") print $1 " has no place in the order"; next }
                ($2 in place) && place[$2] > place[$1] && !(table[$1] && $3 == "calls") {
                    print $1 " " $3 " " $2 ", which stands above it" }'
    )
    if [ -n "$wrong" ]; then
        printf 'FAILED   %s: %s\n' "$folder" "$wrong"
        n_failed=$((n_failed + 1))
    else
        printf 'ok       the order of %s\n' "$folder"
    fi
}

order server/http server/CMakeFiles/roped_http.dir/http \
    clock accept head origin gate peers listeners tls shared \
    reply body call_demo protocol call step_times call_regions protocol_v1 protocol_v2 run transfer \
    program_folder handlers route+ greeting request request_log headers \
    handle_call handle_devices handle_health handle_meta handle_page handle_programs handle_regions \
    handle_settings handle_shared_memory handle_tables \
    transport acceptor daemon
order client client/CMakeFiles/ropectl.dir \
    number printable npy npz tensor_value compare client_file roped_servers \
    client_answer roped_client \
    ropectl say output progress support options verbs \
    tensor_file bench_tensors scrape top_screen local_call file_call model model_layers \
    command_bench command_cat command_describe command_model command_program \
    command_regions command_run command_sample command_status command_tables command_token \
    command_top command_verify \
    main+
order client/python/src/roped none \
    _errors _functions _tensors _shapes _safetensors _http _servers _shared _gradients _programs _recorder \
    _client _library _torch _fast _in_process ops testing __init__
[ "$n_failed" -eq 0 ]
