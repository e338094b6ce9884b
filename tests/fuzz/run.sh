#!/usr/bin/env bash
# Builds the fuzz targets with clang and the sanitizers, and runs each for some
# time, one after the other:
#   tests/fuzz/run.sh [SECONDS] [TARGET...]    60 seconds, every target
# A line for each; exits 1 where something was found. Findings are kept in
# build/fuzz/findings, with the log of their run; what was learned is kept in
# build/fuzz/corpus for the next run. Needs clang with libFuzzer (Debian, Ubuntu:
# clang libclang-rt-14-dev), cmake and ninja.
set -u
cd "$(dirname "$0")/../.." || exit 1
dir=build/fuzz
seconds=60
case ${1:-} in
'' | *[!0-9]*) ;;
*)
    seconds=$1
    shift
    ;;
esac
mapfile -t known < <(basename -a -s .c tests/fuzz/fuzz_*.c | sed 's/^fuzz_//')
targets=("$@")
[ $# -gt 0 ] || targets=("${known[@]}")
for target in "${targets[@]}"; do
    if [ ! -f "tests/fuzz/fuzz_$target.c" ]; then
        echo "no target '$target', expected one of: ${known[*]}" >&2
        exit 2
    fi
done

mkdir -p "$dir/findings" "$dir/logs"
if ! { cmake -S . -B "$dir" -G Ninja -DCMAKE_C_COMPILER=clang \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DROPED_CUDA=OFF \
    -DROPED_SANITIZE=address,undefined -DROPED_FUZZ=ON &&
    ninja -C "$dir" "${targets[@]/#/fuzz_}"; } >"$dir/logs/build" 2>&1; then
    tail -n 30 "$dir/logs/build" >&2
    exit 1
fi

# longest_input TARGET: bytes that are enough for all of its ways
longest_input() {
    case $1 in
    config | query | regions | settings) echo 2048 ;;
    *) echo 4096 ;;
    esac
}

# fuzz TARGET: its line; false where something was found
fuzz() {
    local target=$1 log=$dir/logs/$1 verdict=ok dictionary=() status
    mkdir -p "$dir/corpus/$target"
    [ -f "tests/fuzz/$target.dict" ] && dictionary=("-dict=tests/fuzz/$target.dict")
    # leaks are looked for once, at the end: the daemon keeps what it may need
    "$dir/tests/fuzz_$target" "$dir/corpus/$target" "tests/fuzz/corpus/$target" \
        "-max_total_time=$seconds" "-max_len=$(longest_input "$target")" \
        -timeout=10 -rss_limit_mb=2048 -detect_leaks=0 -print_final_stats=1 \
        "-artifact_prefix=$dir/findings/$target-" "${dictionary[@]}" >"$log" 2>&1
    status=$?
    if [ "$status" -ne 0 ]; then
        cp "$log" "$dir/findings/$target.log"
        verdict="FOUND: $(grep -m 1 -E 'broken:|ERROR: |runtime error:' "$log")"
    fi
    awk -v target="$target" -v verdict="$verdict" '
        / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") cov = $(i + 1) }
        /number_of_executed_units/ { runs = $2 }
        /average_exec_per_sec/ { rate = $2 }
        END { printf "%-12s %10d runs %7d/s  coverage %6d  %s\n",
                     target, runs, rate, cov, verdict }' "$log"
    return "$status"
}

n_found=0
for target in "${targets[@]}"; do
    fuzz "$target" || n_found=$((n_found + 1))
done
[ "$n_found" -eq 0 ]
