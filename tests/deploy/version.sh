#!/usr/bin/env bash
# The version number stands in CMakeLists.txt, and what a change of it touches is
# named here: nothing else has it as a number of its own.
#   version.sh [VERSION]          the files; VERSION: it is this one
#   version.sh --build BUILD_DIR  also what the programs and libraries there say
set -u
cd "$(dirname "$0")/../.." || exit 1
version=$(sed -n 's/^project(roped VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
# shellcheck source=tests/deploy/equal.sh
. tests/deploy/equal.sh

check "CMakeLists.txt: three numbers" "$(grep -xE '[0-9]+\.[0-9]+\.[0-9]+' <<<"$version")" "$version"
check "CHANGELOG.md begins with it" "$(sed -n 's/^## \[\(.*\)\].*/\1/p' CHANGELOG.md | head -n 1)" "$version"
check "deploy/Dockerfile has it, for a label" "$(sed -n 's/^ARG VERSION=//p' deploy/Dockerfile)" "$version"
check "the Helm chart has it, twice" "$(sed -n 's/^\(version\|appVersion\): //p' deploy/helm/roped/Chart.yaml | tr '\n' ' ')" \
    "$version $version "
check "no other file has it" \
    "$(grep -rlIwF --exclude-dir={.git,build,dist,.cache} "$version" . | sort | tr '\n' ' ')" \
    "./CHANGELOG.md ./CMakeLists.txt ./deploy/Dockerfile ./deploy/helm/roped/Chart.yaml "
case ${1:-} in
"") ;;
--build)
    build=$2
    check "roped says it" "$("$build/bin/roped" --version)" "roped $version"
    check "ropectl says it" "$("$build/bin/ropectl" --version)" "ropectl $version"
    check "the libraries have it in their names" \
        "$(cd "$build/lib" && echo libroped_*.so.*.*)" "libroped_client.so.$version libroped_kernels.so.$version"
    check "pkg-config says it" \
        "$(find "$build" -name 'roped_*.pc' -exec sed -n 's/^Version: //p' {} + | sort -u)" "$version"
    check "find_package of CMake says it" \
        "$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/\1/p' "$build/roped-config-version.cmake")" "$version"
    ;;
*) check "the version that is released" "$1" "$version" ;;
esac
[ "$n_failed" -eq 0 ]
