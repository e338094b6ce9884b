#!/usr/bin/env bash
# What a compiler does not say: layout, who includes what, banned functions,
# file sizes, pages, shell scripts. A tool that is missing skips its check, in so many
# words.
#   tests/lint.sh                     half a second; ten with gcc-11, which
#                                     compiles what build/cpu was built from
#   tests/lint.sh --tidy [BUILD_DIR]  also clang-tidy: two minutes; needs the
#                                     compile_commands.json of a build
#                                     (default build/cpu)
set -u
cd "$(dirname "$0")/.." || exit 1
tidy=
if [ "${1:-}" = --tidy ]; then
    tidy=${2:-build/cpu}
fi
n_failed=0

# verdict NAME OUTPUT: output is what is wrong, nothing is fine
verdict() {
    if [ -n "$2" ]; then
        printf '%s\n' "$2"
        printf 'FAILED   %s\n' "$1"
        n_failed=$((n_failed + 1))
    else
        printf 'ok       %s\n' "$1"
    fi
}

skip() { printf 'skipped  %s: %s\n' "$1" "$2"; }

sources() { # sources SUFFIX...
    local suffix
    for suffix in "$@"; do
        find kernels server client tests -name "*.$suffix" -type f
    done | sort
}
mapfile -t code < <(sources c h cu cuh)
mapfile -t units < <(sources c)

# --------------------------------------------------------------- the layout
formatter=
for candidate in clang-format-14 clang-format; do
    if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then
        formatter=$candidate
        break
    fi
done
if [ -n "$formatter" ]; then
    verdict "layout ($formatter, ${#code[@]} files)" \
        "$("$formatter" --dry-run -Werror "${code[@]}" 2>&1 | grep 'error:')"
else
    skip layout "clang-format 14 is not installed"
fi

if [ -z "$tidy" ]; then
    :
elif command -v clang-tidy >/dev/null && [ -f "$tidy/compile_commands.json" ]; then
    mapfile -t compiled < <(for unit in "${units[@]}"; do
        grep -q "\"file\": \".*/$unit\"" "$tidy/compile_commands.json" && echo "$unit"
    done)
    verdict "clang-tidy (${#compiled[@]} files)" \
        "$(printf '%s\n' "${compiled[@]}" |
            xargs -P "$(nproc)" -n 4 clang-tidy -p "$tidy" --quiet 2>/dev/null |
            grep -E '(warning|error):')"
else
    skip clang-tidy "clang-tidy or $tidy/compile_commands.json is not there"
fi

# The oldest compiler, that of Ubuntu 22.04, without its optimiser.
oldest_commands() {
    python3 - build/cpu/compile_commands.json 2>/dev/null <<'END'
import json, re, sys
for unit in json.load(open(sys.argv[1])):
    if unit["file"].endswith(".c"):
        command = re.sub(r"^(\S*ccache )?\S+", "gcc-11 -fsyntax-only", unit["command"])
        print(f"cd {unit['directory']} && " + re.sub(r" -o \S+", "", command), end="\0")
END
}
mapfile -d '' -t commands < <(oldest_commands)
if command -v gcc-11 >/dev/null && [ ${#commands[@]} -gt 0 ]; then
    verdict "GCC 11 (${#commands[@]} files)" \
        "$(printf '%s\0' "${commands[@]}" | xargs -0 -P "$(nproc)" -n 1 bash -c 2>&1 | grep 'error:')"
else
    skip "GCC 11" "gcc-11, python3 or build/cpu/compile_commands.json is not there"
fi

# ----------------------------------------------------------- the boundaries
# only WHAT PATTERN ALLOWED: files with the pattern outside the allowed paths
only() {
    verdict "$1" "$(grep -lE "$2" "${code[@]}" | grep -vE "^($3)")"
}
only "libmicrohttpd is private to server/http" \
    '#include <microhttpd' 'server/http/'
only "GnuTLS is private to TLS, the hash of tokens, and making them; a test breaks off" \
    '#include <gnutls' 'server/base/tokens.c|client/command_token.c|server/http/tls\.|tests/attack/test_gone\.c'
only "cJSON is private to server/wire and the client, and tests read with it" \
    '#include <cjson' 'server/wire/|client/|tests/'
only "libcurl is private to the client, and tests ask with it" \
    '#include <curl' 'client/|tests/http/|tests/bench/'
only "the CUDA runtime is private to kernels/cuda, and tests drive it" \
    '#include <cuda' 'kernels/cuda/|tests/(kernel|bench)/|tests/calls/no_device.c|tests/http/test_cuda_memory.c'
only "main.c alone opens backends, and ropectl's verify the CPU's; tests do" \
    '\broped_backend_(cpu|cuda|#)|backends\.def' 'server/main.c|client/local_call.c|server/base/config.c|kernels/|tests/'
verdict "what ropectl prints goes through say.c or output.c, which make it printable" \
    "$(grep -lE '\b(stdout|stderr|printf|puts|putchar|STDOUT_FILENO)\b' client/*.c |
        grep -vE '^client/(say|output|support|progress|main|command_(run|sample|verify|top)|top_screen)\.c$')"
verdict "a backend is named in its folder and in backends.def; CUDA IPC is a kind of region" \
    "$(grep -liE 'cuda' kernels/core/* server/exec/* server/http/* |
        grep -vE '^server/(exec/(regions\.[ch]|client_memory\.c)|http/handle_shared_memory\.c)$')"
verdict "rooms are included by name, not by the way to them (tests/boundaries.sh)" \
    "$(grep -nE '#include "[^"]*\.\./' "${code[@]}")"
verdict "the server sees kernels through <roped/...> only" \
    "$(grep -nE '#include "(ops|cpu|cuda|core)/' "${code[@]}" | grep -E '^(server|client)/')"

# ------------------------------------------------------------------ the text
verdict "banned functions" \
    "$(grep -nE '\b(strcpy|strcat|sprintf|gets|atoi|strtok|alloca)\(' "${code[@]}")"
verdict "libraries read and write fractions through roped/number.h, whatever the locale" \
    "$(grep -nE '\b(strto(d|f|ld)|atof)\(|\bv?snprintf\(.*%[-+ #0-9.*]*[aefgAEFG]' "${code[@]}" |
        grep -E '^(kernels|server/wire)/' | grep -v '^kernels/core/number.c:')"
verdict "no notes to self" \
    "$(grep -nE '\b(TODO|FIXME|XXX)\b' "${code[@]}")"
verdict "every file says what it is for" \
    "$(for file in "${code[@]}"; do
        [ -s "$file" ] && head -n 1 "$file" | grep -qE '^(/\*|//)' || echo "$file"
    done)"
verdict "files of one subject, at most 700 lines" \
    "$({ printf '%s\0' "${code[@]}" && find client tests -name '*.py' -print0; } |
        wc -l --files0-from=- | awk '$2 != "total" && $1 > 700')"
built=
[ -x build/cpu/bin/ropectl ] && [ -x build/cpu/bin/roped ] && built=build/cpu
if command -v python3 >/dev/null; then
    verdict "what pages say of files, codes and rooms${built:+, and of flags}" \
        "$(python3 tests/interop/check_pages.py $built 2>&1)"
else
    skip pages "python3 is not installed"
fi
mapfile -t scripts < <(find .ci deploy tests client -name '*.sh' -o -path '.ci/run' | sort)
if command -v shellcheck >/dev/null; then
    verdict "shellcheck (${#scripts[@]} scripts)" "$(shellcheck -x -S warning -e SC2164 "${scripts[@]}")"
else
    skip shellcheck "it is not installed"
fi

[ "$n_failed" -eq 0 ]
