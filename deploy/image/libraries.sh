# shellcheck shell=bash
# libraries.sh - sourced by scripts that copy programs with the libraries that they
# link, on Debian and Ubuntu.

# libraries_of PROGRAM... : their paths, each once
libraries_of() {
    ldd "$@" | sed -n 's/ (0x.*//; s/^.*=> //; s/^[[:space:]]*//; /:$/d; /^\//p' | sort -u
}

# owner FILE : the package that it is of. dpkg knows a file by its path before or
# after /lib moved to /usr/lib.
owner() {
    local file
    file=$(realpath "$1")
    { dpkg-query -S "$file" 2>/dev/null || dpkg-query -S "${file#/usr}" 2>/dev/null ||
        dpkg-query -S "/usr$file"; } | sed 's/: .*//'
}
