#!/usr/bin/env bash
# Whether programs that were linked with the libraries of an older source run with
# those of a newer one. As long as the soname is the same, abidiff may see nothing
# but what is added.
#   abi.sh OLD_SOURCE NEW_SOURCE WORK
set -eu
mkdir -p "$3"
work=$(realpath "$3")
quietly() { "$@" >"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }; }
# Symbols and types are compared, so nothing is optimised.
install_libraries() { # install_libraries SOURCE NAME
    quietly cmake -G Ninja -S "$1" -B "$work/build_$2" -DROPED_CUDA=OFF -DROPED_TESTS=OFF \
        -DCMAKE_BUILD_TYPE=Debug -DCMAKE_INSTALL_LIBDIR=lib
    quietly ninja -C "$work/build_$2" roped_client roped_kernels
    rm -rf "${work:?}/$2"
    for component in libraries devel; do
        quietly cmake --install "$work/build_$2" --component "$component" --prefix "$work/$2"
    done
}
# What may grow: lists of codes, by whose number nothing is laid out, and the table of a
# backend, which the library alone makes, at its end.
cat >"$work/grows" <<'END'
[suppress_type]
  type_kind = enum
  changed_enumerators = ROPED_STATUS_COUNT
[suppress_type]
  name = roped_backend_api
  has_data_member_inserted_at = end
END
soname() { readelf -d "$1" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p'; }

install_libraries "$1" old
install_libraries "$2" new
for name in client kernels; do
    library=lib/libroped_$name.so
    if [ "$(soname "$work/old/$library")" != "$(soname "$work/new/$library")" ]; then
        echo "ok     $library: another soname, $(soname "$work/new/$library")"
        continue
    fi
    abidiff --suppressions "$work/grows" --no-added-syms --drop-private-types --headers-dir1 "$work/old/include" \
        --headers-dir2 "$work/new/include" "$work"/{old,new}/"$library" || {
        echo "FAILED $library: the soname has to rise, ROPED_SOVERSION in CMakeLists.txt"
        exit 1
    }
    echo "ok     $library: $(soname "$work/new/$library") is what it was"
done
