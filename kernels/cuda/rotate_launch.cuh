// rotate_launch.cuh - how a rotation is cut into blocks: units, heads and tokens over
// (threadIdx.x, y, z) and the grid. Host code only.
#pragma once

#include "cuda/device/rotate.cuh"
#include "cuda/dispatch.cuh"

#include <type_traits>

enum {
    ROTATE_THREADS = 256,      // per block at most: smaller blocks pay for their start
    ROTATE_MIN_THREADS = 64,   // small work: more blocks, so that more multiprocessors start
    ROTATE_ROWS = 4,           // heads that a thread walks in large work
    ROTATE_TABLE_WAVES = 6,    // more is large, for angles of a table
    ROTATE_WAVES = 2,          // and for all other work
    ROTATE_MAX_GRID = 65535,   // of grid.y and grid.z
    ROTATE_MAX_WIDTH = 1 << 24 // of a head, elements
};

struct rotate_shape {
    dim3 block;
    dim3 grid;         // x: see n_columns
    int64_t n_columns; // blocks along the tokens
    int rows;          // per thread: 1 or ROTATE_ROWS
};

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t units_of(const struct rotate_args *rotate)
{
    return (int64_t)rotate->n_tokens * rotate->n_heads *
           (rotate->rotating_units + rotate->rest_units);
}

// Small work takes one 16-byte unit per thread: the shortest chain of instructions. Large work is
// memory-bound: four units per thread keep more loads in flight, and share one set of angles, which
// pays sooner where they are computed. waves: of 2,048 threads on every multiprocessor.
static inline int rotate_rows(int64_t n_units, int waves, int n_multiprocessors)
{
    return n_units > (int64_t)n_multiprocessors * 2048 * waves ? ROTATE_ROWS : 1;
}

// The smallest block that gives every multiprocessor one, for work of this many threads. most: what
// the kernel is compiled for.
static inline int block_threads(int64_t n_threads, int n_multiprocessors, int most = ROTATE_THREADS)
{
    int64_t threads = ceil_div(n_threads, (int64_t)n_multiprocessors * 32) * 32;
    threads = threads < ROTATE_MIN_THREADS ? ROTATE_MIN_THREADS : threads;
    return (int)at_most(threads, most);
}

// Units of a head over threadIdx.x, its token's heads over threadIdx.y and grid.y, tokens over
// what is left of the block and grid.x.
static inline struct rotate_shape rotate_shape_of(const struct rotate_args *rotate, int rows,
                                                  int threads, int most = ROTATE_THREADS)
{
    struct rotate_shape shape = {};
    int64_t units = rotate->rotating_units + rotate->rest_units;
    int64_t x = ceil_div(units, ceil_div(units, most));
    int64_t lanes = ceil_div(rotate->n_heads, rows);
    int64_t room = x < threads ? threads / x : 1;
    int64_t grid_y = at_most(ceil_div(lanes, room), ROTATE_MAX_GRID);
    int64_t y = at_most(ceil_div(lanes, grid_y), room);
    int64_t z = at_most(at_most(room / y, rotate->n_tokens), 64); // threadIdx.z
    shape.block = dim3((unsigned)x, (unsigned)y, (unsigned)z);
    shape.grid = dim3(1, (unsigned)grid_y, (unsigned)ceil_div(units, x));
    shape.n_columns = ceil_div(rotate->n_tokens, z);
    shape.rows = rows;
    return shape;
}

// The same for a grid with further columns, of streams: blocks of a few heads and tokens get
// threads beyond them, which work on the streams only.
static inline struct rotate_shape shape_with_streams(const struct rotate_args *rotate, int rows,
                                                     int threads, int most = ROTATE_THREADS)
{
    struct rotate_shape shape = rotate_shape_of(rotate, rows, threads, most);
    unsigned lanes = shape.block.x * shape.block.y;
    if (lanes * shape.block.z < ROTATE_MIN_THREADS)
        shape.block.z = (ROTATE_MIN_THREADS + lanes - 1) / lanes;
    return shape;
}

// Is it one of the calls that kernels for common ones do? (device/rotate.cuh, kCommon)
static inline bool is_common_rotation(const struct rotate_args *rotate, int kind)
{
    return kind != kAnglesAny && rotate->rest_units == 0 && rotate->angles.position_bytes != 0;
}

// The kernel of a family for a fast kind of angles and a number of rows. kMany: rows in large work.
template <typename Family, typename T, int kUnit, int kMany>
static auto fast_kernel_of(int kind, int rows)
{
    if (kind == kAnglesTable)
        return rows == 1 ? Family::template kernel<T, kUnit, kAnglesTable, 1>
                         : Family::template kernel<T, kUnit, kAnglesTable, kMany>;
    return rows == 1 ? Family::template kernel<T, kUnit, kAnglesComputed, 1>
                     : Family::template kernel<T, kUnit, kAnglesComputed, kMany>;
}

// The same for every kind.
template <typename Family, typename T, int kUnit, int kMany = ROTATE_ROWS>
static auto rotate_kernel_of(int kind, int rows)
{
    if constexpr (kUnit != kUnitScalar)
        if (kind != kAnglesAny)
            return fast_kernel_of<Family, T, kUnit, kMany>(kind, rows);
    return Family::template kernel<T, kUnit, kAnglesAny, 1>;
}

// Launches for all heads: those beyond a grid's height take more launches. more_columns of blocks,
// of the first launch, do not rotate.
template <typename Args>
static enum roped_status launch_heads(Args *args, kernel_fn<Args> *kernel,
                                      const struct rotate_shape *shape, int64_t more_columns,
                                      struct roped_queue *queue, struct roped_error *err)
{
    int64_t heads = (int64_t)shape->grid.y * shape->block.y * shape->rows;
    enum roped_status status = ROPED_OK;
    for (int64_t head = 0; head < args->rotate.n_heads && !status; head += heads) {
        int64_t columns = shape->n_columns + (head == 0 ? more_columns : 0);
        args->rotate.first_head = (int32_t)head;
        status = start(queue, kernel, shape->block, columns, shape->grid, *args, err);
    }
    return status;
}

// Units of 16 bytes need every pointer, step and offset inside a row to be a multiple of 16 bytes,
// and each half of a neox head one of 8. The caller checks pointers of outputs.
static inline bool can_use_vectors(const struct rotate_args *rotate, int64_t head_dim, int vector)
{
    return head_dim % vector == 0 && rotate->rotary_offset % vector == 0 &&
           2 * rotate->angles.rotary.n_pairs % vector == 0 && is_aligned(rotate->from[0], 16) &&
           is_aligned(rotate->from[1], 16) && rotate->token_bytes[0] % 16 == 0 &&
           rotate->token_bytes[1] % 16 == 0;
}

// launch(unit): with std::integral_constant<int, kUnit> of the heads' units, which it counts. Rest
// units start as a count of elements.
template <typename F>
static enum roped_status with_units(struct rotate_args *rotate, bool has_vectors, int vector,
                                    const F &launch)
{
    const struct rope_rotary *rotary = &rotate->angles.rotary;
    rotate->rotating_units = (int32_t)rotary->n_pairs;
    if (!has_vectors)
        return launch(std::integral_constant<int, kUnitScalar>{});
    rotate->rest_units /= vector;
    rotate->rotating_units = (int32_t)(2 * rotary->n_pairs / vector);
    if (rotary->style == ROPE_GPTJ)
        return launch(std::integral_constant<int, kUnitGptj>{});
    return launch(std::integral_constant<int, kUnitNeox>{});
}

static inline enum roped_status
check_step_limit(const char *name, const struct roped_tensor *tensor, struct roped_error *err)
{
    int64_t most = UINT32_MAX / (int64_t)roped_dtype_bytes(tensor->dtype);
    if (tensor->step <= most)
        return ROPED_OK;
    return roped_fail(err, ROPED_TOO_LARGE,
                      "tensor '%s': stride %lld, expected at most %lld on a CUDA device", name,
                      (long long)tensor->step, (long long)most);
}

static inline enum roped_status check_step_limits(const struct roped_call *call,
                                                  struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < call->n_in && !status; i++)
        if (call->in[i].step)
            status = check_step_limit(call->op->in[i].name, &call->in[i], err);
    for (int i = 0; i < call->n_out && !status; i++)
        if (call->out[i].step)
            status = check_step_limit(call->op->out[i].name, &call->out[i], err);
    return status;
}

// What kernels keep in 32 bits.
static inline enum roped_status check_rotate_limits(const struct roped_call *call,
                                                    const char *tensor, int64_t n_tokens,
                                                    int64_t n_heads, int64_t width,
                                                    struct roped_error *err)
{
    if (width > ROTATE_MAX_WIDTH)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "tensor '%s': head width %lld, expected at most %d on a CUDA device",
                          tensor, (long long)width, ROTATE_MAX_WIDTH);
    if (n_tokens > UINT32_MAX)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "tensor '%s': %lld tokens, expected at most %lld on a CUDA device",
                          tensor, (long long)n_tokens, (long long)UINT32_MAX);
    if (n_heads > INT32_MAX / 2 || n_heads * width > UINT32_MAX / 4)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "tensor '%s': %lld heads of width %lld, expected a token of at most "
                          "%lld elements on a CUDA device",
                          tensor, (long long)n_heads, (long long)width,
                          (long long)(UINT32_MAX / 4));
    return check_step_limits(call, err);
}

// Bytes from a token of n elements to the next.
static inline uint32_t token_bytes_of(const struct roped_tensor *tensor, int64_t n)
{
    int64_t step = tensor->step ? tensor->step : n;
    return (uint32_t)(step * (int64_t)roped_dtype_bytes(tensor->dtype));
}

// tensors: q and k [n_tokens, heads, head_dim], checked by check_rotate_limits, where all that does
// not rotate is written too.
static inline void set_rotate_tensors(struct rotate_args *rotate,
                                      const struct roped_tensor *tensors, const int64_t (&heads)[2],
                                      int64_t head_dim)
{
    rotate->head_bytes = (int32_t)(head_dim * (int64_t)roped_dtype_bytes(tensors->dtype));
    rotate->q_heads = (int32_t)heads[0];
    rotate->n_heads = (int32_t)(heads[0] + heads[1]);
    rotate->n_tokens = (uint32_t)rotate->angles.rotary.n_tokens;
    rotate->from[0] = static_cast<const char *>(tensors[0].data);
    rotate->from[1] = reinterpret_cast<const char *>(
        (uintptr_t)tensors[1].data - (uintptr_t)heads[0] * (uintptr_t)rotate->head_bytes);
    for (int i = 0; i < 2; i++)
        rotate->token_bytes[i] = token_bytes_of(&tensors[i], heads[i] * head_dim);
    rotate->rest_units = (int32_t)(head_dim - 2 * rotate->angles.rotary.n_pairs);
}

// ------------------------------------------------------------------------------------ outputs

// Is this output apart from the input whose place it might take, and stepped otherwise?
static inline bool has_other_step(const struct roped_call *call, int output)
{
    int shared = roped_op_shared(call->op, output);
    const struct roped_tensor *to = &call->out[output];
    return shared >= 0 && roped_tensor_given(to) && to->data != call->in[shared].data &&
           to->step != call->in[shared].step;
}

static inline enum roped_status copy_tokens(const struct roped_tensor *to,
                                            const struct roped_tensor *from,
                                            struct roped_queue *queue, struct roped_error *err)
{
    size_t n = (size_t)roped_tensor_tokens(from), elements = (size_t)roped_tensor_token(from);
    size_t bytes = elements * roped_dtype_bytes(from->dtype);
    if (n * bytes == 0)
        return ROPED_OK;
    cudaError_t code = cudaMemcpy2DAsync(to->data, token_bytes_of(to, (int64_t)elements),
                                         from->data, token_bytes_of(from, (int64_t)elements), bytes,
                                         n, cudaMemcpyDefault, queue->stream);
    if (code != cudaSuccess)
        return roped_cuda_fail(queue->backend, code, "cudaMemcpy2DAsync", err);
    return ROPED_OK;
}

// launch(call), for kernels that find the output of a head from its input's address: both have one
// step. An output with another one takes what its input holds, and is the input then: a pass more,
// for calls that hardly anybody makes, instead of two steps in every kernel.
template <typename F>
static enum roped_status with_one_step(const struct roped_call *call, struct roped_queue *queue,
                                       struct roped_error *err, const F &launch)
{
    struct roped_call own;
    const struct roped_call *settled = call;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < call->n_out && !status; i++) {
        if (!has_other_step(call, i))
            continue;
        if (settled == call)
            own = *call;
        settled = &own;
        struct roped_tensor *in = &own.in[roped_op_shared(call->op, i)];
        status = copy_tokens(&call->out[i], in, queue, err);
        in->data = call->out[i].data;
        in->step = call->out[i].step;
    }
    return status ? status : launch(settled);
}
