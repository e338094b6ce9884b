# shellcheck shell=bash
# cross.sh - sourced by scripts that make something for aarch64 on x86-64: packages
# that are not installed here, and a compiler that is not emulated.

# unpack_packages DIR ARCHITECTURE SOURCE PACKAGE... : with all that they need.
# SOURCE is a line of sources.list without its "deb".
unpack_packages() {
    local apt=$1.apt deb options
    rm -rf "$1" "$apt"
    mkdir -p "$1/usr/lib" "$apt"/{lists,cache}/partial
    ln -s usr/lib "$1/lib"
    echo "deb $3" >"$apt/sources.list"
    : >"$apt/status"
    options=(-q -y -o APT::Architecture="$2" -o APT::Architectures::="$2"
        -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=-
        -o Dir::State::status="$apt/status" -o Dir::State::lists="$apt/lists"
        -o Dir::Cache="$apt/cache" -o Dir::Cache::archives="$apt/cache"
        -o APT::Sandbox::User= -o Acquire::Retries=2 -o Debug::NoLocking=1)
    apt-get "${options[@]}" update || return
    apt-get "${options[@]}" install --download-only --no-install-recommends "${@:4}" || return
    for deb in "$apt"/cache/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$1" --keep-directory-symlink || return
    done
    rm -rf "$apt"
    touch "$1/.complete"
}

# fetch_compiler DIR SUITE GCC: Debian's cross compiler of that version; the C
# library is left to the system that it compiles in
fetch_compiler() {
    unpack_packages "$1" amd64 \
        "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $2 main" \
        "gcc-$3-aarch64-linux-gnu" "g++-$3-aarch64-linux-gnu" || return
    find "$1/usr/aarch64-linux-gnu/include" -mindepth 1 -maxdepth 1 ! -name 'c++' -exec rm -r {} +
    rm "$1"/usr/aarch64-linux-gnu/lib/{*.o,libc.so*,libc.a,libm.so*,libm.a}
}

# put_compiler ROOT NATIVE GCC: where ROOT, a system of aarch64, has or will have
# its GCC of version NATIVE, what is mounted on /cross runs. Where x86-64's
# programs look for their libraries such a system has nothing.
put_compiler() {
    local name
    mkdir "$1"/{cross,lib64}
    ln -s /cross/usr/lib/x86_64-linux-gnu "$1/usr/lib/x86_64-linux-gnu"
    ln -s /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 "$1/lib64"
    for name in gcc g++; do
        chroot "$1" dpkg-divert --quiet --rename --divert "/usr/bin/$name.emulated" \
            --add "/usr/bin/aarch64-linux-gnu-$name-$2"
        ln -s "/cross/usr/bin/aarch64-linux-gnu-$name-$3" "$1/usr/bin/aarch64-linux-gnu-$name-$2"
    done
}
