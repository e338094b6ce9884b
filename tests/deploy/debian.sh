#!/usr/bin/env bash
# A fresh Debian in DIR, made once for whoever asks.
#   debian.sh DIR [SUITE]        default bookworm, Debian 12
# Exit 77: skipped, with a line that says why.
set -eu
dir=$1 suite=${2:-bookworm}
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "a Debian of its own takes root"
command -v debootstrap >/dev/null || skip "no debootstrap"
mkdir -p "$(dirname "$dir")"
exec 9>"$dir.lock"
flock 9
[ ! -d "$dir" ] || exit 0
rm -rf --one-file-system "$dir.new"
debootstrap --variant=minbase "$suite" "$dir.new" >"$dir.log" 2>&1 ||
    skip "no Debian to try it in: $(tail -n 1 "$dir.log")"
# as Debian's own image has it: updates, and nothing that only people read
echo "deb http://deb.debian.org/debian $suite-updates main
deb http://deb.debian.org/debian-security $suite-security main" >>"$dir.new/etc/apt/sources.list"
rm -rf "$dir.new"/var/cache/apt/* "$dir.new"/var/lib/apt/lists/* "$dir.new"/var/log/* \
    "$dir.new"/usr/share/{man,info,locale,lintian,groff}/*
find "$dir.new/usr/share/doc" -type f ! -name copyright -delete
mv "$dir.new" "$dir"
