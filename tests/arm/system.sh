#!/usr/bin/env bash
# Both commands of README.md on a fresh Debian for aarch64, emulated by QEMU, from
# an x86-64 machine: a clone of what is committed here is built, started and
# tested. As root, with debootstrap and qemu-user-static; an hour.
#   tests/arm/system.sh [SUITE [GCC]]  default bookworm, and the suite's own GCC
#   QEMU_CPU=, ROPED_TEST_QUICK=       another processor; more random cases
# Programs run emulated, but for the compiler: under the native one's name lies
# x86-64's cross compiler of the same version, so that it takes minutes.
# The system stays in build/arm-SUITE. Exit 77: skipped, with a line that says why.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/arm/cross.sh
suite=${1:-bookworm}
work=$PWD/build/arm-$suite system=$work/system${2:-}
skip() {
    echo "skipped: $*"
    exit 77
}

case $suite in
bookworm) own=12 ;;
trixie) own=14 ;;
*) skip "$suite: bookworm and trixie are known" ;;
esac
gcc=${2:-$own}
[ "$(uname -m)" = x86_64 ] || skip "an x86-64 machine is needed"
cross=$work/gcc-$gcc
tests/deploy/debian.sh "$work/debian" "$suite" arm64 || exit
[ -e "$cross/.complete" ] || fetch_compiler "$cross" "$suite" "$gcc" >"$cross.log" 2>&1 ||
    skip "no cross compiler to be had: $(tail -n 1 "$cross.log")"

# -------------------------------------------------------------------- the system
rm -rf --one-file-system "$system"
cp -a --reflink=auto "$work/debian" "$system"
cp -L /etc/resolv.conf "$system/etc"
# whom this machine trusts, where it is behind a proxy of its own
if [ -d /usr/local/share/ca-certificates ]; then
    cp -r /usr/local/share/ca-certificates "$system/usr/local/share"
fi
git clone -q . "$system/root/roped"

put_compiler "$system" "$own" "$gcc"
echo force-unsafe-io >"$system/etc/dpkg/dpkg.cfg.d/unsafe" # as in images: sooner done

# inside COMMAND... : in the clone, with all that a booted system has mounted. What
# it leaves running ends with it.
inside() {
    # shellcheck disable=SC2016 # the other shell's
    unshare --mount --pid --fork --kill-child bash -euc '
        mount --bind "$2" "$1/cross"
        mount -t proc proc "$1/proc"
        mount --rbind /sys "$1/sys"
        mount --rbind /dev "$1/dev"
        mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
        cd "$1/root/roped"
        exec chroot "$1" env HOME=/root TMPDIR=/tmp \
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            bash -c "cd /root/roped && exec \"\$@\"" _ "${@:3}"' _ "$system" "$cross" "$@"
}

# without the slow parts of what QEMU's best processor has: no test is about them
export QEMU_CPU=${QEMU_CPU-max,pauth-impdef=on,sve=off}
export ROPED_TEST_QUICK=${ROPED_TEST_QUICK-29}
summary=() status=0
for command in deploy/quickstart.sh tests/run.sh; do
    start=$SECONDS word=ok
    inside "$command" || { word=FAILED status=1; }
    summary+=("$(printf '%-7s %4ds  %s' "$word" $((SECONDS - start)) "$command")")
done
echo
echo "aarch64, $suite, $(inside cc --version | head -n 1):"
printf '%s\n' "${summary[@]}"
exit "$status"
