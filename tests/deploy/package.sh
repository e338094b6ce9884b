#!/usr/bin/env bash
# Makes the packages, and in a fresh Debian 12 and 13 installs, starts, asks and
# purges them, and has lintian judge them: those of an older system are for newer
# ones too, and are judged once, by the newest.
#   package.sh SOURCE_DIR BUILD_DIR [DIST]   those in DIST, made before
# Exit 77: skipped.
set -eu
# beside BUILD_DIR, as deep as that: ccache knows sources by their paths from there
source=$1 build=$2 work=$2-package dist=${3:-$2-package} here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/deploy/bare.sh
. "$here/bare.sh"
"$here/debian.sh" "$build/debian" || exit
"$here/debian.sh" "$build/debian13" trixie || exit
mkdir -p "$work"

if [ -z "${3:-}" ]; then
    for tool in dpkg-shlibdeps cpack; do
        command -v "$tool" >/dev/null || skip "no $tool"
    done
    rm -f "$work"/*.deb
    check "builds" bash -c "cmake --preset package -DROPED_CUDA=OFF -S '$source' -B '$work' -G Ninja \
        -DCMAKE_C_COMPILER_LAUNCHER=$(command -v ccache || true) && ninja -C '$work'"
    check "packs" bash -c "cd '$work' && cpack"
fi

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
for package in "$dist"/*.deb; do
    rm -rf "$work/unpacked"
    dpkg-deb -x "$package" "$work/unpacked"
    for file in "$work"/unpacked/usr/{bin/*,lib/*/lib*.so.*.*}; do
        [ -e "$file" ] || continue
        check "${package##*/}: ${file##*/} is hardened" hardened "$file"
        case $file in */lib/*) check "and exports nothing else" exports_its_own "$file" ;; esac
    done
done

try_packages() { # try_packages WHERE
    check "$1: install" inside "apt-get -q update && apt-get -q install -y --no-install-recommends /dist/*.deb"
    check "$1: the service is enabled" inside "test -L /etc/systemd/system/multi-user.target.wants/roped.service"
    check "$1: starts, answers and stops" answers /usr /etc/roped.conf
    check "$1: libraries are found" inside "ldconfig -p | grep libroped_client.so.0"
    check "$1: an edited roped.conf is kept" inside "echo 'lanes = 3' >>/etc/roped.conf
        dpkg -i /dist/roped_*.deb && grep 'lanes = 3' /etc/roped.conf && roped --config /etc/roped.conf --check-config | grep 'lanes = 3'"
    check "$1: purge leaves nothing" inside "apt-get -q purge -y roped libroped0 libroped-dev
        ! find / -xdev -path /dist -prune -o -path /tmp -prune -o -path /proc -prune -o -path '*/cache/*' -prune -o -name '*roped*' -print | grep ."
}
judge_packages() { # judge_packages WHERE
    check "$1: lintian has nothing against them" inside "apt-get -q install -y --no-install-recommends lintian
        lintian --allow-root --fail-on error,warning /dist/*.deb"
}

# Those for this Debian alone, where there are some. What was linked with a newer C
# library than a system has is not for that.
libc=$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)
for debian in "12 2.36 debian" "13 2.41 debian13"; do
    read -r version its_libc dir <<<"$debian"
    packages=("$dist"/*"+deb${version}_"*.deb) is_judged=1
    if [ ! -e "${packages[0]}" ]; then
        packages=("$dist"/*.deb)
        [ "$version" = 13 ] || is_judged=
        if ! printf '%s\n' "$libc" "$its_libc" | sort -CV; then
            echo "Debian $version: not tried, it is older than this system"
            continue
        fi
    fi
    enter "$build/$dir" "${packages[@]}"
    try_packages "Debian $version"
    [ -z "$is_judged" ] || judge_packages "Debian $version"
    remove_root
done
