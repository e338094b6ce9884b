#!/usr/bin/env bash
# Manual pages and shell completions, made from what the programs say of
# themselves, so that neither can say anything else:
#   deploy/pages.sh BIN_DIR OUT_DIR
# BIN_DIR has roped and ropectl. OUT_DIR gets man/ and bash/, zsh/ and fish/.
set -euo pipefail
export LC_ALL=C
bin=$1 out=$2
mkdir -p "$out"/{man,bash,zsh,fish}

roped() { env -u ROPED_CONFIG "$bin/roped" "$@"; }
ropectl() { "$bin/ropectl" "$@"; }
version=$(roped --version | sed 's/.* //')

# ------------------------------------------------------------ manual pages
# Text as roff: no line of it is a request, no '-' a hyphen.
roff() { sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\\([.']\\)/\\\\\\&\\1/"; }

page() { # page NAME SECTION SUMMARY
    printf '.TH %s %s "" "roped %s"\n.SH NAME\n%s \\- %s\n' \
        "${1^^}" "$2" "$version" "$1" "$(roff <<<"$3")"
}

verbatim() { printf '.nf\n'; roff; printf '.fi\n'; }

# Pairs of lines, "  --key (default; range)" and its meaning
keys() {
    roped --help | awk '/^  --/ {is_key = 1} is_key' | roff | awk -v dashes="$1" '
        /^  \\-\\-/ {
            sub(/^  \\-\\-/, dashes)
            name = $1
            sub(/^[^ ]* /, "")
            printf ".TP\n.B %s\n", name
            range = $0
            next
        }
        {sub(/^ */, ""); print; if (range != "()") print range}'
}

{
    page roped 8 "transformer kernels as a service"
    printf '.SH SYNOPSIS\n'
    roped --help | sed -n 's/^usage: */       /; /^ *roped/p' | sed 's/^ *//' | verbatim
    cat <<'EOF'
.SH DESCRIPTION
.B roped
takes tensors over HTTP and runs transformer kernels on them, on every GPU of
its host, or on the CPU where there is none.
.BR ropectl (1)
is a client.
.PP
Each key is a flag, a line of
.BR roped.conf (5)
and an environment variable, ROPED_ and the key in capitals. Flags win over the
environment, which wins over the file.
.SH OPTIONS
.TP
.B \-\-config FILE
reads this file; ROPED_CONFIG names one too
.TP
.B \-\-check\-config
prints what is in force, and ends
.TP
.B \-\-sample\-config
prints every key with its default and meaning
.TP
.B \-\-healthcheck
asks the configured address whether it is ready: exit status 0 or 1
.TP
.BR \-\-version ", " \-\-help
print what they say
EOF
    keys '\\-\\-'
    cat <<'EOF'
.SH SIGNALS
.TP
.BR SIGTERM ", " SIGINT
drain: what is under way is answered; a second one hurries
.SH EXIT STATUS
0 after a signal, 1 where it could not start, 2 where a setting is wrong.
.SH SEE ALSO
.BR roped.conf (5),
.BR ropectl (1)
EOF
} >"$out/man/roped.8"

{
    page roped.conf 5 "settings of roped"
    cat <<'EOF'
.SH DESCRIPTION
Lines
.IR "key = value" ;
a # starts a comment. Bytes may end in k, m, g or t, powers of 1024.
.BR roped (8)
reads the file that
.B \-\-config
or ROPED_CONFIG names. Flags and the environment win over it.
.SH KEYS
With the default and what is allowed:
EOF
    keys ''
    printf '.SH SEE ALSO\n.BR roped (8)\n'
} >"$out/man/roped.conf.5"

commands=$(ropectl help | awk '/^$/ {n++; next} n == 1 && $1 != "help" {print $1}')
{
    page ropectl 1 "the command line of roped"
    printf '.SH SYNOPSIS\n'
    ropectl help | sed -n 's/^usage: //p' | verbatim
    printf '.SH OPTIONS\n'
    ropectl help | sed -n 's/^  \(--.*\)/\1/p' | roff |
        sed 's/^\([^ ]* [^ ]*\)  */.TP\n.B \1\n/'
    printf '.SH COMMANDS\n'
    for command in $commands; do
        printf '.SS %s\n' "$command"
        ropectl help "$command" | sed '/^options, anywhere/,$d; s/^usage: //' | verbatim
    done
    printf '.SH OPERATORS\n'
    ropectl ops | roff | sed 's/^\([^ ]*\)  */.TP\n.B \1\n/'
    cat <<'EOF'
.SH EXIT STATUS
0 done, 1 failed, 2 wrong usage.
.SH SEE ALSO
.BR roped (8)
EOF
} >"$out/man/ropectl.1"

# -------------------------------------------------------------- completions
# Tables that every shell's part is made of, one entry a line:
#   settings: KEY CHOICE...          parameters: OPERATOR NAME CHOICE...
settings=$(roped --help | awk '/^  --/ {
    choices = match($0, /; [a-z0-9_|]*\|[a-z0-9_|]*\)/) ? substr($0, RSTART + 2, RLENGTH - 3) : ""
    gsub(/\|/, " ", choices)
    print substr($1, 3), choices}')
operators=$(ropectl ops | awk '{print $1}')
parameters=$(for operator in $operators; do
    ropectl describe "$operator" | awk -v operator="$operator" '
        /^parameters:/ {is_here = 1; next}
        is_here && /^  --/ {
            choices = ""
            if ($2 ~ /\|/) {choices = $2; sub(/;$/, "", choices)}
            else if ($2 == "false" || $2 == "true") choices = "true false"
            gsub(/\|/, " ", choices)
            print operator, substr($1, 3), choices}
        is_here && /^[a-z]/ {is_here = 0}'
done)
actions="check-config sample-config healthcheck version help config"
verbs="list put get delete"

one_line() { tr '\n' ' ' | sed 's/ *$//'; }

# names_of OPERATOR: its parameters as flags
names_of() { awk -v o="$1" '$1 == o {printf "--%s ", $2}' <<<"$parameters"; }

# The arms of a 'case': "a:--b) CHOICES ;;" from "a b CHOICE CHOICE"
operator_choices() {
    awk 'NF > 2 {
        printf "    %s:--%s) words=\"", $1, $2
        for (i = 3; i <= NF; i++) printf "%s%s", (i > 3 ? " " : ""), $i
        print "\" ;;"}' <<<"$parameters"
}

# What bash and zsh share: sets words for the word after $previous
ropectl_words() {
    cat <<EOF
    case \$previous in
    --output) words="text json"; return ;;
    --server | --timeout) words=; return ;;
    --token-file | -o) words=FILES; return ;;
    esac
    case \$operator:\$previous in
$(operator_choices)
    esac
    [ -z "\$words" ] || return
    case \$command in
    "") words="$(one_line <<<"$commands") help --server --token-file --timeout --output --version" ;;
    help) words="$(one_line <<<"$commands")" ;;
    describe) words="$(one_line <<<"$operators")" ;;
    run | bench)
        case \$operator in
        "") words="$(one_line <<<"$operators")" ;;
$(for operator in $operators; do
        printf '        %s) words="%s" ;;\n' "$operator" "$(names_of "$operator" | one_line)"
    done)
        esac
        case \$command:\$operator in
        *:) ;;
        run:*) words="\$words FILES --table --fp8 -o" ;;
        bench:*) words="\$words --dtype --seconds --connections" ;;
        esac ;;
    tables) words="$verbs FILES" ;;
    regions) words="$verbs zeros FILES --bytes --dtype --shape" ;;
    cat) words=FILES ;;
    esac
EOF
}

roped_words() {
    cat <<EOF
    case \$previous in
    --config | --*_file) words=FILES ;;
$(awk 'NF > 1 {printf "    --%s) words=\"", $1; for (i = 2; i <= NF; i++) printf "%s%s", (i > 2 ? " " : ""), $i; print "\" ;;"}' <<<"$settings")
    $(awk 'NF == 1 && $1 !~ /_file$/ {printf "%s--%s", (n++ ? " | " : ""), $1}' <<<"$settings")) ;;
    *) words="$(awk '{print "--" $1}' <<<"$settings" | one_line) $(printf -- '--%s ' $actions | one_line)" ;;
    esac
EOF
}

# Sets command and operator: the first words that no option takes
find_command='    local word skips=
    for word in "${given[@]}"; do
        if [ -n "$skips" ]; then
            skips=
            continue
        fi
        case $word in
        --*=*) ;;
        -o | --server | --token-file | --timeout | --output) skips=1 ;;
        --*) [ -z "$operator" ] || skips=1 ;;
        *)
            if [ -z "$command" ]; then
                command=$word
            elif [ -z "$operator" ]; then
                operator=$word
            fi ;;
        esac
    done'

bash_part() { # bash_part NAME, with what sets words on standard input
    cat <<EOF
# bash completion of $1, made by deploy/pages.sh
_$1_words() {
    local command= operator= previous=\$1
    shift
    local given=("\$@")
$([ "$1" = roped ] || printf '%s\n' "$find_command")
    words=
$(cat)
}
_$1() {
    local words at=\$COMP_CWORD
    local current=\${COMP_WORDS[at]}
    _$1_words "\${COMP_WORDS[at - 1]}" "\${COMP_WORDS[@]:1:at-1}"
    COMPREPLY=()
    if [[ " \$words " == *" FILES "* && \$current != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "\$current")
        compopt -o filenames 2>/dev/null
    fi
    mapfile -t -O "\${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "\${words//FILES/}" -- "\$current")
}
complete -F _$1 $1
EOF
}

zsh_part() {
    cat <<EOF
#compdef $1
# zsh completion of $1, made by deploy/pages.sh
_$1_words() {
    local command= operator= previous=\$1
    shift
    local given=("\$@")
$([ "$1" = roped ] || printf '%s\n' "$find_command")
    words=
$(cat)
}
_$1() {
    local -a line=("\${words[@]}")
    local words
    _$1_words "\${line[CURRENT-1]}" "\${(@)line[2,CURRENT-1]}"
    [[ " \$words " != *" FILES "* ]] || _files
    compadd -- \${=words//FILES/}
}
_$1 "\$@"
EOF
}

roped_words | bash_part roped >"$out/bash/roped"
ropectl_words | bash_part ropectl >"$out/bash/ropectl"
roped_words | zsh_part roped >"$out/zsh/_roped"
ropectl_words | zsh_part ropectl >"$out/zsh/_ropectl"

fish_quote() { sed "s/\\\\/\\\\\\\\/g; s/'/\\\\'/g"; }

{
    echo "# fish completion of roped, made by deploy/pages.sh"
    echo "complete -c roped -f"
    roped --help | awk '/^  --/ {is_key = 1} is_key' | fish_quote | awk '
        /^  --/ {
            key = substr($1, 3)
            choices = match($0, /; [a-z0-9_|]*\|[a-z0-9_|]*\)/) ? substr($0, RSTART + 2, RLENGTH - 3) : ""
            gsub(/\|/, " ", choices)
            next
        }
        {
            sub(/^ */, "")
            printf "complete -c roped -l %s %s -d \047%s\047\n", key,
                choices != "" ? "-x -a \047" choices "\047" : key ~ /_file$/ ? "-r -F" : "-x", $0
        }'
    echo "complete -c roped -l config -r -F"
    for action in check-config sample-config healthcheck version help; do
        echo "complete -c roped -l $action"
    done
} >"$out/fish/roped.fish"

{
    echo "# fish completion of ropectl, made by deploy/pages.sh"
    echo "complete -c ropectl -f"
    echo "set -l commands $(one_line <<<"$commands")"
    ropectl help | sed -n '/^$/,/^$/s/^  \([a-z]*\)  *\(.*\)/\1 \2/p' | fish_quote |
        sed "s/^\([^ ]*\) \(.*\)/complete -c ropectl -n \"not __fish_seen_subcommand_from \$commands\" -a \1 -d '\2'/"
    ropectl help | sed -n 's/^  --\([a-z-]*\) [A-Z]*  *\(.*\)/\1 \2/p' | fish_quote |
        sed "s/^\([^ ]*\) \(.*\)/complete -c ropectl -l \1 -r -d '\2'/"
    echo "complete -c ropectl -l output -x -a 'text json'"
    operators_line=$(one_line <<<"$operators")
    echo "complete -c ropectl -n \"__fish_seen_subcommand_from run bench describe; and not __fish_seen_subcommand_from $operators_line\" -a '$operators_line'"
    awk '{
        choices = ""
        for (i = 3; i <= NF; i++) choices = choices (i > 3 ? " " : "") $i
        printf "complete -c ropectl -n \"__fish_seen_subcommand_from run bench; and __fish_seen_subcommand_from %s\" -l %s -x%s\n",
            $1, $2, choices != "" ? " -a \047" choices "\047" : ""}' <<<"$parameters"
    echo "complete -c ropectl -n '__fish_seen_subcommand_from tables' -a '$verbs'"
    echo "complete -c ropectl -n '__fish_seen_subcommand_from regions' -a '$verbs zeros'"
    echo "complete -c ropectl -n '__fish_seen_subcommand_from run cat tables regions' -F"
} >"$out/fish/ropectl.fish"
