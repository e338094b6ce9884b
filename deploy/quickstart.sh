#!/usr/bin/env bash
# From a fresh clone to an answer: installs what is missing, builds roped,
# starts it, rotates query and key heads of the shape of Llama 3.1 8B, checks
# the answer against float64, shows timings and metrics, and stops it again.
#   ROPED_NO_INSTALL=1 deploy/quickstart.sh     does not install packages
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/environment.sh

title() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() { # the command, then what it says
    printf '$ %s\n' "$*"
    "$@"
}

title "1. Install and build"
[ -n "${ROPED_NO_INSTALL:-}" ] || deploy/install-deps.sh build
choose_build
start=$SECONDS
build "$build_dir" "$build_flags" roped ropectl llama_case
echo "built roped and ropectl in $build_dir/bin ($((SECONDS - start)) s)"

title "2. Start the server on a free port of 127.0.0.1"
work=$(mktemp -d)
server=
stop() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" || true
    rm -rf "$work"
}
trap stop EXIT
"$build_dir/bin/roped" --listen 127.0.0.1:0 --port_file "$work/port" 2>"$work/log" &
server=$!
for ((i = 0; i < 600; i++)); do
    [ ! -s "$work/port" ] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
if [ ! -s "$work/port" ]; then
    cat "$work/log"
    exit 1
fi
url=http://127.0.0.1:$(cat "$work/port")
cat "$work/log"
show curl -sS "$url/v2/health/ready"
echo

title "3. Give it a model's rotary parameters: a Hugging Face config.json as it is"
cat >"$work/config.json" <<'JSON'
{
  "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
  "max_position_embeddings": 131072, "rope_theta": 500000.0,
  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
}
JSON
show curl -sS -X PUT --data-binary "@$work/config.json" "$url/v1/tables/llama-3.1"
echo

title "4. Rotate q [512, 32, 128] and k [512, 8, 128], positions 15,872 to 16,383"
"$build_dir/tests/llama_case" make "$work/in.safetensors"
for _ in 1 2 3; do # the first call warms up
    curl -sS -o "$work/out.safetensors" -D "$work/headers" -H 'Expect:' \
        --data-binary "@$work/in.safetensors" "$url/v1/rope?table=llama-3.1"
done
echo "$ curl --data-binary @in.safetensors -o out.safetensors '$url/v1/rope?table=llama-3.1'"
tr -d '\r' <"$work/headers" | grep -iE '^(HTTP|content-|server-timing)'
show "$build_dir/bin/ropectl" cat "$work/out.safetensors"
echo "against a rotation in float64:"
"$build_dir/tests/llama_case" check "$work/in.safetensors" "$work/out.safetensors"

title "5. What it says about itself"
curl -sS "$url/metrics" | grep -E '^roped_(requests_total|request_bytes_total|response_bytes_total|stage_duration_seconds_sum|tables).*"?rope"?[,}]' | grep -v ' 0$' || true
show "$build_dir/bin/ropectl" --server "$url" status

title "6. How fast"
show "$build_dir/bin/ropectl" --server "$url" bench rope n=512 --dtype bf16 --seconds 2

title "7. Stop it"
kill "$server"
status=0
wait "$server" || status=$?
server=
tail -n 2 "$work/log"
echo "ended with $status"
[ "$status" -eq 0 ]

cat <<EOF

Next:
  $build_dir/bin/roped                        # serves on 127.0.0.1:8000; --help lists every key
  export PATH="\$PWD/$build_dir/bin:\$PATH"   # so that ropectl has its name, in this shell; or for good:
  cmake --install $build_dir --prefix ~/.local # (packages: deploy/README.md)
  ropectl ops                                 # the operators
  ropectl describe rope                       # tensors, parameters, rules of one
  tests/run.sh                                # every test
EOF
