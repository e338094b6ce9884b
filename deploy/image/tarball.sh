#!/usr/bin/env bash
# A tarball that runs wherever the C library is not older than this system's: the
# programs, and in lib/ every library that they link but that C library, with their
# licences. Nobody needs to say where it was unpacked.
#   tarball.sh SOURCE BUILD NAME DIST   -> DIST/NAME.tar.gz
# On Debian and Ubuntu. SOURCE_DATE_EPOCH is the time of its files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$1 build=$2 name=$3 dist=$4 root=$2/$3
. "$here/libraries.sh"

# A program's rpath, unlike its runpath, is for the libraries of its libraries too.
own="-Wl,--disable-new-dtags"
cmake -G Ninja --preset package -S "$source" -B "$build" -DROPED_CUDA=OFF -DROPED_PACKAGE=OFF \
    -DCMAKE_INSTALL_PREFIX=/opt/roped -DCMAKE_INSTALL_SYSCONFDIR=/opt/roped/etc -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_INSTALL_RPATH="\$ORIGIN/../lib" \
    -DCMAKE_EXE_LINKER_FLAGS="$own" -DCMAKE_SHARED_LINKER_FLAGS="$own"
ninja -C "$build"
rm -rf "$root" "$build/stage"
DESTDIR=$build/stage cmake --install "$build" --strip
mv "$build/stage/opt/roped" "$root"

mapfile -t libraries < <(libraries_of "$root"/bin/* "$root"/lib/*.so | grep -v "^$root/")
for library in "${libraries[@]}"; do
    package=$(owner "$library")
    package=${package%:*}
    [ "$package" != libc6 ] || continue
    cp -L "$library" "$root/lib"
    mkdir -p "$root/share/doc/$package"
    cp -L "/usr/share/doc/$package/copyright" "$root/share/doc/$package"
done
tar -C "$build" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$(date +%s)}" \
    -c "$name" | gzip -9n >"$dist/$name.tar.gz"
