#!/usr/bin/env bash
# Installs the client into a folder of its own and builds consumer.c against
# it, as C and as C++, by pkg-config and by find_package.
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

"$cmake" --install "$build" --prefix "$work/first" --component client >/dev/null
mv "$work/first" "$work/prefix" # where it lies is nowhere written down
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name roped_client.pc)")
export PKG_CONFIG_PATH
lib=$(find "$work/prefix" -name libroped_client.so -printf '%h')
cp "$here/consumer.c" "$work/consumer.cc"

check() { # check WHAT COMMAND...: both compiled and run
    "${@:2}" || { echo "FAILED $1"; exit 1; }
    echo "ok     $1"
}
read -ra flags < <(pkg-config --cflags --libs roped_client)
# shellcheck disable=SC2086
check "compiles as C11" cc -std=c11 $strict "$here/consumer.c" -o "$work/c" "${flags[@]}"
# shellcheck disable=SC2086
check "compiles as C++11" c++ -std=c++11 $strict "$work/consumer.cc" -o "$work/cc" "${flags[@]}"
check "runs in C" env LD_LIBRARY_PATH="$lib" "$work/c"
check "runs in C++" env LD_LIBRARY_PATH="$lib" "$work/cc"
check "ropectl runs from there" "$work/prefix/bin/ropectl" --version

cat >"$work/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.24)
project(consumer LANGUAGES CXX)
find_package(roped 0.1 REQUIRED)
add_executable(found consumer.cc)
target_link_libraries(found PRIVATE roped::client)
PROJECT
check "find_package finds it" "$cmake" -S "$work" -B "$work/build" \
    -DCMAKE_PREFIX_PATH="$work/prefix" --log-level=ERROR
check "builds by CMake" "$cmake" --build "$work/build"
check "runs as built by CMake" "$work/build/found"

soname=$(readelf -d "$lib/libroped_client.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
check "has a soname" test "$soname" = libroped_client.so.0
foreign=$(readelf --dyn-syms -W "$lib/libroped_client.so" |
    awk '$5 == "GLOBAL" && $7 != "UND" && $8 !~ /^roped_/ { print $8 }')
check "exports nothing else: $foreign" test -z "$foreign"
