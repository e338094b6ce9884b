# shellcheck shell=bash disable=SC2034 # used by those who source it
# environment.sh - sourced by quickstart.sh and tests/run.sh, in the root of the
# repository: which build suits this machine, and how it is made.

# tools that deploy/install-deps.sh put there, and a toolkit that is not on PATH
export PATH="$PWD/build/tools/bin:$PATH:/usr/local/cuda/bin"

# a file that was compiled before is not compiled again, wherever it lies
if command -v ccache >/dev/null; then
    export CCACHE_BASEDIR=/ CCACHE_NOHASHDIR=true
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    export CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi

has_gpu() {
    command -v nvcc >/dev/null && command -v nvidia-smi >/dev/null &&
        nvidia-smi -L 2>/dev/null | grep -q '^GPU'
}

# Where the CUDA toolkit is, as nvcc itself says: what is found may be a script that
# calls it elsewhere.
cuda_toolkit() {
    local top
    top=$(nvcc -v none.cu 2>&1 | sed -n 's/^#\$ TOP=//p')
    top=$(realpath -m "${top:-none}")
    [ -d "$top/nvvm" ] && echo "$top"
}

# Sets build_dir and build_flags: with CUDA for the GPU of this machine alone,
# which builds faster than every architecture, or the CPU backend alone.
choose_build() {
    if has_gpu; then
        build_dir=build/native
        build_flags="--preset release -B $build_dir -DCMAKE_CUDA_ARCHITECTURES=native"
        echo "GPU: $(nvidia-smi -L | head -n 1 | sed 's/ (UUID.*//'); CUDA: $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
    else
        build_dir=build/cpu
        build_flags="--preset cpu"
        echo "no GPU with a CUDA toolkit found: building the CPU backend alone"
    fi
}

# quietly COMMAND... : its output is shown where it fails
quietly() {
    local log status
    log=$(mktemp)
    "$@" >"$log" 2>&1
    status=$?
    [ "$status" -eq 0 ] || cat "$log"
    rm -f "$log"
    return "$status"
}

# build DIR "CMAKE_FLAG ..." [TARGET ...] : ninja's lines are the progress of
# what may take minutes; on a terminal they are one line
build() {
    local dir=$1 flags
    read -ra flags <<<"$2"
    shift 2
    quietly cmake -G Ninja "${flags[@]}" &&
        ninja -C "$dir" -j "$(nproc)" "$@"
}
