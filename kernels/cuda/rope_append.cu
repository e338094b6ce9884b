// rope_append.cu - rope_append on a CUDA device: q rotated to its output, k rotated to its slot of
// the cache (and to an output where that is asked for), v copied to its slot, in one launch.
//
// A token's heads of q, k and v are rows of units (device/rotate.cuh) that threads share as in
// rope; a value head is a row whose units do not rotate. A thread walks several rows of one token:
// it finds the token's slot and angles once. Every byte is read once and written once.
#include "cuda/device/stream.cuh"
#include "cuda/rotate_launch.cuh"
#include "ops/rope_append.h"

enum { APPEND_MIN_BLOCKS = 2 }; // per multiprocessor: registers for more would not hold the loads

struct append_args {
    struct rotate_args rotate;
    const void *v;
    void *q_out;
    void *k_out; // NULL: k is not returned
    void *cache[2];
    struct append_map map;
};

// Where a row goes: up to two places, each less the row's first element in its input.
template <typename T, int kUnit>
struct row_sink {
    using unit = rotate_unit<T, kUnit>;
    T *to[2]; // NULL: nowhere

    __device__ __forceinline__ void rest(bool, int64_t at, const typename unit::word &word) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (to[i])
                *reinterpret_cast<typename unit::word *>(to[i] + at) = word;
    }
    __device__ __forceinline__ void rotated(bool is_k, int64_t at,
                                            const float (&x)[unit::kVec]) const
    {
        if constexpr (unit::kIsScalar)
            rest(is_k, at, element<T>::from_float(x[0]));
        else
            rest(is_k, at, pack<T>(x));
    }
};

// One head of q, k or v of one token.
struct append_row {
    rotate_row row; // element in its input
    int head;       // of k or v
    bool is_v;
};

__device__ __forceinline__ append_row append_row_of(const append_args &args, int64_t token,
                                                    int64_t head, bool exists)
{
    int64_t q_heads = args.rotate.heads[0], k_heads = args.rotate.heads[1];
    append_row out;
    out.is_v = head >= q_heads + k_heads;
    if (out.is_v)
        head -= k_heads;
    out.row = row_of(args.rotate, token, head, exists);
    out.head = (int)(head - q_heads);
    return out;
}

template <typename T, int kUnit>
__device__ __forceinline__ void load_append_row(const append_args &args, const append_row &row,
                                                const unit_place &place, row_words<T, kUnit> &out)
{
    if (!row.row.exists)
        return;
    const void *from = row.is_v ? args.v : row.row.is_k ? args.rotate.from[1] : args.rotate.from[0];
    load_word<T, kUnit>(from, row.row.first + place.at[0], out.word[0]);
    if constexpr (rotate_unit<T, kUnit>::kVectors == 2)
        if (place.has_second)
            load_word<T, kUnit>(from, row.row.first + place.at[1], out.word[1]);
}

template <typename T, int kUnit>
__device__ __forceinline__ row_sink<T, kUnit> sink_of(const append_args &args,
                                                      const append_row &row, int64_t cell)
{
    if (!row.row.is_k)
        return {{static_cast<T *>(args.q_out), nullptr}};
    int64_t first = (cell + row.head * args.map.head_step) * args.rotate.head_dim;
    T *cache = static_cast<T *>(row.is_v ? args.cache[1] : args.cache[0]);
    T *out = row.is_v ? nullptr : static_cast<T *>(args.k_out);
    return {{cell < 0 ? nullptr : cache + (first - row.row.first), out}};
}

// ------------------------------------------------------------------------------------ kernels

template <typename T, int kUnit, int kAngles, int kRows>
__global__ void __launch_bounds__(ROTATE_THREADS, APPEND_MIN_BLOCKS)
    rope_append_kernel(const __grid_constant__ struct append_args args)
{
    using unit_type = rotate_unit<T, kUnit>;
    enter_stream();
    const rotate_args &rotate = args.rotate;
    int unit = blockIdx.z * blockDim.x + threadIdx.x;
    int rest_units = (rotate.rest_vectors + unit_type::kVectors - 1) / unit_type::kVectors;
    int64_t token = (int64_t)blockIdx.x * blockDim.z + threadIdx.z;
    int64_t n_rows = rotate.heads[0] + 2 * rotate.heads[1];
    int64_t step = (int64_t)gridDim.y * blockDim.y;
    int64_t first = (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
    if (unit >= rotate.rotating_units + rest_units || token >= rotate.angles.rotary.n_tokens ||
        first >= n_rows)
        return;
    unit_place place = place_of<T, kUnit>(rotate, unit);
    angle_values<unit_type::kPairs> angle;
    int64_t cell = 0;
    bool is_found = false;
    for (; first < n_rows; first += kRows * step) {
        append_row row[kRows];
        row_words<T, kUnit> words[kRows];
#pragma unroll
        for (int r = 0; r < kRows; r++) {
            row[r] = append_row_of(args, token, first + r * step, first + r * step < n_rows);
            load_append_row<T, kUnit>(args, row[r], place, words[r]);
        }
        if (!is_found) { // not before: these loads depend on each other, those above on nothing
            cell = append_cell(&args.map, token);
            if (place.rotates) {
                int64_t position =
                    kAngles == kAnglesAny ? 0 : position_of<true>(rotate.angles, token, 0);
                angles_of<kAngles>(rotate.angles, token, position, place.first_pair, angle);
            }
        }
        is_found = true;
#pragma unroll
        for (int r = 0; r < kRows; r++) {
            unit_place at = place;
            at.rotates = place.rotates && !row[r].is_v;
            finish_row<T, kUnit>(sink_of<T, kUnit>(args, row[r], cell), row[r].row, at, angle,
                                 words[r]);
        }
    }
}

// ------------------------------------------------------------------------------------ launchers

// Cut as rope is: one row per thread and small blocks for little work, eight loads in flight for
// much.
template <int kUnit>
static struct rotate_shape choose_shape(const struct rotate_args *rotate, int units,
                                        const struct roped_queue *queue)
{
    int n_multiprocessors = queue->n_multiprocessors;
    int64_t n_rows = rotate->heads[0] + 2 * rotate->heads[1];
    int64_t n_tokens = rotate->angles.rotary.n_tokens;
    int rows = rows_per_thread(n_tokens, units, n_rows, kRotateRows<kUnit>, n_multiprocessors);
    int64_t n_threads = units * ceil_div(n_tokens * n_rows, rows);
    return shape_heads(n_tokens, units, n_rows, rows, block_threads(n_threads, n_multiprocessors));
}

template <typename T, int kUnit, int kAngles>
static kernel_fn<append_args> *kernel_of(int rows)
{
    if (rows == 1) // decode: less code to fetch
        return rope_append_kernel<T, kUnit, kAngles, 1>;
    return rope_append_kernel<T, kUnit, kAngles, kRotateRows<kUnit>>;
}

template <typename T, int kUnit>
static enum roped_status launch_units(struct append_args *args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    using unit = rotate_unit<T, kUnit>;
    struct rotate_args *rotate = &args->rotate;
    int units = rotate->rotating_units + (int)ceil_div(rotate->rest_vectors, unit::kVectors);
    struct rotate_shape shape = choose_shape<kUnit>(rotate, units, queue);
    kernel_fn<append_args> *kernel = rope_append_kernel<T, kUnit, kAnglesAny, kRotateRows<kUnit>>;
    if constexpr (kUnit != kUnitScalar) {
        int kind = angle_kind_of(&rotate->angles, unit::kPairs);
        if (kind == kAnglesTable)
            kernel = kernel_of<T, kUnit, kAnglesTable>(shape.rows);
        else if (kind == kAnglesComputed)
            kernel = kernel_of<T, kUnit, kAnglesComputed>(shape.rows);
    }
    return start(queue, kernel, shape.block, shape.n_columns, shape.grid, *args, err);
}

template <typename T>
static enum roped_status launch_type(struct append_args *args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    struct rotate_args *rotate = &args->rotate;
    const struct rope_rotary *rotary = &rotate->angles.rotary;
    const void *pointers[] = {rotate->from[0], rotate->from[1], args->v,       args->q_out,
                              args->k_out,     args->cache[0],  args->cache[1]};
    bool has_vectors = can_use_vectors(rotary, rotate->head_dim, rotate->rotary_offset, kVec);
    for (const void *pointer : pointers)
        has_vectors = has_vectors && is_aligned(pointer, 16);
    if (!has_vectors) {
        rotate->rotating_units = (int32_t)rotary->n_pairs;
        return launch_units<T, kUnitScalar>(args, queue, err);
    }
    rotate->rest_vectors /= kVec;
    if (rotary->style == ROPE_GPTJ) {
        rotate->rotating_units = (int32_t)(2 * rotary->n_pairs / kVec);
        return launch_units<T, kUnitGptj>(args, queue, err);
    }
    rotate->rotating_units = (int32_t)(rotary->n_pairs / kVec);
    return launch_units<T, kUnitNeox>(args, queue, err);
}

// rest_vectors starts as a count of elements; launch_type knows the width of a vector.
static struct append_args args_of(const struct roped_call *call)
{
    const struct rope_append_plan *plan =
        reinterpret_cast<const struct rope_append_plan *>(call->plan);
    const struct rope_plan *rope = &plan->rope;
    struct append_args args = {};
    args.rotate.angles = angle_args_of(call, &rope->rotary, ROPE_APPEND_POSITIONS);
    args.rotate.from[0] = call->in[ROPE_APPEND_Q].data;
    args.rotate.from[1] = call->in[ROPE_APPEND_K].data;
    args.rotate.heads[0] = rope->q_heads;
    args.rotate.heads[1] = rope->k_heads;
    args.rotate.head_dim = (int32_t)rope->head_dim;
    args.rotate.rotary_offset = (int32_t)rope->rotary_offset;
    args.rotate.rest_vectors = (int32_t)(rope->head_dim - 2 * rope->rotary.n_pairs);
    args.v = call->in[ROPE_APPEND_V].data;
    args.q_out = call->out[ROPE_APPEND_Q_OUT].data;
    args.k_out = call->out[ROPE_APPEND_K_OUT].data;
    args.cache[0] = call->out[ROPE_APPEND_K_CACHE_OUT].data;
    args.cache[1] = call->out[ROPE_APPEND_V_CACHE_OUT].data;
    args.map = rope_append_map(call, plan);
    return args;
}

extern "C" enum roped_status roped_cuda_rope_append(const struct roped_call *call,
                                                    struct roped_queue *queue,
                                                    struct roped_error *err)
{
    const struct rope_plan *plan =
        &reinterpret_cast<const struct rope_append_plan *>(call->plan)->rope;
    enum roped_status status = check_head_width("q", plan->head_dim, err);
    if (status || plan->rotary.n_tokens == 0 || plan->q_heads + plan->k_heads == 0)
        return status;
    struct append_args args = args_of(call);
    return with_float_type(call->in[ROPE_APPEND_Q].dtype, [&](auto tag) {
        return launch_type<typename decltype(tag)::type>(&args, queue, err);
    });
}
