#!/usr/bin/env bash
# Latency and throughput of the daemon over loopback: how long it takes to
# start, small calls beside an empty request, 64 MiB of rope with its phases
# split, the same with uploads while the body arrives and without, and resident
# calls on one device against several.
#   tests/gpu/service.sh BUILD_DIR [cpu|cuda] [DEVICES]
# DEVICES (default 0,1 where there are two GPUs): the several; 0,1,2,3. The
# script fails where they do less than 95 % of what as many single ones would.
# QUICK=1: 4 MiB instead of 64, and few calls.
set -eu
build=${1:?usage: service.sh BUILD_DIR [cpu|cuda] [DEVICES]}
backend=${2:-cpu}
devices=${3:-}
tokens=6553 # 64 MiB
[ -n "${QUICK:-}" ] && tokens=409
port_file=$(mktemp -u /tmp/roped_service.XXXXXX)
ropectl() { "$build/bin/ropectl" --server "http://127.0.0.1:$(cat "$port_file")" "$@"; }
bench_http() { "$build/bin/bench_http" --backend "$backend" ${QUICK:+--quick} "$@"; }

began=${EPOCHREALTIME/./}
"$build/bin/roped" --listen 127.0.0.1:0 --port-file "$port_file" --backend "$backend" \
    --devices 0 --log_level warn &
daemon=$!
# shellcheck disable=SC2317 # the trap calls it
stop() {
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
    rm -f "$port_file"
}
trap stop EXIT
for _ in $(seq 6000); do
    [ -s "$port_file" ] && ropectl status >/dev/null && break
    sleep 0.01
done
echo "== from start to ready: $(((${EPOCHREALTIME/./} - began) / 1000)) ms, $backend"
echo "== rope bf16 4 tokens, 8 connections, $backend"
ropectl bench rope n=4 --seconds 2 --connections 8
echo "== rope bf16 $tokens tokens, $backend"
ropectl bench rope "n=$tokens" --seconds 4
ropectl status
stop

bench_http --section calls --max-bytes 65536
bench_http --section stage
if [ -z "$devices" ] && [ "$backend" = cuda ] && [ "$(nvidia-smi -L | wc -l)" -ge 2 ]; then
    devices=0,1
fi
bench_http --section scale --strict --runs 3 --seconds "${QUICK:-3}" ${devices:+--devices "$devices"}
