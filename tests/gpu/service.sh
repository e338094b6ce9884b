#!/usr/bin/env bash
# Latency and throughput of the daemon over loopback: small calls beside an
# empty request, 64 MiB of rope with its stages split, the same with uploads
# while the body arrives and without, and resident calls on one device against
# several.
#   tests/gpu/service.sh BUILD_DIR [cpu|cuda] [DEVICES]
# DEVICES (default 0,1 where there are two GPUs): the several; 0,1,2,3. The
# script fails where they do less than 95 % of what as many single ones would.
# TOKENS makes the large calls smaller: 6553 are 64 MiB.
set -eu
build=${1:?usage: service.sh BUILD_DIR [cpu|cuda] [DEVICES]}
backend=${2:-cpu}
devices=${3:-}
tokens=${TOKENS:-}
port_file=$(mktemp -u /tmp/roped_service.XXXXXX)
pids=()
# shellcheck disable=SC2317 # the trap calls it
stop() {
    local pid
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    pids=()
}
trap stop EXIT

# start FLAG...: starts a daemon and leaves its port in $port, and in
# $ready_ms how long it took until it was ready
start() {
    local began=${EPOCHREALTIME/./}
    "$build/bin/roped" --listen 127.0.0.1:0 --port-file "$port_file" --backend "$backend" \
        --log_level warn "$@" &
    pids+=($!)
    for _ in $(seq 3000); do
        [ -s "$port_file" ] && break
        sleep 0.01
    done
    port=$(cat "$port_file")
    rm -f "$port_file"
    for _ in $(seq 3000); do
        "$build/bin/ropectl" --server "http://127.0.0.1:$port" status >/dev/null && break
        sleep 0.01
    done
    ready_ms=$(((${EPOCHREALTIME/./} - began) / 1000))
}
bench() { "$build/bin/ropectl" --server "http://127.0.0.1:$port" bench "$@"; }
service() { "$build/bin/bench_service" "$@" ${tokens:+--tokens "$tokens"}; }

start --devices 0
one=$port
echo "== from start to ready: $ready_ms ms, $backend"
echo "== an empty request and small calls in turn, $backend"
service small "$one" --seconds 3
echo "== rope bf16 4 tokens, 8 connections, $backend"
bench rope n=4 --seconds 2 --connections 8
echo "== rope bf16 ${tokens:-6553} tokens, $backend"
bench rope "n=${tokens:-6553}" --seconds 4
"$build/bin/ropectl" --server "http://127.0.0.1:$one" status

stop

start --devices 0 --stage_bytes 0
one=$port
start --devices 0
echo "== rope bf16 ${tokens:-6553} tokens: first --stage_bytes 0, second as it is by default, $backend"
service large "$one" "$port" --seconds 5
stop

if [ -z "$devices" ] && [ "$backend" = cuda ] && [ "$(nvidia-smi -L | wc -l)" -ge 2 ]; then
    devices=0,1
fi
if [ -z "$devices" ]; then
    echo "== one device against several: skipped, there is one"
    exit 0
fi
n=$(tr ',' '\n' <<<"$devices" | wc -l)
least=$(awk "BEGIN { print 0.95 * $n }")
start --devices 0
one=$port
start --devices "$devices"
echo "== rope of resident tensors: --devices 0, then --devices $devices, at least $least times, $backend"
service scale "$one" "$port" --seconds 9 --least "$least"
