#!/usr/bin/env bash
# The tarball of a release on a bare Debian 12 and 13, whose libraries but the C
# library it does not touch: starts, answers, and programs are built with it.
#   tarball.sh BUILD_DIR TARBALL
# Exit 77: skipped, with a line that says why.
set -eu
build=$1 tarball=$2 work=$1/tarball here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/deploy/bare.sh
. "$here/bare.sh"
"$here/debian.sh" "$build/debian" || exit
"$here/debian.sh" "$build/debian13" trixie || exit
mkdir -p "$work"

# a line of ldd per library: NAME => PATH (ADDRESS); /dist/roped is the folder
links_its_own() {
    inside 'for file in /dist/roped/bin/* /dist/roped/lib/libroped_*.so; do
        ldd "$file" | grep -vE "=> /dist/roped/|linux-vdso|/ld-linux|/lib(c|m|pthread|dl|rt|resolv)\.so\." &&
            { echo "of $file"; exit 1; }
    done; true'
}
for debian in "12 debian" "13 debian13"; do
    read -r version dir <<<"$debian"
    enter "$build/$dir" "$tarball" "$here/client_consumer.c"
    check "Debian $version: unpacks" inside "mkdir /dist/roped && tar -xf /dist/${tarball##*/} -C /dist/roped --strip-components=1"
    check "Debian $version: every library but the C library is its own" links_its_own
    check "Debian $version: starts, answers and stops" answers /dist/roped /dist/roped/etc/roped.conf
    check "Debian $version: has a compiler" apt gcc libc6-dev pkg-config
    check "Debian $version: a program links it" inside 'cd /tmp
        export PKG_CONFIG_PATH=/dist/roped/lib/pkgconfig
        gcc /dist/client_consumer.c -o consumer $(pkg-config --cflags --libs roped_client) -Wl,-rpath,/dist/roped/lib
        ./consumer'
    remove_root
done
