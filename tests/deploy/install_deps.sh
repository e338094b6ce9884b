#!/usr/bin/env bash
# deploy/install-deps.sh on a machine where everything is missing: as a user who
# cannot install it names every package on standard error and fails; as root or
# with sudo it says what it fetches, and how much, before it does. Commands of the
# system are stand-ins, so nothing is installed.
set -eu
script=$(cd "$(dirname "$0")/../.." && pwd)/deploy/install-deps.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
for tool in bash env dirname sed cat grep true; do
    ln -s "$(type -P "$tool")" "$work/bin/$tool"
done

stand_in() { # stand_in NAME BODY
    printf '#!%s\n%s\n' "$(command -v bash)" "$2" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
stand_in dpkg-query 'exit 1'
stand_in cmake 'echo cmake version 3.25.1'
stand_in apt-get "echo \"\$*\" >>'$work/calls'
case \"\$*\" in *--assume-no*) echo 'Need to get 9 MB of archives.'; exit 1 ;; esac"

ask() { # ask UID ARGUMENT... : its exit status is in status, what it says in out and err
    stand_in id "echo $1"
    : >"$work/calls"
    status=0
    PATH=$work/bin "$script" "${@:2}" >"$work/out" 2>"$work/err" || status=$?
}

n_failed=0
check() { # check WHAT COMMAND...
    if "${@:2}"; then
        echo "ok     $1"
    else
        echo "FAILED $1"
        cat "$work/out" "$work/err"
        n_failed=$((n_failed + 1))
    fi
}
fails() { ! "$@"; }

refuses() { # refuses WHO: the last of 'ask' failed, and said enough
    check "$1: it fails" test "$status" -ne 0
    check "$1: names what is missing" grep -q 'missing: gcc libc6-dev' "$work/err"
    check "$1: and what to type" grep -q 'apt-get update && apt-get install .*libcjson-dev' "$work/err"
    check "$1: asks apt-get for nothing" test ! -s "$work/calls"
}
installs() { # installs WHO
    check "$1: it succeeds" test "$status" -eq 0
    check "$1: says what" grep -q 'installing with apt-get: gcc libc6-dev' "$work/out"
    check "$1: and how much" grep -q '^Need to get 9 MB' "$work/out"
    check "$1: without what only some tests want" fails grep -q chromium "$work/out"
    check "$1: before it installs" test "$(sed -n '/--assume-no/=;/ -y /=' "$work/calls")" = $'2\n3'
}

ask 1000 build
refuses "neither root nor sudo"
ask 0 build
installs root
ask 0 build tests package
for wanted in locales file dpkg-dev lintian; do
    check "root, for tests and packages: $wanted" grep -qx "install-deps: installing with apt-get: $wanted" "$work/out"
done
stand_in sudo 'exec "$@"'
ask 1000 build
installs "a user with sudo"
stand_in sudo 'echo "not in the sudoers file" >&2; exit 1'
ask 1000 build
refuses "a user whom sudo refuses"

# all that building wants is there
for tool in cc c++ ninja pkg-config curl; do
    stand_in "$tool" 'exit 0'
done
stand_in dpkg-query 'case "$*" in *libc6-dev | *ca-certificates) printf installed ;; *) exit 1 ;; esac'
ask 1000 build tests
check "what only tests want cannot be had: it succeeds" test "$status" -eq 0
check "and says so" grep -q 'haproxy.*: their checks are skipped' "$work/err"
check "and asks apt-get for nothing" test ! -s "$work/calls"
[ "$n_failed" -eq 0 ]
