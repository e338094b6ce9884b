#!/usr/bin/env bash
# Builds the image of deploy/Dockerfile and runs it as a cluster would: some uid,
# nothing writable, no capability, a network of its own. The base is a fresh
# Debian under the name that the file asks for.
#   image.sh SOURCE_DIR BUILD_DIR        both variants without CUDA
#   image.sh SOURCE_DIR BUILD_DIR cuda   with CUDA: that Debian has this
#                                        machine's toolkit
#   image.sh SOURCE_DIR BUILD_DIR arm64  both for aarch64: QEMU runs what is
#                                        built, but for the compiler
#   ROPED_TEST_ARCHITECTURES=            code for every GPU; default 90-virtual
# Images stay in BUILD_DIR/image*. Exit 77: skipped, with a line that says why.
set -eu
source=$1 build=$2 kind=${3:-cpu} work=$2/image debian=$2/debian
architecture=$(dpkg --print-architecture)
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../arm/cross.sh"
. "$here/../venv.sh"
skip() { echo "skipped: $*"; exit 77; }
for tool in buildah curl ip nsenter setpriv unshare; do
    command -v "$tool" >/dev/null || skip "no $tool"
done
if [ "$kind" = cuda ]; then
    . "$source/deploy/environment.sh"
    toolkit=$(cuda_toolkit) || skip "no nvcc that says where its toolkit is"
    architectures=${ROPED_TEST_ARCHITECTURES-90-virtual}
fi
if [ "$kind" = arm64 ] && [ "$architecture" != arm64 ]; then
    architecture=arm64 work=$work-arm64 debian=$debian-arm64 cross=$build/gcc-arm64
fi
"$here/debian.sh" "$debian" bookworm "$architecture" || exit
mkdir -p "$work"
said=$work/said.log
export TMPDIR=$work/tmp
rm -rf --one-file-system "$TMPDIR"
mkdir -p "$TMPDIR"
pid=
# shellcheck disable=SC2317 # a trap calls it
clean() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    engine umount -a >/dev/null 2>&1 || true
    engine rm -a >/dev/null 2>&1 || true
}
trap clean EXIT

check() { # check WHAT COMMAND... : what it says is shown where it fails
    "${@:2}" >"$said" 2>&1 || { tail -n 40 "$said"; echo "FAILED $1"; exit 1; }
    echo "ok     $1"
}
is() { [ "$1" = "$2" ] || { echo "found: $1"; echo "expected: $2"; return 1; }; }

driver=overlay
engine() { buildah --root "$work/store" --runroot "$work/run" --storage-driver "$driver" "$@"; }
engine info >/dev/null 2>&1 || driver=vfs

# ------------------------------------------------------------------- the base
slim=docker.io/library/debian:bookworm-slim
compiler=localhost/compiler
make_slim() {
    local container
    container=$(engine from --arch "$architecture" scratch)
    engine add "$container" "$debian" /
    engine commit --rm "$container" "$slim"
}
# What this machine has compiled is not compiled again: what decides is the
# compiler, the source and the locale, not where they lie.
make_compiler() {
    local container name
    container=$(engine from "$slim")
    engine run --isolation chroot "$container" -- bash -ec "apt-get -q update
        apt-get -q install -y --no-install-recommends ccache"
    for name in LANG LC_ALL LC_CTYPE LC_MESSAGES; do
        [ -z "${!name+set}" ] || engine config --env "$name=${!name}" "$container"
    done
    engine config --env CCACHE_MAXSIZE=0 "$container"
    engine commit --rm "$container" "$compiler"
}
make_cross_compiler() {
    local container
    [ -e "$cross/.complete" ] || fetch_compiler "$cross" bookworm 12 || return
    container=$(engine from --arch "$architecture" "$slim")
    put_compiler "$(engine mount "$container")" 12 12
    engine commit --rm "$container" "$compiler"
}
# The toolkit is mounted, not copied; its version is what layers are known by.
# nvcc optimises and assembles only what is for every GPU, as an image to use is:
# here nothing runs on a GPU.
make_devel() {
    local container
    container=$(engine from "$from")
    if [ -n "$architectures" ] && nvcc --help | grep -q -e --Ofast-compile; then
        engine config --env CUDAFLAGS=--Ofast-compile=max "$container"
    fi
    engine config --env "CUDA_VERSION=$(nvcc --version | sed -n 's/.* V//p')" \
        --env PATH=/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    engine commit --rm "$container" "docker.io/$(sed -n 's/^ARG BUILD_IMAGE=//p' "$source/deploy/Dockerfile")"
}
has() { engine images --quiet "$1" >/dev/null 2>&1; }
has "$slim" || check "a base" make_slim
from=$slim
# whom this machine trusts, where it is behind a proxy of its own
mounts=(-v /usr/local/share/ca-certificates:/usr/local/share/ca-certificates:ro)
if [ -n "${cross:-}" ]; then
    has "$compiler" || check "a compiler that is not emulated" make_cross_compiler
    from=$compiler
    mounts+=(-v "$cross:/cross:ro")
elif command -v ccache >/dev/null; then
    has "$compiler" || check "a compiler with this machine's cache" make_compiler
    from=$compiler
    cache=$(ccache -k cache_dir)
    mkdir -p "$cache"
    mounts+=(-v "$cache:/root/.cache/ccache")
fi

# ----------------------------------------------------------------- the variants
megabytes() { # what a registry would keep of an image
    rm -rf "$work/pushed"
    engine push -q "$1" "oci:$work/pushed" >/dev/null
    du -sb --apparent-size "$work/pushed/blobs" | awk '{ printf "%.1f", $1 / 1e6 }'
}
limit() { # limit IMAGE MB
    size=$(megabytes "$1")
    echo "$size MB, expected at most $2"
    awk -v a="$size" -v b="$2" 'BEGIN { exit a > b }'
}
setting() { engine inspect --type image --format "$2" "$1"; }

# start IMAGE: its entry point, as uid 54321, in namespaces of its own. pid is the
# daemon, keeper who waits for it.
start() {
    local root
    container=$(engine from --arch "$architecture" "$1")
    root=$(engine mount "$container")
    mkdir -p "$root/proc"
    mapfile -t environment < <(setting "$1" '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' | grep .)
    mapfile -t entry < <(setting "$1" '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}' | grep .)
    since=$(date +%s%N)
    # shellcheck disable=SC2016 # the other shell's
    unshare --mount --net bash -ec '
        ip link set lo up
        mount --bind "$1" "$1"
        mount -o remount,bind,ro "$1"
        shift
        exec "$@"' _ "$root" env -i "${environment[@]}" setpriv --no-new-privs \
        unshare --pid --fork --kill-child --root "$root" --mount-proc=/proc \
        --setgid 54321 --setuid 54321 "${entry[@]}" 2>"$work/daemon.log" &
    keeper=$!
    pid=
    for _ in $(seq 200); do
        pid=$(pgrep -P "$keeper" -f "${entry[0]}" || true)
        [ -n "$pid" ] && inside_get /v2/health/ready >/dev/null 2>&1 && break
        sleep 0.02
    done
    ready_ms=$((($(date +%s%N) - since) / 1000000))
}
inside_get() { nsenter -t "$pid" -n curl -sS --fail-with-body --max-time 10 "http://127.0.0.1:8000$1" "${@:2}"; }
healthy() { # healthy SETTING... : beside those of the image
    env -i "${environment[@]}" "$@" nsenter -t "$pid" -m -n -p -r -S 54321 -G 54321 \
        "${entry[0]}" --healthcheck
}
unprivileged() {
    is "$(awk '/^Uid|^Gid/ { print $2, $3, $4, $5 }' "/proc/$pid/status" | sort -u)" "54321 54321 54321 54321" &&
        is "$(awk '/^Cap(Inh|Prm|Eff|Amb)/ { print $2 }' "/proc/$pid/status" | sort -u)" 0000000000000000 &&
        is "$(awk '/^NoNewPrivs/ { print $2 }' "/proc/$pid/status")" 1 &&
        ! touch "/proc/$pid/root/written"
}
answers() {
    is "$(inside_get /v2/models/rmsnorm/infer -d '{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[3,4]}]}' |
        sed 's/.*"data":\[\([^]]*\)\].*/\1/')" "0.8485281,1.1313708"
}
drains() {
    kill -TERM "$pid"
    pid=
    wait "$keeper" || { cat "$work/daemon.log"; return 1; }
    grep -q 'event=bye\|event=stopped\|event=exit' "$work/daemon.log" || { cat "$work/daemon.log"; return 1; }
}

try_image() { # try_image NAME MB ARGUMENT...: those of the build
    local image=localhost/roped:$1 root
    check "$1: builds" engine bud --isolation chroot --format docker --layers \
        --arch "$architecture" "${mounts[@]}" "${@:3}" --build-arg REVISION=0123abc \
        --build-arg SOURCE=https://example.org/roped \
        -f "$source/deploy/Dockerfile" -t "$image" "$source"
    check "$1: for $architecture" is "$(setting "$image" '{{.OCIv1.Architecture}}')" "$architecture"
    check "$1: small enough" limit "$image" "$2"
    check "$1: labels" is "$(setting "$image" '{{with .OCIv1.Config.Labels}}{{index . "org.opencontainers.image.version"}} {{index . "org.opencontainers.image.revision"}} {{index . "org.opencontainers.image.source"}} {{index . "org.opencontainers.image.licenses"}}{{end}}')" \
        "$("$build/bin/roped" --version | sed 's/.* //') 0123abc https://example.org/roped Apache-2.0"
    check "$1: no name for a user, a health check, SIGTERM" is \
        "$(setting "$image" '{{.Docker.Config.User}} {{.Docker.Config.Healthcheck.Test}} {{.Docker.Config.StopSignal}}')" \
        "10001:10001 [CMD /usr/local/bin/roped --healthcheck] SIGTERM"
    start "$image"
    check "$1: ready" test -n "$pid"
    check "$1: any uid, no capability, nothing to write to" unprivileged
    check "$1: its health check passes" healthy
    # no /etc/hosts has to know a name for 0.0.0.0
    check "$1: also at the address for clients" healthy ROPED_ADMIN_LISTEN=
    check "$1: a call is answered right" answers
    check "$1: metrics" inside_get /metrics
    check "$1: SIGTERM drains, exit 0" drains
    root=$(engine mount "$container")
    cp "$root/usr/local/share/doc/roped/sbom.spdx.json" "$work/$1.spdx.json"
    cp "$root/usr/local/bin/roped" "$work/$1.roped"
    check "$1: the bill of materials is valid SPDX" "$work/venv/bin/pyspdxtools" -i "$work/$1.spdx.json"
    check "$1: and has every package, and the daemon" bill "$work/$1.spdx.json" "$root"
    check "$1: nothing of what it was built with" no_tools "$root"
    echo "       $1: $size MB compressed, ready in $ready_ms ms"
    engine umount "$container" >/dev/null
    engine rm "$container" >/dev/null
}
no_tools() { # but for the folders that they were mounted on
    ! find "$1" -xdev -type f \( -name gcc -o -name ninja -o -name 'nvcc*' -o -name 'libcud*' -o -path '*/ccache/*' \) | grep .
}
bill() { # every library that the daemon links is of a package there
    python3 - "$@" "$("$build/bin/roped" --version | sed 's/.* //')" <<'PYTHON'
import glob, hashlib, json, sys

bill, root, version = json.load(open(sys.argv[1])), *sys.argv[2:]
versions = {p["name"]: p["versionInfo"] for p in bill["packages"]}
wanted = {"libc6", "libgnutls30", "libmicrohttpd12", "libcjson1", "zlib1g"}
assert wanted <= versions.keys(), wanted - versions.keys()
assert versions.pop("roped") == version
for name in versions:
    assert versions[name] and glob.glob(f"{root}/usr/share/doc/{name}/copyright"), name
digest = hashlib.sha256(open(f"{root}/usr/local/bin/roped", "rb").read()).hexdigest()
daemon, = (f for f in bill["files"] if f["fileName"] == "usr/local/bin/roped")
assert {"algorithm": "SHA256", "checksumValue": digest} in daemon["checksums"], daemon
PYTHON
}
make_validator() {
    python3 -m venv "$work/venv"
    install_into "$work/venv/bin/python" spdx-tools==0.8.5
}
[ -x "$work/venv/bin/pyspdxtools" ] || check "a validator of SPDX" make_validator

says_why() { grep 'event=backend name=cpu reason="no usable GPU: no CUDA device: no NVIDIA driver' "$work/daemon.log"; }
# Two sources again at another time, without a cache: the same program. Of those
# with kernels one that is compiled in seconds.
built_again() {
    local again=localhost/roped:build
    engine bud --isolation chroot --format docker --layers "${mounts[@]}" "$@" --target build \
        -f "$source/deploy/Dockerfile" -t "$again" "$source"
    again=$(engine from "$again")
    engine run --isolation chroot "${mounts[@]}" --env CCACHE_DISABLE=1 "$again" -- bash -ec '
        cd build/release
        rm bin/roped kernels/cuda/CMakeFiles/roped_cuda.dir/{table,act_and_mul}.cu.o
        ninja roped
        strip bin/roped'
    cmp "$(engine mount "$again")/src/build/release/bin/roped" "$work/cuda.roped"
}
if [ "$kind" = cuda ]; then
    check "a base with this machine's toolkit" make_devel
    mounts+=(-v "$toolkit:/usr/local/cuda:ro")
    try_image cuda 90 --build-arg "CUDA_ARCHITECTURES=$architectures"
    check "cuda: said why it serves with the CPU" says_why
    check "cuda: built again it has the same bytes" built_again --build-arg "CUDA_ARCHITECTURES=$architectures"
    exit
fi
try_image slim 60 --build-arg "BUILD_IMAGE=$from"
try_image bare 30 --build-arg "BUILD_IMAGE=$from" --build-arg VARIANT=bare
check "both have one daemon" cmp "$work/slim.roped" "$work/bare.roped"
[ "$kind" != arm64 ] || exit 0

# Elsewhere, at another time, under another root: the same bytes, from the same
# compiler and the same sources.
compiler_of() { readelf -p .comment "$1" | grep -o 'GCC:.*' | sort -u; }
strip -o "$work/here.roped" "$build/bin/roped"
if grep -q '^ROPED_CUDA:.*=OFF$' "$build/CMakeCache.txt" &&
    [ "$(compiler_of "$work/here.roped")" = "$(compiler_of "$work/bare.roped")" ]; then
    check "the same bytes as the build in $build" cmp "$work/here.roped" "$work/bare.roped"
else
    echo "another compiler, or CUDA: not compared with the build in $build"
fi
