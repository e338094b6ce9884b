#!/usr/bin/env bash
# The root of an image that has the daemon, the libraries that it links, their
# licences, and what scanners read to know their versions: no shell, no tools.
#   bare.sh PROGRAM DIR
# On Debian and Ubuntu. /etc/debian_version tells NVIDIA's container toolkit
# where the loader looks for the driver.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$1 root=$2
mkdir -p "$root"/{etc,usr/local/bin,usr/local/share/doc/roped,var/lib/dpkg/status.d}
cp "$program" "$root/usr/local/bin/roped"
cp "$here/../../LICENSE" "$root/usr/local/share/doc/roped"
cp -L /etc/os-release /etc/debian_version "$root/etc"

. "$here/libraries.sh"
mapfile -t libraries < <(libraries_of "$program")
cp -L --parents "${libraries[@]}" "$root"
mapfile -t packages < <(for library in "${libraries[@]}"; do owner "$library"; done | sort -u)
for package in "${packages[@]}"; do
    name=${package%:*}
    dpkg-query -s "$package" >"$root/var/lib/dpkg/status.d/$name"
    cp -L --parents "/usr/share/doc/$name/copyright" "$root"
done
