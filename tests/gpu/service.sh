#!/usr/bin/env bash
# Latency and throughput of the daemon over loopback, one connection: a small
# call and a 64 MiB one of rope (bf16, 32+8 heads x 128), stages split.
#   tests/gpu/service.sh BUILD_DIR [cpu|cuda]
set -eu
build=${1:?usage: service.sh BUILD_DIR [cpu|cuda]}
backend=${2:-cpu}
port_file=$(mktemp -u /tmp/roped_service.XXXXXX)
"$build/bin/roped" --listen 127.0.0.1:0 --port-file "$port_file" --backend "$backend" \
    --log_level warn &
pid=$!
trap 'kill $pid 2>/dev/null; wait $pid 2>/dev/null' EXIT
for _ in $(seq 600); do
    [ -s "$port_file" ] && break
    sleep 0.05
done
server=http://127.0.0.1:$(cat "$port_file")
rm -f "$port_file"
bench() { "$build/bin/ropectl" --server "$server" bench "$@"; }
echo "== rmsnorm bf16 1 x 64 (an almost empty call), $backend"
bench rmsnorm rows=1 h=64 --seconds 2
echo "== rope bf16 4 tokens, $backend"
bench rope n=4 --seconds 2
echo "== rope bf16 4 tokens, 8 connections, $backend"
bench rope n=4 --seconds 2 --connections 8
echo "== rope bf16 6553 tokens (64 MiB), $backend"
bench rope n=6553 --seconds 4
"$build/bin/ropectl" --server "$server" status
