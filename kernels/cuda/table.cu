// table.cu - tables of cos and sin, and the probe that open makes.
//
//     row p: [cos(p f_0) .. cos(p f_{n-1}), sin(p f_0) .. sin(p f_{n-1})] * attention_factor
//
// One thread per (row, pair). Frequencies travel as kernel parameters: the caller's array has been
// read when the launch returns, whatever kind of memory it is in, and nothing is allocated.
#include "cuda/device/sincos.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/dispatch.cuh"

constexpr int kTableThreads = 128;
constexpr size_t kFrequencyBytes = 3584; // of the 4 KB that kernel parameters may have

template <typename F>
struct table_args {
    float *row; // of first_row
    int64_t first_row;
    int64_t n_rows;
    int64_t n_pairs; // of a whole row
    int32_t first_pair;
    int32_t n_part; // pairs of this launch
    float attention_factor;
    int32_t reserved;
    F frequency[kFrequencyBytes / sizeof(F)];
};

// ------------------------------------------------------------------------------------ kernels

// blockDim is (pairs, rows).
template <typename F>
__global__ void __launch_bounds__(kTableThreads)
    table_kernel(const __grid_constant__ struct table_args<F> args)
{
    let_next_start();
    wait_for_previous();
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= args.n_rows)
        return;
    float *cosines = args.row + row * 2 * args.n_pairs + args.first_pair;
    for (int i = threadIdx.x; i < args.n_part; i += blockDim.x) {
        float sine, cosine;
        sincos_of_product((F)(args.first_row + row), args.frequency[i], sine, cosine);
        cosines[i] = cosine * args.attention_factor;
        cosines[args.n_pairs + i] = sine * args.attention_factor;
    }
}

// ------------------------------------------------------------------------------------ launchers

template <typename F>
static enum roped_status build_part(struct roped_queue *queue, struct table_args<F> *args,
                                    const F *frequency, struct roped_error *err)
{
    int64_t left = args->n_pairs - args->first_pair;
    int64_t room = (int64_t)(kFrequencyBytes / sizeof(F));
    args->n_part = (int32_t)(left < room ? left : room);
    memcpy(args->frequency, frequency + args->first_pair, (size_t)args->n_part * sizeof(F));
    unsigned x = args->n_part < kTableThreads ? (unsigned)args->n_part : kTableThreads;
    unsigned y = kTableThreads / x;
    return start(queue, table_kernel<F>, dim3(x, y), (args->n_rows + y - 1) / y, dim3(), *args,
                 err);
}

template <typename F>
static enum roped_status build(struct roped_queue *queue, const struct roped_angles *angles,
                               const F *frequency, struct table_args<F> *args,
                               struct roped_error *err)
{
    args->n_pairs = angles->n_pairs;
    args->attention_factor = angles->attention_factor;
    while (args->first_pair < args->n_pairs) {
        enum roped_status status = build_part(queue, args, frequency, err);
        if (status)
            return status;
        args->first_pair += args->n_part;
    }
    return ROPED_OK;
}

extern "C" enum roped_status roped_cuda_build_table(struct roped_queue *queue,
                                                    const struct roped_angles *angles,
                                                    int64_t first_row, int64_t rows, float *device,
                                                    struct roped_error *err)
{
    if (rows == 0)
        return ROPED_OK;
    if (angles->precision == ROPED_ANGLE_F64) {
        struct table_args<double> args = {
            device, first_row, rows
        };
        return build(queue, angles, angles->frequency.f64, &args, err);
    }
    struct table_args<float> args = {
        device, first_row, rows
    };
    return build(queue, angles, angles->frequency.f32, &args, err);
}

extern "C" cudaError_t roped_cuda_probe(void)
{
    struct cudaFuncAttributes found;
    return cudaFuncGetAttributes(&found, (const void *)table_kernel<float>);
}
