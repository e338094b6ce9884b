#!/usr/bin/env bash
# A daemon under compute-sanitizer, for tests that start one:
#   ROPED_MEMCHECK_BIN=build/gpu/bin/roped ROPED_TEST_BIN=tests/gpu/memcheck.sh test_calls
# It ends with 9 where the tool found an error. A test ends its daemon by
# SIGTERM, which the tool would keep for itself.
set -u
bin=${ROPED_MEMCHECK_BIN:?the daemon to run}
compute-sanitizer --tool memcheck --error-exitcode 9 "$bin" "$@" &
tool=$!

# is_below PID: was it started by the tool?
is_below() {
    local pid=$1
    while [ "$pid" -gt 1 ] && [ "$pid" != "$tool" ]; do
        pid=$(awk '{print $4}' "/proc/$pid/stat" 2>/dev/null || echo 0)
    done
    [ "$pid" = "$tool" ]
}

# shellcheck disable=SC2317 # the trap calls it
pass_on() {
    local pid
    for pid in $(pgrep -f "^$bin "); do
        is_below "$pid" && kill -TERM "$pid"
    done
}
trap pass_on TERM
wait "$tool"
status=$?
while kill -0 "$tool" 2>/dev/null; do # a signal ended the wait, not the tool
    wait "$tool"
    status=$?
done
exit "$status"
