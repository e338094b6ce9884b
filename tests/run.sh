#!/usr/bin/env bash
# Builds and runs the tests: a fresh clone of the repository on Debian 12, 13 or
# Ubuntu 22.04 or 24.04 is enough, as root or with sudo.
#   tests/run.sh               the tests, once, and lint; says what it leaves out
#   tests/run.sh --all         everything: also attacks on the daemon, clients
#                              from PyPI, the tests again under
#                              AddressSanitizer with UBSan and ThreadSanitizer,
#                              and on an emulated aarch64
#   tests/run.sh --release     what takes hours, before a release: a long soak,
#                              kernels by other random cases than ever,
#                              100,000 random calls, every model of
#                              transformers, 200,000 calls while daemons die,
#                              Ray and Helm, what deploy/release.sh makes
#   tests/run.sh -R golden     arguments go to ctest: those tests alone, once
#   ROPED_NO_INSTALL=1         do not install packages
# With a CUDA toolkit and a GPU the first build has the CUDA backend, and the
# HTTP tests run on both backends. Logs: build/logs.
# shellcheck disable=SC2317 # functions that step calls
set -u
cd "$(dirname "$0")/.." || exit 1
logs=build/logs
mkdir -p "$logs"
times=$logs/times
: >"$times"
summary=()
failed_logs=()
n_failed=0

is_all=
is_release=
if [ "${1:-}" = --all ]; then
    is_all=1
    shift
elif [ "${1:-}" = --release ]; then
    is_release=1
    shift
fi
if [ -z "${ROPED_NO_INSTALL:-}" ]; then
    deploy/install-deps.sh build tests ${is_all:+deploy} || exit 1
fi
. deploy/environment.sh # looks for what was just installed

# step NAME COMMAND... : runs it into a log; a line now and one in the summary
step() {
    local name=$1 log start=$SECONDS status count word=ok
    log=$logs/$(echo "$name" | tr -cs 'a-z0-9\n' '_').log
    shift
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    count=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests failed out of \([0-9]*\)/\2 tests, \1 failed/p' "$log")
    count=$count$(awk '/Test +#.*Skipped/ {n++} END {if (n) printf ", %d skipped", n}' "$log")
    sed -n "s|^ *[0-9]*/[0-9]* Test *#[0-9]*: \\([^ ]*\\) .* \\([0-9.]*\\) sec.*|\\2 s  \\1  (${name//|/ })|p" \
        "$log" >>"$times"
    if [ "$status" -eq 77 ]; then
        word=skipped
        status=0
    elif [ "$status" -ne 0 ]; then
        word=FAILED
        n_failed=$((n_failed + 1))
        failed_logs+=("$log")
    fi
    summary+=("$(printf '%-7s %4ds  %s%s' "$word" $((SECONDS - start)) "$name" "${count:+: $count}")")
    return "$status"
}

# Most tests wait, for deadlines, for a client or for PyPI: two for each core at
# once, the longest first. On a GPU one at a time, which may want its memory.
n_at_once=$((2 * $(nproc)))
has_gpu && n_at_once=1
export n_at_once

run_ctest() { # run_ctest DIR CTEST_ARGUMENTS...
    local dir=$1
    shift
    ctest --test-dir "$dir" --output-on-failure --timeout 300 -j "$n_at_once" "$@"
}

# ThreadSanitizer wants its addresses where address randomisation may have put
# something else.
fixed_addresses() {
    if setarch "$(uname -m)" -R true 2>/dev/null; then
        setarch "$(uname -m)" -R "$@"
    else
        "$@"
    fi
}

export -f run_ctest

# Where the time went: ctest's own figures, of all steps of this run.
say_slowest() {
    [ -s "$times" ] || return
    printf '\n== the slowest twenty tests\n'
    sort -rn "$times" | head -n 20
}

# Where only the end of a run is kept, it has to say why it failed: of each test
# that did, or of a step without tests, the last lines.
say_failed() {
    local log
    for log in "${failed_logs[@]}"; do
        printf '\n== %s\n' "$log"
        if ! grep -q ' Test *#' "$log"; then
            tail -n 25 "$log"
            continue
        fi
        awk 'function say(i) {
                 if (failed)
                     print failed
                 for (i = n > 25 ? n - 24 : 1; i <= n; i++)
                     print "    " line[i]
                 failed = ""
                 n = 0
             }
             /^ *[0-9]+\/[0-9]+ Test *#|^ *Start +[0-9]+:|^[0-9]+% tests passed/ {
                 say()
                 if (/\*\*\*/ && !/\*\*\*Skipped/)
                     failed = $0
                 next
             }
             failed { line[++n] = $0 }' "$log"
    done
}

finish() {
    printf '\n== summary\n'
    printf '%s\n' "${summary[@]}"
    say_slowest
    [ "$n_failed" -eq 0 ] || say_failed
    if [ "$n_failed" -eq 0 ]; then
        echo "all passed in $SECONDS s"
    else
        echo "$n_failed of ${#summary[@]} steps failed; logs in $logs"
    fi
    [ "$n_failed" -eq 0 ]
    exit
}

# ctest shows nothing of a test that passes, so this is said here.
say_downloads() {
    [ -f "$build_dir/interop/installed" ] ||
        echo "tests/interop and tests/deploy install what they need from PyPI into $build_dir: 640 MB," \
            "and torch with what it depends on: 5.4 GB more"
}

choose_build
step "build $build_dir" build "$build_dir" "$build_flags" || finish
if [ -n "$is_release" ]; then
    step "soak of ${ROPED_SOAK_MINUTES:-60} minutes" \
        "$build_dir/tests/test_soak" "${ROPED_SOAK_MINUTES:-60}"
    export ROPED_TEST_SEED=${ROPED_TEST_SEED:-$(date +%s)}
    step "kernels, random cases of seed $ROPED_TEST_SEED" run_ctest "$build_dir" -L kernel
    unset ROPED_TEST_SEED
    step "build build/asan" build build/asan "--preset asan" \
        roped test_calls test_calls_in_process attack_grammar &&
        step "an hour of random requests" build/asan/tests/attack_grammar --seconds 3600 &&
        step "random calls in process" build/asan/tests/test_calls_in_process cpu 100000 &&
        step "random calls over HTTP" build/asan/tests/test_calls 100000
    ROPED_INTEROP_TORCH=1 ROPED_INTEROP_MODELS=all step "every model of transformers" \
        tests/interop/run.sh "$build_dir" -s test_configs.py test_pairs.py test_layers.py
    ROPED_TEST_CALLS=200000 step "200,000 calls, one daemon killed and one drained" \
        tests/python/run.sh "$build_dir" test_lost_calls.py
    ROPED_TEST_RAY=1 step "Ray, with nodes that die" tests/python/run.sh "$build_dir" -s -p no:warnings test_ray.py
    ROPED_TEST_MUST=1 step "the Helm chart" tests/interop/run.sh "$build_dir" test_helm.py
    step "the release" deploy/release.sh "$("$build_dir/bin/roped" --version | sed 's/.* //')"
    finish
fi
if [ $# -gt 0 ]; then
    step "tests of $build_dir" run_ctest "$build_dir" "$@"
    finish
fi
if [ -z "$is_all" ]; then
    step "tests of $build_dir" run_ctest "$build_dir" -LE "interop|attack"
    step "lint" tests/lint.sh
    echo "left out: clients from PyPI, attacks, sanitizers; tests/run.sh --all runs them"
    finish
fi
say_downloads
export ROPED_INTEROP_TORCH=1
step "tests of $build_dir" run_ctest "$build_dir"
if has_gpu; then
    ROPED_TEST_BACKEND=cuda step "http tests on the GPU" run_ctest "$build_dir" -L http
fi

# every memory access is instrumented: a tenth of the random cases will do
export ROPED_TEST_QUICK=1
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
step "build build/asan" build build/asan "--preset asan" &&
    step "tests of build/asan" run_ctest build/asan -LE gpu
# threads meet in the same way in most shapes of a sweep
export ROPED_TEST_QUICK=4
step "build build/tsan" build build/tsan "--preset tsan" &&
    step "tests of build/tsan" fixed_addresses bash -c 'run_ctest build/tsan -LE gpu'
# an offset to a null pointer, for one, is seen by clang alone, unoptimised
if command -v clang >/dev/null; then
    step "build build/ubsan" build build/ubsan "--preset ubsan" kernel_tests &&
        step "kernel tests of build/ubsan" run_ctest build/ubsan -L kernel -LE gpu
else
    echo "left out: kernels under clang's UBSan; clang is not installed"
fi
unset ROPED_TEST_QUICK
if [ "$(uname -m)" = x86_64 ]; then
    step "tests on aarch64, emulated" tests/arm/run.sh
fi

step "lint" tests/lint.sh
finish
