#!/usr/bin/env bash
# Everything that needs a GPU, in one call, for any owner of one:
#   tests/gpu/run.sh [BUILD_DIR] [PART ...]
# BUILD_DIR (default build/dev) must be built with the CUDA backend; pack.sh
# makes one that travels. Parts, all
# by default:
#   kernels    every operator on the device against float64
#   http       the daemon with --backend cuda: golden, negative, service tests;
#              64 MiB that is uploaded while it arrives; what holds of any
#              number of devices again on two GPUs, where there are two
#   recover    a kernel that writes where nothing is: seconds until calls are
#              right again
#   sanitize   compute-sanitizer memcheck and racecheck over the kernel tests
#   calls      20,000 random calls under memcheck, half of them over HTTP
#   bench      bench_ops: device time beside a copy of the same bytes
#   examples   libroped_kernels.so in another process; with PyTorch where it is
#   service    latency and throughput of small and 64 MiB calls over HTTP, with
#              and without uploads on arrival; with two GPUs, what both do
#   huge       tensors of more than 2^31 elements (16 GB host, 9 GB device)
# A log per part goes to $OUT (default BUILD_DIR/gpu); a summary comes last.
set -u
cd "$(dirname "$0")/../.."
build=${1:-build/dev}
[ $# -gt 0 ] && shift
parts=${*:-kernels http recover sanitize calls bench examples service huge}
out=${OUT:-$build/gpu}
mkdir -p "$out"
summary=$out/summary.txt
: >"$summary"
failed=0

# note STATUS WHAT SECONDS
note() {
    local word=ok
    [ "$1" -eq 0 ] || { word="FAILED ($1)"; failed=1; }
    [ "$1" -eq 77 ] && { word="skipped"; failed=1; } # there should be a GPU
    printf '%-12s %5ss  %s\n' "$word" "$3" "$2" | tee -a "$summary"
}

# step LOG WHAT COMMAND...
step() {
    local log=$out/$1.log what=$2 start=$SECONDS status
    shift 2
    timeout 420 "$@" >>"$log" 2>&1
    status=$?
    note "$status" "$what" $((SECONDS - start))
    [ "$status" -eq 0 ] || tail -n 12 "$log"
}

ops() { sed -n 's/^ROPED_OP(\(.*\))$/\1/p' kernels/include/roped/ops.def; }

kernels() {
    if command -v cuobjdump >/dev/null; then
        step kernels "no access to memory before the wait" \
            tests/gpu/wait_order.py "$build/lib/libroped_kernels.so"
    fi
    for op in $(ops); do
        step kernels "$op on cuda against float64" "$build/tests/test_sweep" cuda "$op"
        step kernels "$op on cpu against float64" "$build/tests/test_sweep" cpu "$op"
    done
    step kernels "operators on cuda beside those that they are made of" "$build/tests/test_made_of" cuda
    step kernels "exact results on cuda" "$build/tests/test_exact" cuda
    step kernels "random calls on cuda" "$build/tests/test_calls_in_process" cuda 20000
    for op in $(ops); do
        step kernels "$op on cuda: slices, strides, many rows beside whole, packed and small calls" \
            "$build/tests/test_same_bits" cuda "$op"
    done
}

http() {
    for test in golden negative norms append chain http regions shared_memory cuda_memory load devices stage calls programs program_models program_warm decode_loop; do
        test=$build/tests/test_$test
        [ -x "$test" ] || continue
        ROPED_TEST_BACKEND=cuda ROPED_TEST_BIN=$build/bin/roped ROPED_TEST_GOLDEN=tests/golden \
            step http "$(basename "$test") on cuda" "$test"
    done
    ROPED_TEST_BACKEND=cuda ROPED_TEST_BIN=$build/bin/roped \
        step http "random programs on cuda beside separate calls there" "$build/tests/test_program_calls" 300 1 cuda
    [ "$(nvidia-smi -L | wc -l)" -ge 2 ] || return 0
    for test in golden append chain regions shared_memory tenants devices http load stage calls programs; do
        ROPED_TEST_BACKEND=cuda ROPED_TEST_BIN=$build/bin/roped ROPED_TEST_GOLDEN=tests/golden \
            ROPED_TEST_DEVICES=0,1 step http "$test on two GPUs" "$build/tests/test_$test"
    done
}

recover() {
    ROPED_TEST_BACKEND=cuda ROPED_TEST_BIN=$build/tests/roped_fault_cuda \
        step recover "a GPU that is lost" "$build/tests/test_restart"
    grep ' s from the fault ' "$out/recover.log"
}

# The sweeps again under the tools, fewer cases: each access is instrumented.
sanitize() {
    for tool in memcheck racecheck; do
        for op in $(ops); do
            ROPED_TEST_QUICK=1 step "sanitize" "compute-sanitizer $tool, $op" \
                compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/test_sweep" cuda "$op"
        done
        ROPED_TEST_QUICK=1 step "sanitize" "compute-sanitizer $tool, operators beside others" \
            compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/test_made_of" cuda
        ROPED_TEST_QUICK=1 step "sanitize" "compute-sanitizer $tool, random calls in process" \
            compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/test_calls_in_process" cuda
        ROPED_TEST_QUICK=1 step "sanitize" "compute-sanitizer $tool, same bits" \
            compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/test_same_bits" cuda
    done
}

# Random calls under memcheck, in process and over HTTP: four minutes.
calls() {
    step calls "compute-sanitizer memcheck, 10,000 random calls in process" \
        compute-sanitizer --tool memcheck --error-exitcode 9 "$build/tests/test_calls_in_process" cuda 10000 90001
    ROPED_TEST_BACKEND=cuda ROPED_MEMCHECK_BIN=$build/bin/roped ROPED_TEST_BIN=tests/gpu/memcheck.sh \
        step calls "compute-sanitizer memcheck, 10,000 random calls over HTTP" \
        "$build/tests/test_calls" 10000 80001
}

bench() {
    step bench "bench_ops, first run" "$build/bin/bench_ops" --backend cuda --json "$out/bench_1.jsonl"
    step bench "bench_ops, second run" "$build/bin/bench_ops" --backend cuda --json "$out/bench_2.jsonl" --no-check
    cat "$out/bench.log"
}

service() {
    step service "service latency and throughput" tests/gpu/service.sh "$build" cuda
    cat "$out/service.log"
}

examples() {
    step examples "in_process on cuda" "$build/tests/in_process" cuda
    if python3 -c 'import torch' 2>/dev/null; then
        step examples "in_process_torch" python3 tests/examples/in_process_torch.py \
            --library "$build/lib/libroped_kernels.so"
    fi
    cat "$out/examples.log"
}

huge() {
    step huge "more than 2^31 elements" "$build/tests/test_huge" cuda
}

# a packed build brings its libraries; theirs are found only by this
if ldd "$build/bin/ropectl" | grep -q 'not found'; then
    export LD_LIBRARY_PATH=$PWD/$build/lib
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee -a "$summary"
for part in $parts; do
    $part
done
echo "---"
cat "$summary"
exit "$failed"
