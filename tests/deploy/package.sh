#!/usr/bin/env bash
# Makes the packages, and in a fresh Debian 12 and 13 installs, starts, asks and
# purges them, and has lintian judge them: those of an older system are for newer
# ones too.
#   package.sh SOURCE_DIR BUILD_DIR
# Exit 77: skipped.
set -eu
source=$1 build=$2 work=$2/package here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: $*"; exit 77; }
for tool in dpkg-shlibdeps cpack; do
    command -v "$tool" >/dev/null || skip "no $tool"
done
"$here/debian.sh" "$build/debian" || exit
"$here/debian.sh" "$build/debian13" trixie || exit
mkdir -p "$work"
rm -f "$work"/*.deb
check() { # check WHAT COMMAND... : what it says is shown where it fails
    "${@:2}" >"$work/said" 2>&1 || { cat "$work/said"; echo "FAILED $1"; exit 1; }
    echo "ok     $1"
}

check "builds" bash -c "cmake --preset package -DROPED_CUDA=OFF -S '$source' -B '$work' -G Ninja \
    -DCMAKE_C_COMPILER_LAUNCHER=$(command -v ccache || true) && ninja -C '$work'"
check "packs" bash -c "cd '$work' && cpack"

# What Debian wants of programs that read what strangers send, and nothing but
# roped's own names for programs that link a library
has() { grep -q -- "$2" <<<"$1" || { echo "no $2"; return 1; }; }
hardened() { # hardened FILE
    local head dynamic symbols
    head=$(readelf -hlW "$1") dynamic=$(readelf -dW "$1") symbols=$(readelf --dyn-syms -W "$1")
    has "$head" "Type: *DYN" && has "$head" GNU_RELRO && has "$dynamic" BIND_NOW &&
        has "$symbols" __stack_chk_fail && has "$symbols" "__[a-z]*_chk@GLIBC"
}
exports_its_own() { # exports_its_own LIBRARY
    ! readelf --dyn-syms -W "$1" |
        awk '$1 ~ /^[0-9]+:$/ && $5 != "LOCAL" && $7 != "UND" && $8 !~ /^roped_/ { print $8 }' | grep .
}
rm -rf "$work/unpacked"
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
for file in "$work"/unpacked/usr/bin/*; do
    check "${file##*/} is hardened" hardened "$file"
done
for file in "$work"/unpacked/usr/lib/*/lib*.so.*.*; do
    check "${file##*/} is hardened" hardened "$file"
    check "${file##*/} exports nothing else" exports_its_own "$file"
done

root=
remove_root() {
    [ -n "$root" ] || return 0
    umount "$root/proc" 2>/dev/null || true
    rm -rf --one-file-system "$root"
    root=
}
trap remove_root EXIT
enter() { # enter DIR: 'inside' is in a copy of it
    root=$(mktemp -d)
    cp -a "$1/." "$root"
    cp "$work"/*.deb "$root/tmp"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    mount -t proc proc "$root/proc"
}
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive bash -ec "$1"; }

try_packages() { # try_packages WHERE
    check "$1: install" inside "apt-get -q update && apt-get -q install -y --no-install-recommends /tmp/*roped*.deb"
    check "$1: the service is enabled" inside "test -L /etc/systemd/system/multi-user.target.wants/roped.service"
    check "$1: starts, answers and stops" inside '
        roped --config /etc/roped.conf --listen 127.0.0.1:0 --port_file /tmp/port 2>/tmp/log &
        for i in $(seq 100); do [ -s /tmp/port ] && break; sleep 0.1; done
        export ROPED_URL=http://127.0.0.1:$(cat /tmp/port)
        ropectl status
        ropectl bench rmsnorm rows=4 --seconds 0.1
        kill $! && wait $!'
    check "$1: libraries are found" inside "ldconfig -p | grep libroped_client.so.0"
    check "$1: an edited roped.conf is kept" inside "echo 'lanes = 3' >>/etc/roped.conf
        dpkg -i /tmp/roped_*.deb && grep 'lanes = 3' /etc/roped.conf && roped --config /etc/roped.conf --check-config | grep 'lanes = 3'"
    check "$1: purge leaves nothing" inside "apt-get -q purge -y roped libroped0 libroped-dev
        ! find / -xdev -path /tmp -prune -o -path /proc -prune -o -path '*/cache/*' -prune -o -name '*roped*' -print | grep ."
    check "$1: lintian has nothing against them" inside "apt-get -q install -y --no-install-recommends lintian
        lintian --allow-root --fail-on error,warning /tmp/*roped*.deb"
}

# what was linked with a newer C library than a system has is not for that
libc=$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)
for debian in "12 2.36 debian" "13 2.41 debian13"; do
    read -r version its_libc dir <<<"$debian"
    if ! printf '%s\n' "$libc" "$its_libc" | sort -CV; then
        echo "Debian $version: not tried, it is older than this system"
        continue
    fi
    enter "$build/$dir"
    try_packages "Debian $version"
    remove_root
done
