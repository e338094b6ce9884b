#!/usr/bin/env bash
# Makes the packages, has lintian judge them, and installs, starts, asks and
# purges them in a fresh Debian 12.
#   package.sh SOURCE_DIR BUILD_DIR
# Exit 77: skipped.
set -eu
source=$1 debian=$2/debian work=$2/package
skip() { echo "skipped: $*"; exit 77; }
for tool in lintian dpkg-shlibdeps cpack; do
    command -v "$tool" >/dev/null || skip "no $tool"
done
"$(dirname "$0")/debian.sh" "$debian" || exit
mkdir -p "$work"
rm -f "$work"/*.deb
check() { # check WHAT COMMAND... : what it says is shown where it fails
    "${@:2}" >"$work/said" 2>&1 || { cat "$work/said"; echo "FAILED $1"; exit 1; }
    echo "ok     $1"
}

check "builds" bash -c "cmake --preset package -DROPED_CUDA=OFF -S '$source' -B '$work' -G Ninja \
    -DCMAKE_C_COMPILER_LAUNCHER=$(command -v ccache || true) && ninja -C '$work'"
check "packs" bash -c "cd '$work' && cpack"
check "lintian has nothing against them" lintian --allow-root --fail-on error,warning "$work"/*.deb

root=$(mktemp -d)
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
cp -a "$debian/." "$root"
cp "$work"/*.deb "$root/tmp"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive bash -ec "$1"; }

check "install" inside "apt-get -q update && apt-get -q install -y --no-install-recommends /tmp/*roped*.deb"
check "the service is enabled" inside "test -L /etc/systemd/system/multi-user.target.wants/roped.service"
check "starts, answers and stops" inside '
    roped --config /etc/roped.conf --listen 127.0.0.1:0 --port_file /tmp/port 2>/tmp/log &
    for i in $(seq 100); do [ -s /tmp/port ] && break; sleep 0.1; done
    export ROPED_URL=http://127.0.0.1:$(cat /tmp/port)
    ropectl status
    ropectl bench rmsnorm rows=4 --seconds 0.1
    kill $! && wait $!'
check "libraries are found" inside "ldconfig -p | grep libroped_client.so.0"
check "an edited roped.conf is kept" inside "echo 'lanes = 3' >>/etc/roped.conf
    dpkg -i /tmp/roped_*.deb && grep 'lanes = 3' /etc/roped.conf && roped --config /etc/roped.conf --check-config | grep 'lanes = 3'"
check "purge leaves nothing" inside "apt-get -q purge -y roped libroped0 libroped-dev
    ! find / -xdev -path /tmp -prune -o -path /proc -prune -o -path '*/cache/*' -prune -o -name '*roped*' -print | grep ."
