# shellcheck shell=bash
# bare.sh - sourced by scripts that try what was made on a bare Debian, a copy of
# one that debian.sh has made. What a check says goes into a file of the folder
# $work.
# shellcheck disable=SC2154 # work is the script's
root=

skip() { echo "skipped: $*"; exit 77; }

check() { # check WHAT COMMAND... : what it says is shown where it fails
    "${@:2}" >"$work/said" 2>&1 || { tail -n 40 "$work/said"; echo "FAILED $1"; exit 1; }
    echo "ok     $1"
}

# enter DIR FILE... : 'inside' is in a copy of it, which has the files in /dist
enter() {
    root=$(mktemp -d)
    cp -a "$1/." "$root"
    mkdir "$root/dist"
    cp "${@:2}" "$root/dist"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    mount -t proc proc "$root/proc"
}
inside() { chroot "$root" env -u PIP_FIND_LINKS DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 bash -ec "$1"; }
apt() { inside "apt-get -q update && apt-get -q install -y --no-install-recommends $*"; }
remove_root() {
    [ -n "$root" ] || return 0
    umount "$root/proc" "$root/ccache" 2>/dev/null || true
    rm -rf --one-file-system "$root"
    root=
}
trap remove_root EXIT

# answers PREFIX CONFIG : the daemon there starts, makes a call that is right, and
# stops
answers() {
    inside "PATH=$1/bin:\$PATH
        roped --config $2 --listen 127.0.0.1:0 --port_file /tmp/port 2>/tmp/log &
        for i in \$(seq 100); do [ -s /tmp/port ] && break; sleep 0.1; done
        export ROPED_URL=http://127.0.0.1:\$(cat /tmp/port)
        ropectl status
        ropectl sample rmsnorm rows=4 -o /tmp/x.safetensors
        ropectl verify rmsnorm /tmp/x.safetensors
        kill \$! && wait \$!"
}
