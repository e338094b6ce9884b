#!/usr/bin/env bash
# A fresh Debian in DIR, made once for whoever asks.
#   debian.sh DIR [SUITE [ARCHITECTURE]]   default bookworm, Debian 12, and this
#                                          machine's; arm64 is emulated by QEMU
# Exit 77: skipped, with a line that says why.
set -eu
dir=$1 suite=${2:-bookworm} architecture=${3:-$(dpkg --print-architecture)}
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "a Debian of its own takes root"
command -v debootstrap >/dev/null || skip "no debootstrap"
if [ "$architecture" = arm64 ] && [ "$(uname -m)" != aarch64 ]; then
    # what systemd does where it runs: the kernel gives programs of aarch64 to QEMU
    [ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] ||
        cat /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register 2>/dev/null ||
        skip "the kernel has no QEMU for aarch64: qemu-user-static, and binfmt_misc mounted"
fi
mkdir -p "$(dirname "$dir")"
exec 9>"$dir.lock"
flock 9
[ ! -d "$dir" ] || exit 0
rm -rf --one-file-system "$dir.new"
debootstrap --arch="$architecture" --variant=minbase "$suite" "$dir.new" >"$dir.log" 2>&1 ||
    skip "no Debian to try it in: $(tail -n 1 "$dir.log")"
# as Debian's own image has it: updates, nothing that only people read, and no wait
# for the disk after each file
echo "deb http://deb.debian.org/debian $suite-updates main
deb http://deb.debian.org/debian-security $suite-security main" >>"$dir.new/etc/apt/sources.list"
echo force-unsafe-io >"$dir.new/etc/dpkg/dpkg.cfg.d/unsafe"
echo 'Acquire::Languages "none";' >"$dir.new/etc/apt/apt.conf.d/no-languages"
rm -rf "$dir.new"/var/cache/apt/* "$dir.new"/var/lib/apt/lists/* "$dir.new"/var/log/* \
    "$dir.new"/usr/share/{man,info,locale,lintian,groff}/*
find "$dir.new/usr/share/doc" -type f ! -name copyright -delete
mv "$dir.new" "$dir"
