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

# The lines of 'ropectl help' from one that starts a part to an empty one
part() { ropectl help | awk -v start="$1" '/^$/ {is_here = 0} is_here {print} $0 ~ start {is_here = 1}'; }

# Lines "  NAME  meaning", with more meaning below, as tagged paragraphs
tagged() {
    roff | awk '
        /^  [^ ]/ {
            sub(/^  /, "")
            at = match($0, /  +/)
            printf ".TP\n.B %s\n", at ? substr($0, 1, at - 1) : $0
            if (at) print substr($0, at + RLENGTH)
            next
        }
        {sub(/^ +/, ""); print}'
}

# The menu of commands
menu() { ropectl help | awk '/^$/ {n++; next} n == 1'; }

commands=$(menu | awk '$1 != "help" {print $1}')
{
    page ropectl 1 "the command line of roped"
    printf '.SH SYNOPSIS\n'
    ropectl help | sed -n 's/^usage: //p' | verbatim
    printf '.SH OPTIONS\n'
    part '^options, anywhere' | tagged
    printf '.SH COMMANDS\n'
    for command in $commands; do
        printf '.SS %s\n' "$command"
        ropectl help "$command" | sed '/^options, anywhere/,$d; s/^usage: //' | verbatim
    done
    printf '.SH OPERATORS\n'
    ropectl ops | sed '1d; s/^/  /' | tagged
    printf '.SH EXIT STATUS\n'
    part '^exit status' | tagged
    cat <<'EOF'
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
operators=$(ropectl ops | awk 'NR > 1 {print $1}')
parameters=$(for operator in $operators; do
    ropectl describe "$operator" | awk -v operator="$operator" '
        /^[a-z]/ {is_here = $1 == "parameters"; is_head = 1; next}
        !is_here || !/^  [a-z]/ {next}
        is_head {for (i = 1; i <= NF; i++) if ($i == "choices") column = i; is_head = 0; next}
        {
            choices = column && $column != "-" ? $column : ""
            if ($2 == "bool") choices = "true|false"
            gsub(/\|/, " ", choices)
            print operator, $1, choices}'
done)
# what roped takes besides its keys: its usage, up to the first empty line
actions=$(roped --help | sed '/^$/,$d' | grep -o -- '--[a-z-]*' | sed 's/^--//' | grep -vx key | sort -u)

# Options in lines "  --NAME VALUE, --NAME A|B  meaning" on standard input: a
# line "--NAME VALUE..." each, whose values are FILE or choices
options_in() {
    awk '/^  [^ ]/ {for (i = 1; i <= NF; i++) if ($i ~ /^--?[a-z][a-z0-9-]*$/) {
        value = $(i + 1)
        sub(/,$/, "", value)
        if (value ~ /=FILE$/) value = "FILE"
        else if (value !~ /\|/ && value != "FILE") value = ""
        gsub(/\|/, " ", value)
        if (!seen[$i]++) print $i, value}}'
}
common=$(part '^options, anywhere' | options_in)

#   usages: COMMAND WORD..., where WORD is a verb, OP or FILES
#   options: COMMAND --NAME VALUE...
usages=$(for command in $commands; do
    ropectl help "$command" | awk -v command="$command" '/^usage: / {
        words = command
        if ($0 ~ /FILE/) words = words " FILES"
        sub(/^usage: ropectl [a-z]+/, "")
        gsub(/--[a-z]+ [^] ]*/, "")
        gsub(/[][|=.]/, " ")
        for (i = 1; i <= NF; i++) if ($i ~ /^([a-z][a-z]+|OP)$/) words = words " " $i
        print words}'
done)
options=$(for command in $commands; do
    ropectl help "$command" | sed '/^options, anywhere/,$d' | options_in | sed "s/^/$command /"
done)

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

# options_of COMMAND: its own options
options_of() { awk -v c="$1" '$1 == c {printf "%s ", $2}' <<<"$options"; }

# value_arms PREFIX, with "--NAME VALUE..." on standard input: arms of a 'case'
value_arms() {
    awk -v prefix="$1" 'NF > 1 {
        printf "    %s%s) words=\"", prefix, $1
        for (i = 2; i <= NF; i++) printf "%s%s", (i > 2 ? " " : ""), ($i == "FILE" ? "FILES" : $i)
        print "\"; return ;;"}'
}

# command_arm COMMAND WORD...: what may follow that command
command_arm() {
    local command=$1 operator words own
    shift
    words=" $* "
    own=$(options_of "$command" | one_line)
    if [[ $words != *" OP "* ]]; then
        printf '    %s) words="%s" ;;\n' "$command" "$(one_line <<<"$* $own")"
        return
    fi
    printf '    %s)\n        case $operator in\n' "$command"
    printf '        "") words="%s" ;;\n' "$(one_line <<<"$operators")"
    words=${words/ OP / }
    if [ "$command" != describe ]; then
        for operator in $operators; do
            printf '        %s) words="%s" ;;\n' "$operator" \
                "$(one_line <<<"$(names_of "$operator")$words$own")"
        done
    fi
    printf '        esac ;;\n'
}

# What bash and zsh share: sets words for the word after $previous
ropectl_words() {
    cat <<EOF
    case \$previous in
$(value_arms "" <<<"$common")
    $(awk 'NF == 1 {printf "%s%s", (n++ ? " | " : ""), $1}' <<<"$common")) words=; return ;;
    esac
    case \$command:\$previous in
$(while read -r command option; do value_arms "$command:" <<<"$option"; done <<<"$options")
    esac
    case \$operator:\$previous in
$(operator_choices)
    esac
    [ -z "\$words" ] || return
    case \$command in
    "") words="$(one_line <<<"$commands") help $(awk '{print $1}' <<<"$common" | one_line) --version" ;;
    help) words="$(one_line <<<"$commands")" ;;
$(while read -r command words; do command_arm "$command" "$words"; done <<<"$usages")
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
common_names=$(awk '{printf "%s | ", $1}' <<<"$common")
find_command='    local word skips=
    for word in "${given[@]}"; do
        if [ -n "$skips" ]; then
            skips=
            continue
        fi
        case $word in
        --*=*) ;;
        '"$common_names"'-o) skips=1 ;;
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
    for action in $actions; do
        [ "$action" = config ] || echo "complete -c roped -l $action"
    done
} >"$out/fish/roped.fish"

# fish_options [CONDITION], with "--NAME VALUE..." on standard input
fish_options() {
    awk -v condition="${1:-}" '{
        is_long = sub(/^ *--/, "")
        sub(/^ *-/, "")
        name = $1
        $1 = ""
        sub(/^ /, "")
        printf "complete -c ropectl %s %s %s %s\n", condition, is_long ? "-l" : "-s", name,
            $0 == "FILE" ? "-r -F" : $0 != "" ? "-x -a \047" $0 "\047" : "-x"}'
}

{
    echo "# fish completion of ropectl, made by deploy/pages.sh"
    echo "complete -c ropectl -f"
    echo "set -l commands $(one_line <<<"$commands")"
    menu | sed 's/^  \([a-z]*\)  *\(.*\)/\1 \2/' | fish_quote |
        sed "s/^\([^ ]*\) \(.*\)/complete -c ropectl -n \"not __fish_seen_subcommand_from \$commands\" -a \1 -d '\2'/"
    part '^options, anywhere' | options_in | fish_options
    operators_line=$(one_line <<<"$operators")
    with_operator=$(awk '/ OP/ {print $1}' <<<"$usages" | one_line)
    echo "complete -c ropectl -n \"__fish_seen_subcommand_from $with_operator; and not __fish_seen_subcommand_from $operators_line\" -a '$operators_line'"
    awk -v commands="${with_operator/describe/}" '{
        choices = ""
        for (i = 3; i <= NF; i++) choices = choices (i > 3 ? " " : "") $i
        printf "complete -c ropectl -n \"__fish_seen_subcommand_from %s; and __fish_seen_subcommand_from %s\" -l %s -x%s\n",
            commands, $1, $2, choices != "" ? " -a \047" choices "\047" : ""}' <<<"$parameters"
    while read -r command words; do
        condition="__fish_seen_subcommand_from $command"
        [[ " $words " != *" FILES "* ]] || echo "complete -c ropectl -n '$condition' -F"
        words=$(sed 's/FILES//; s/OP//' <<<"$words" | xargs)
        [ -z "$words" ] || echo "complete -c ropectl -n '$condition' -a '$words'"
        awk -v c="$command" '$1 == c {$1 = ""; print}' <<<"$options" | fish_options "-n '$condition'"
    done <<<"$usages"
} >"$out/fish/ropectl.fish"
