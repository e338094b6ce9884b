#!/usr/bin/env bash
# Manual pages and completions as deploy/pages.sh makes them: every key, command
# and operator is in them, man has no complaint, and shells complete with them.
#   pages.sh PAGES_DIR BIN_DIR
# A shell that is not installed is left out, in so many words.
set -u
pages=$1
export PATH=$2:$PATH
# shellcheck source=tests/deploy/equal.sh
. "$(dirname "$0")/equal.sh"

# ------------------------------------------------------------ manual pages
keys=$(roped --help | sed -n 's/^  --\([a-z_]*\).*/\1/p')
commands=$(ropectl help | awk '/^$/ {n++; next} n == 1 && $1 != "help" {print $1}')
operators=$(ropectl ops | awk 'NR > 1 {print $1}')
check "roped(8) has every key" \
    "$(sed -n 's/^\.B \\-\\-\([a-z_]*\) *$/\1/p' "$pages/man/roped.8" | grep -vx healthcheck)" "$keys"
check "roped.conf(5) has every key" \
    "$(sed -n 's/^\.B \([a-z_]*\) *$/\1/p' "$pages/man/roped.conf.5")" "$keys"
check "ropectl(1) has every command" "$(sed -n 's/^\.SS //p' "$pages/man/ropectl.1")" "$commands"
check "and every operator" \
    "$(sed -n '/^\.SH OPERATORS/,/^\.SH EXIT/s/^\.B //p' "$pages/man/ropectl.1")" "$operators"
check "and every exit status" \
    "$(sed -n '/^\.SH EXIT/,/^\.SH SEE/s/^\.B //p' "$pages/man/ropectl.1" | tr '\n' ' ')" \
    "$(ropectl help | sed -n '/^exit status/,$s/^  \([0-9][0-9]*\)  .*/\1/p' | tr '\n' ' ')"
# `ropectl status` in the README pages, and the list of a table there
root=$(cd "$(dirname "$0")/../.." && pwd)
named=$(cd "$root" && find . -path ./build -prune -o -name '*.md' -exec cat {} + |
    grep -oE '((^|`|; |/)ropectl( --[a-z-]+ ("[^"]*"|[^ ]+))*|`ropectl`:) [a-z]+(, [a-z]+)*' |
    sed -e 's/.*`ropectl`: //;t' -e 's/.* //' | tr -s ', ' '\n')
check "every command in the pages exists" \
    "$(grep -vxF "$commands"$'\nhelp' <<<"$named")" ""
if command -v man >/dev/null; then
    for page in "$pages"/man/*; do
        check "man reads ${page##*/}" \
            "$(LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)" ""
    done
else
    echo "no man: nobody has read the pages"
fi

# -------------------------------------------------------------- completions
# complete WORD... : what bash offers for the last of them
complete_in_bash() {
    bash --norc -c '. "$1/bash/$2"; COMP_WORDS=("${@:2}"); COMP_CWORD=$(($# - 2))
        _"$2"; printf "%s\n" "${COMPREPLY[@]}"' _ "$pages" "$@" | sort -u
}
check "bash: commands" "$(complete_in_bash ropectl st)" status
check "bash: every command of the table" \
    "$(complete_in_bash ropectl '' | grep -v -e ^- -e ^help$)" "$(sort <<<"$commands")"
actions=$(roped --help | sed '/^$/,$d' | grep -oE -- '--(check|sample|health|version|help)[a-z-]*' | sort)
check "bash: everything that the usage of roped names" \
    "$(for action in $actions; do complete_in_bash roped "$action"; done)" "$actions"
check "bash: operators" "$(complete_in_bash ropectl --server x run rmsn)" $'rmsnorm\nrmsnorm_add\nrmsnorm_backward\nrmsnorm_quantize'
check "bash: parameters" "$(complete_in_bash ropectl run rope --sty)" --style
check "bash: choices" "$(complete_in_bash ropectl run rope x --style '')" $'gptj\nneox'
check "bash: choices behind other columns" \
    "$(complete_in_bash ropectl run qk_rmsnorm_rope --style '')" $'gptj\nneox'
check "bash: of that operator alone" "$(complete_in_bash ropectl run rmsnorm --sty)" ""
check "bash: JSON" "$(complete_in_bash ropectl ops --output j)" json
check "bash: options of all commands" "$(complete_in_bash ropectl --c)" $'--ca-file\n--cert\n--client'
check "bash: a command's own options" "$(complete_in_bash ropectl bench rope --sec)" --seconds
check "bash: and their choices" "$(complete_in_bash ropectl bench rope --dtype '')" $'bf16\nf16\nf32'
check "bash: files for outputs" \
    "$(cd "$pages/man" && complete_in_bash ropectl verify rope x -o roped.c)" roped.conf.5
check "bash: verbs" "$(cd "$pages/man" && complete_in_bash ropectl regions '' | grep -v '^rope')" \
    $'--bytes\n--dtype\n--shape\ndelete\nget\nlist\nput\nzeros'
check "bash: options of a verb" "$(complete_in_bash ropectl token new a --q)" --quota
check "bash: keys" "$(complete_in_bash roped --drain_d)" --drain_delay_seconds
check "bash: values of keys" "$(complete_in_bash roped --lanes 2 --backend c)" $'cpu\ncuda'

if command -v fish >/dev/null; then
    complete_in_fish() {
        fish --no-config -c "source $pages/fish/${1%% *}.fish; complete -C '$1'" | cut -f1 | sort -u
    }
    check "fish: commands" "$(complete_in_fish 'ropectl st')" status
    check "fish: every command of the table" \
        "$(complete_in_fish 'ropectl ' | grep -vx help)" "$(sort <<<"$commands")"
    check "fish: operators" "$(complete_in_fish 'ropectl describe rmsn')" $'rmsnorm\nrmsnorm_add\nrmsnorm_backward\nrmsnorm_quantize'
    check "fish: choices" "$(complete_in_fish 'ropectl run rope x --style ')" $'gptj\nneox'
    check "fish: of that operator alone" "$(complete_in_fish 'ropectl run rmsnorm --sty')" ""
    check "fish: a command's own options" "$(complete_in_fish 'ropectl bench rope --sec')" --seconds
    check "fish: verbs" "$(complete_in_fish 'ropectl regions z')" zeros
    check "fish: values of keys" "$(complete_in_fish 'roped --backend c')" $'cpu\ncuda'
else
    echo "no fish: its completions are not tried"
fi

if command -v zsh >/dev/null; then
    # compadd is what zsh's own completion would call
    complete_in_zsh() {
        zsh -f -c 'compadd() { shift; print -l -- ${(M)@:#${last}*} }; _files() { }
            pages=$1; shift; last=$@[-1]; words=("$@"); CURRENT=$#words; name=$1
            set --; . $pages/zsh/_$name' _ "$pages" "$@" | sed '/^$/d' | sort -u
    }
    check "zsh: commands" "$(complete_in_zsh ropectl st)" status
    check "zsh: choices" "$(complete_in_zsh ropectl run rope x --style '')" $'gptj\nneox'
    check "zsh: of that operator alone" "$(complete_in_zsh ropectl run rmsnorm --sty)" ""
    check "zsh: values of keys" "$(complete_in_zsh roped --backend c)" $'cpu\ncuda'
else
    echo "no zsh: its completions are not tried"
fi
[ "$n_failed" -eq 0 ]
