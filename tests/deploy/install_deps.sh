#!/usr/bin/env bash
# deploy/install-deps.sh on a machine where everything is missing: as a user who
# cannot install it names every package on standard error and fails; as root it
# says what it fetches, and how much, before it does. Commands of the system are
# stand-ins, so nothing is installed.
set -eu
script=$(cd "$(dirname "$0")/../.." && pwd)/deploy/install-deps.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
for tool in bash env dirname sed cat grep true; do
    ln -s "$(command -v "$tool")" "$work/bin/$tool"
done

stand_in() { # stand_in NAME BODY
    printf '#!%s\n%s\n' "$(command -v bash)" "$2" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
stand_in dpkg-query 'exit 1'
stand_in cmake 'echo cmake version 3.25.1'
stand_in apt-get "echo \"\$*\" >>'$work/calls'
case \"\$*\" in *--assume-no*) echo 'Need to get 9 MB of archives.'; exit 1 ;; esac"

ask() { # ask UID ARGUMENT... : its exit status; what it says is in out and err
    local status=0
    stand_in id "echo $1"
    shift
    : >"$work/calls"
    PATH=$work/bin "$script" "$@" >"$work/out" 2>"$work/err" || status=$?
    return "$status"
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

check "a user without sudo: it fails" fails ask 1000 build
check "names what is missing" grep -q 'missing: gcc libc6-dev' "$work/err"
check "and what to type" grep -q 'As root: apt-get install .*libcjson-dev' "$work/err"
check "asks apt-get for nothing" test ! -s "$work/calls"
check "root: it succeeds" ask 0 build
check "says what" grep -q 'installing with apt-get: gcc libc6-dev' "$work/out"
check "and how much" grep -q '^Need to get 9 MB' "$work/out"
check "without what only some tests want" fails grep -q chromium "$work/out"
check "before it installs" test "$(sed -n '/--assume-no/=;/ -y /=' "$work/calls")" = $'2\n3'
[ "$n_failed" -eq 0 ]
