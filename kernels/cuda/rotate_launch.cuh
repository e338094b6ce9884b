// rotate_launch.cuh - the launch of every rotary operator: from its plan to the arguments, the
// kernel and the grid of a form, and how a rotation is cut into blocks: units, heads and tokens
// over (threadIdx.x, y, z) and the grid.
//
// A form is a struct that stands for a family of kernels, with static members alone. It derives
// from rotary_form, which has what most of them do, or from qk_form (qk_norm_launch.cuh).
#pragma once

#include "cuda/device/fp8_stream.cuh"
#include "cuda/dispatch.cuh"
#include "ops/heads_plan.h"

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
static inline bool is_large_work(int64_t n_units, int waves, int n_multiprocessors)
{
    return n_units > (int64_t)n_multiprocessors * 2048 * waves;
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

// For a grid with further columns, of streams: blocks of a few heads and tokens get threads beyond
// them, which work on the streams only.
static inline void add_stream_threads(struct rotate_shape *shape)
{
    unsigned lanes = shape->block.x * shape->block.y;
    if (lanes * shape->block.z < ROTATE_MIN_THREADS)
        shape->block.z = (ROTATE_MIN_THREADS + lanes - 1) / lanes;
}

// Is it one of the calls that kernels for common ones do? (device/rotate.cuh, kCommon)
static inline bool is_common_rotation(const struct rotate_args *rotate, int kind)
{
    return kind != kAnglesAny && rotate->rest_units == 0 && rotate->angles.position_bytes != 0;
}

// ------------------------------------------------------------------------------------ kernels

// All kernels that rotate without a norm. Form::rotate<T, kUnit, kAngles, kRows>(args) is what the
// first columns of the grid do, Form::write_streams<T>(args) the others.
template <typename Form, typename T, int kUnit, int kAngles, int kRows>
__global__ void __launch_bounds__(Form::kThreads, Form::kMinBlocks)
    rotary_kernel(const __grid_constant__ typename Form::args args)
{
    let_next_start();
    if constexpr (Form::kHasStreams)
        if (blockIdx.x >= args.rotate_columns) {
            Form::template write_streams<T>(args);
            return;
        }
    Form::template rotate<T, kUnit, kAngles, kRows>(args);
}

// Of a form, for a fast kind of angles and a number of rows. kMany: rows in large work.
template <typename Form, typename T, int kUnit, int kMany>
static kernel_fn<typename Form::args> *fast_kernel_of(int kind, int rows)
{
    if (kind == kAnglesTable)
        return rows == 1 ? rotary_kernel<Form, T, kUnit, kAnglesTable, 1>
                         : rotary_kernel<Form, T, kUnit, kAnglesTable, kMany>;
    return rows == 1 ? rotary_kernel<Form, T, kUnit, kAnglesComputed, 1>
                     : rotary_kernel<Form, T, kUnit, kAnglesComputed, kMany>;
}

// The same for every kind.
template <typename Form, typename T, int kUnit, int kMany>
static kernel_fn<typename Form::args> *rotary_kernel_of(int kind, int rows)
{
    if constexpr (kUnit != kUnitScalar)
        if (kind != kAnglesAny)
            return fast_kernel_of<Form, T, kUnit, kMany>(kind, rows);
    return rotary_kernel<Form, T, kUnit, kAnglesAny, 1>;
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

// Units of 16 bytes need every pointer, stride and offset inside a row to be a multiple of 16
// bytes, and each half of a neox head one of 8. The caller checks pointers of outputs.
static inline bool can_use_vectors(const struct rotate_args *rotate, int64_t head_dim, int vector)
{
    return head_dim % vector == 0 && rotate->rotary_offset % vector == 0 &&
           2 * rotate->angles.rotary.n_pairs % vector == 0 && is_aligned(rotate->from[0], 16) &&
           is_aligned(rotate->from[1], 16) && rotate->token_bytes[0] % 16 == 0 &&
           rotate->token_bytes[1] % 16 == 0;
}

static_assert(ROPE_N_STYLES == 2, "with_units");

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
check_stride_limit(const char *name, const struct roped_tensor *tensor, struct roped_error *err)
{
    int64_t most = UINT32_MAX / (int64_t)roped_dtype_bytes(tensor->dtype);
    if (tensor->stride <= most)
        return ROPED_OK;
    return roped_fail(err, ROPED_TOO_LARGE,
                      "tensor '%s': stride %lld, expected at most %lld on a CUDA device", name,
                      (long long)tensor->stride, (long long)most);
}

static inline enum roped_status check_stride_limits(const struct roped_call *call,
                                                    struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < call->n_in && !status; i++)
        if (call->in[i].stride)
            status = check_stride_limit(call->op->in[i].name, &call->in[i], err);
    for (int i = 0; i < call->n_out && !status; i++)
        if (call->out[i].stride)
            status = check_stride_limit(call->op->out[i].name, &call->out[i], err);
    return status;
}

// What kernels keep in 32 bits, of a form's walk.
struct rotate_limits {
    int64_t n_heads, width;
};

static inline enum roped_status check_rotate_limits(const struct roped_call *call, int64_t n_tokens,
                                                    const struct rotate_limits &limits,
                                                    struct roped_error *err)
{
    const char *tensor = call->op->in[0].name;
    int64_t n_heads = limits.n_heads, width = limits.width;
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
    return check_stride_limits(call, err);
}

// Bytes from a token of n elements to the next.
static inline uint32_t token_bytes_of(const struct roped_tensor *tensor, int64_t n)
{
    int64_t stride = tensor->stride ? tensor->stride : n;
    return (uint32_t)(stride * (int64_t)roped_dtype_bytes(tensor->dtype));
}

// ------------------------------------------------------------------------------------ the plan

static inline const struct heads_plan *heads_plan_of(const struct roped_call *call)
{
    return reinterpret_cast<const struct heads_plan *>(call->plan);
}

// The parts that rotate: of q, and of k where there is one.
static inline const struct heads_part *k_part(const struct heads_plan *plan)
{
    return plan->n_parts > 1 && plan->part[1].rotates ? &plan->part[1] : NULL;
}

// What comes from an input; NULL where nothing does.
static inline const struct heads_part *part_from(const struct heads_plan *plan, int input)
{
    for (int i = 0; i < plan->n_parts; i++)
        if (plan->part[i].from == input)
            return &plan->part[i];
    return NULL;
}

static inline int64_t k_heads_of(const struct heads_plan *plan)
{
    return k_part(plan) ? k_part(plan)->heads : 0;
}

// base less so many bytes, those of heads that are counted but are not there.
template <typename Byte>
static inline Byte *less_bytes(Byte *base, int64_t n_bytes)
{
    return reinterpret_cast<Byte *>((uintptr_t)base - (uintptr_t)n_bytes);
}

// Bytes from one to the other; 0 where there is no other.
static inline int64_t bytes_between(const void *from, const void *to)
{
    return to ? (int64_t)((uintptr_t)to - (uintptr_t)from) : 0;
}

// From q (0), or k (1), to its output.
static inline int64_t bytes_to_output(const struct roped_call *call, int which)
{
    const struct heads_plan *plan = heads_plan_of(call);
    if (which >= plan->n_parts || plan->part[which].to == HEADS_NO_PORT)
        return 0;
    const struct heads_part *part = &plan->part[which];
    return bytes_between(call->in[part->from].data, call->out[part->to].data);
}

// Of a call within limits; all that does not rotate is written too.
static inline void set_rotate_args(struct rotate_args *rotate, const struct roped_call *call)
{
    const struct heads_plan *plan = heads_plan_of(call);
    const struct roped_tensor *tensors = call->in; // q and k are the first two
    const int64_t heads[2] = {plan->part[0].heads, k_heads_of(plan)};
    int64_t width = plan->part[0].width;
    rotate->angles = angle_args_of(call, &plan->rotary);
    rotate->rotary_offset = plan->first;
    rotate->head_bytes = (int32_t)(width * (int64_t)roped_dtype_bytes(tensors->dtype));
    rotate->q_heads = (int32_t)heads[0];
    rotate->n_heads = (int32_t)(heads[0] + heads[1]);
    rotate->n_tokens = (uint32_t)plan->rotary.n_tokens;
    rotate->from[0] = static_cast<const char *>(tensors[0].data);
    rotate->from[1] =
        less_bytes(static_cast<const char *>(tensors[1].data), heads[0] * rotate->head_bytes);
    for (int i = 0; i < 2; i++)
        rotate->token_bytes[i] = token_bytes_of(&tensors[i], heads[i] * width);
    rotate->rest_units = (int32_t)(width - 2 * plan->rotary.n_pairs);
}

// ------------------------------------------------------------------------------------ outputs

// Is this output apart from the input whose place it might take, and strided otherwise? One token,
// as in a decode loop, has nothing that a stride could lead to.
static inline bool has_other_stride(const struct roped_call *call, int output)
{
    int shared = roped_op_shared(call->op, output);
    const struct roped_tensor *to = &call->out[output];
    return shared >= 0 && roped_tensor_given(to) && to->data != call->in[shared].data &&
           to->stride != call->in[shared].stride && roped_tensor_tokens(to) > 1;
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
// stride. An output with another one takes what its input holds, and is the input then: a pass
// more, for calls that hardly anybody makes, instead of two strides in every kernel.
template <typename F>
static enum roped_status with_one_stride(const struct roped_call *call, struct roped_queue *queue,
                                         struct roped_error *err, const F &launch)
{
    struct roped_call own;
    const struct roped_call *settled = call;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < call->n_out && !status; i++) {
        if (!has_other_stride(call, i))
            continue;
        if (settled == call)
            own = *call;
        settled = &own;
        struct roped_tensor *in = &own.in[roped_op_shared(call->op, i)];
        status = copy_tokens(&call->out[i], in, queue, err);
        in->data = call->out[i].data;
        in->stride = call->out[i].stride;
    }
    return status ? status : launch(settled);
}

// ------------------------------------------------------------------------------------ forms

// Units and streams decide together how small a block is: one decode token of MLA, 148 KB in and
// 74 KB out, is 9,300 vectors, and must reach every multiprocessor.
template <typename Form, typename T, int kUnit>
static enum roped_status launch_walk(typename Form::args *args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    const struct rotate_args *rotate = &args->rotate;
    int n_processors = queue->n_multiprocessors;
    int kind = angle_kind_of(&rotate->angles, rotate_unit<T, kUnit>::kPairs);
    constexpr int kMany = kUnit == kUnitNeoxWide ? Form::kWideRows : (int)ROTATE_ROWS;
    bool walks =
        kUnit != kUnitScalar && kind != kAnglesAny && rotate->n_heads >= kMany && Form::walks(args);
    int waves = kind == kAnglesTable ? Form::kTableWaves : ROTATE_WAVES;
    int64_t n_units = units_of(rotate), n_vectors = 0;
    if constexpr (Form::kHasStreams)
        n_vectors = Form::vectors(args, kVecOf<T>);
    bool is_large = is_large_work(n_units + n_vectors, waves, n_processors);
    int rows = is_large && walks ? kMany : 1;
    int tile = n_units + n_vectors > (int64_t)n_processors * Form::kTileFrom ? kTileVectors : 1;
    int64_t n_threads = ceil_div(n_units, rows) + ceil_div(n_vectors, tile);
    int threads =
        is_large ? Form::kLargeThreads : block_threads(n_threads, n_processors, Form::kThreads);
    struct rotate_shape shape = rotate_shape_of(rotate, rows, threads, Form::kThreads);
    int64_t tile_columns = 0;
    if constexpr (Form::kHasStreams) {
        add_stream_threads(&shape);
        args->tile_vectors = tile;
        args->rotate_columns = (uint32_t)shape.n_columns;
        int64_t tiles =
            Form::cut(args, (int64_t)shape.block.x * shape.block.y * shape.block.z, kVecOf<T>);
        tile_columns = ceil_div(tiles, (int64_t)shape.grid.y * shape.grid.z);
    }
    return launch_heads(args, Form::template kernel<T, kUnit, kMany>(args, kind, rows), &shape,
                        tile_columns, queue, err);
}

// kUnit is what vectors are cut into; a form may want twice as wide ones.
template <typename Form, typename T, int kUnit>
static enum roped_status launch_rotation(typename Form::args *args, struct roped_queue *queue,
                                         struct roped_error *err)
{
    if constexpr (kUnit == kUnitNeox && Form::kWideRows > 0)
        if (args->rotate.angles.n_pairs % kVecOf<T> == 0 &&
            Form::template is_wide<T>(args, queue)) {
            args->rotate.rotating_units /= 2;
            return launch_walk<Form, T, kUnitNeoxWide>(args, queue, err);
        }
    return launch_walk<Form, T, kUnit>(args, queue, err);
}

// What most forms are. One for rotary_kernel adds
//     args                  the kernels' parameters: rotate_args rotate, and where it has streams
//                           rotate_columns and tile_vectors, too
//     set(args, call)       all of them but rotate
//     use_vectors<T>(args)  can outputs take 16-byte units? Streams get theirs
//     kernel<T, kUnit, kMany>(args, kind, rows)   kMany: rows in large work
// and with streams
//     vectors(args, vector)       how many there are
//     cut(args, threads, vector)  gives them tiles of so many threads; how many
// and with wide units is_wide<T>(args, queue).
struct rotary_form {
    static constexpr int kThreads = ROTATE_THREADS;      // of a block, at most
    static constexpr int kLargeThreads = ROTATE_THREADS; // of a block of large work
    static constexpr int kMinBlocks = 0;                 // on a multiprocessor
    static constexpr int kTableWaves = ROTATE_WAVES;     // more is large, for angles of a table
    static constexpr bool kHasStreams = false;           // columns of blocks that do not rotate
    static constexpr int kTileFrom = 0;        // threads per multiprocessor where tiles are large
    static constexpr int kWideRows = 0;        // heads that a thread walks in wide units; 0: none
    static constexpr bool kHasStrides = false; // outputs have strides of their own

    template <typename Args>
    static bool walks(const Args *) // has it kernels whose threads walk several heads?
    {
        return true;
    }
    template <typename Form, typename T, int kUnit>
    static enum roped_status launch(typename Form::args *args, struct roped_queue *queue,
                                    struct roped_error *err)
    {
        return launch_rotation<Form, T, kUnit>(args, queue, err);
    }
    // what is left to do for a call
    template <typename T>
    static enum roped_status finish(const struct roped_call *, struct roped_queue *,
                                    struct roped_error *)
    {
        return ROPED_OK;
    }
    static struct rotate_limits limits(const struct heads_plan *plan)
    {
        return {plan->part[0].heads + k_heads_of(plan), plan->part[0].width};
    }
};

// ------------------------------------------------------------------------------------ launch

// A call within limits.
template <typename Form>
static enum roped_status launch_form(const struct roped_call *call, struct roped_queue *queue,
                                     struct roped_error *err)
{
    typename Form::args args = {};
    set_rotate_args(&args.rotate, call);
    Form::set(&args, call);
    return with_float_type(call->in[0].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        bool has_vectors =
            can_use_vectors(&args.rotate, heads_plan_of(call)->part[0].width, kVecOf<T>);
        has_vectors = Form::template use_vectors<T>(&args, queue) && has_vectors;
        enum roped_status status = with_units(&args.rotate, has_vectors, kVecOf<T>, [&](auto unit) {
            return Form::template launch<Form, T, decltype(unit)::value>(&args, queue, err);
        });
        return status ? status : Form::template finish<T>(call, queue, err);
    });
}

// launch(call) of a call that is not empty, whose kernels know one stride of q, and one of k,
// unless they have more.
template <typename Form, typename F>
static enum roped_status with_limits(const struct roped_call *call, struct roped_queue *queue,
                                     struct roped_error *err, const F &launch)
{
    const struct heads_plan *plan = heads_plan_of(call);
    enum roped_status status =
        check_rotate_limits(call, plan->rotary.n_tokens, Form::limits(plan), err);
    if (status || plan->rotary.n_tokens == 0 || plan->part[0].heads + k_heads_of(plan) == 0)
        return status;
    return Form::kHasStrides ? launch(call) : with_one_stride(call, queue, err, launch);
}

template <typename Form>
static enum roped_status launch_rotary(const struct roped_call *call, struct roped_queue *queue,
                                       struct roped_error *err)
{
    return with_limits<Form>(call, queue, err, [&](const struct roped_call *settled) {
        return launch_form<Form>(settled, queue, err);
    });
}
