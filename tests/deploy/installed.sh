#!/usr/bin/env bash
# Installs everything into a folder, moves it, and builds programs of someone
# else against it, as C and as C++, by pkg-config and by find_package.
#   installed.sh BUILD_DIR CMAKE
set -eu
build=$1 cmake=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for tool in cc c++ pkg-config readelf; do
    command -v "$tool" >/dev/null || { echo "skipped: no $tool"; exit 77; }
done
strict="-Wall -Wextra -Wpedantic -Werror"

"$cmake" --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix" # where it lies is nowhere written down
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name roped_client.pc)")
export PKG_CONFIG_PATH
lib=$(find "$work/prefix" -name libroped_client.so -printf '%h')

check() { # check WHAT COMMAND...
    "${@:2}" || { echo "FAILED $1"; exit 1; }
    echo "ok     $1"
}

for header in roped_client.h $(cd "$work/prefix/include" && echo roped/*.h); do
    echo "#include <$header>" >"$work/header.cc"
    # shellcheck disable=SC2086
    check "$header: alone, as C++11" c++ -std=c++11 $strict -fsyntax-only \
        -I "$work/prefix/include" "$work/header.cc"
done

for part in client kernels; do
    cp "$here/${part}_consumer.c" "$work/$part.cc"
    read -ra flags < <(pkg-config --cflags --libs roped_$part)
    # shellcheck disable=SC2086
    check "$part: compiles as C11" cc -std=c11 $strict "$here/${part}_consumer.c" \
        -o "$work/c" "${flags[@]}" -lm
    # shellcheck disable=SC2086
    check "$part: compiles as C++11" c++ -std=c++11 $strict "$work/$part.cc" \
        -o "$work/cc" "${flags[@]}"
    check "$part: runs in C" env LD_LIBRARY_PATH="$lib" "$work/c"
    check "$part: runs in C++" env LD_LIBRARY_PATH="$lib" "$work/cc"
    library=$lib/libroped_$part.so
    soname=$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
    check "$part: has a soname" test "$soname" = "libroped_$part.so.0"
    foreign=$(readelf --dyn-syms -W "$library" |
        awk '$5 == "GLOBAL" && $7 != "UND" && ($8 !~ /^roped_/ || $8 ~ /^roped_backend_/) { print $8 }')
    check "$part: exports nothing else: $foreign" test -z "$foreign"
done

cat >"$work/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.24)
project(consumer LANGUAGES CXX)
find_package(roped 0.1 REQUIRED COMPONENTS client kernels)
find_package(roped 0.1 QUIET COMPONENTS nonsense)
if(roped_FOUND)
  message(FATAL_ERROR "roped::nonsense was found")
endif()
foreach(part client kernels)
  add_executable(${part} ${part}.cc)
  target_link_libraries(${part} PRIVATE roped::${part})
endforeach()
PROJECT
check "find_package finds it" "$cmake" -G Ninja -S "$work" -B "$work/build" \
    -DCMAKE_PREFIX_PATH="$work/prefix" --log-level=ERROR
check "builds by CMake" "$cmake" --build "$work/build"
check "client: runs as built by CMake" "$work/build/client"
check "kernels: runs as built by CMake" "$work/build/kernels"

for program in roped ropectl; do
    check "$program runs from there" "$work/prefix/bin/$program" --version
done
for file in etc/roped.conf lib/systemd/system/roped.service share/doc/roped/LICENSE \
    share/man/man8/roped.8 share/man/man5/roped.conf.5 share/man/man1/ropectl.1; do
    check "has $file" test -s "$work/prefix/$file"
done
paths=$(for file in "$work"/prefix/bin/* "$lib"/*.so; do readelf -d "$file" | grep -E 'R(UN)?PATH'; done || true)
check "looks for libraries where the system does: $paths" test -z "$paths"
if command -v systemd-analyze >/dev/null; then
    sed "s|^ExecStart=[^ ]*|ExecStart=$work/prefix/bin/roped|" \
        "$work/prefix/lib/systemd/system/roped.service" >"$work/roped.service"
    check "systemd reads the unit" systemd-analyze verify --man=no "$work/roped.service"
    # exposure in tenths: 0 is closed, 100 open
    hardened() {
        systemd-analyze security --no-pager --offline=yes --threshold=25 \
            "$work/roped.service" >/dev/null
    }
    check "and it is hardened" hardened
fi
