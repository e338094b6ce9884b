# shellcheck shell=bash
# equal.sh - sourced by scripts that compare what was found with what is expected,
# and end with [ "$n_failed" -eq 0 ].
n_failed=0

check() { # check WHAT FOUND EXPECTED
    if [ "$2" = "$3" ]; then
        echo "ok     $1"
    else
        printf 'FAILED %s:\n%s\nexpected:\n%s\n' "$1" "$2" "$3"
        n_failed=$((n_failed + 1))
    fi
}
