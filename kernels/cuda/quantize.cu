// quantize.cu - quantize on CUDA. Given scales and groups: 16 bytes of x per thread, a group's
// largest by exchanges between its threads. Rows and blocks of 128 x 128: a block of threads holds
// one in registers and reads memory once. A whole tensor is read once for its scale and again for
// its codes.
#include "cuda/device/packet.cuh"
#include "cuda/quantize_tiles.cuh"

struct rows_args {
    const void *x;
    int64_t x_stride;
    const char *x_end; // shifted.cuh
    quantize_args codes;
};

// The source of rows that are there.
template <typename Element>
struct rows_of {
    using T = Element;
    using args = rows_args;
    static constexpr const char *kName = "x";
    static constexpr bool kIsCheap = true, kIsRare = false;
    // 16 bits gain less than bytes stored one by one cost
    static constexpr bool kShiftsPackets = sizeof(T) == 4;
    static constexpr int kPacketsOfPart = kMostThreads;

    template <int n>
    using operands = typename packet<T, n>::raw;

    struct shifted {
        shifted_vector<(int)sizeof(T)> x;

        __device__ __forceinline__ void start(const args &args, const T *from, int left)
        {
            x.start(from, min(left, kVecOf<T>) * (int)sizeof(T), args.x_end);
        }
        __device__ __forceinline__ uint4 finish() const
        {
            return x.finish();
        }
    };

    template <int n>
    static __device__ __forceinline__ const T *at(const args &args, int64_t row, int64_t column)
    {
        return static_cast<const T *>(args.x) + row * args.x_stride + column;
    }
    static __device__ __forceinline__ const T *moved(const args &, const T *from, int elements)
    {
        return from + elements;
    }
    static __device__ __forceinline__ void finish_before_wait(const args &, const T *from)
    {
        ::finish_before_wait(from);
    }
    template <int n>
    static __device__ __forceinline__ operands<n> load(const args &, const T *from)
    {
        return packet<T, n>::load(from);
    }
    template <int n>
    static __device__ __forceinline__ operands<n> none()
    {
        return {};
    }
    template <int n, bool kCalls = false>
    static __device__ __forceinline__ void values(const args &, const operands<n> &raw,
                                                  float (&x)[n])
    {
        packet<T, n>::widen(raw, x);
    }
    template <int n>
    static __device__ __forceinline__ void values_again(const uint4 &raw, float (&x)[n])
    {
        unpack<T, true>(raw, x);
    }
};

template <typename T>
static enum roped_status launch(const rows_args &args, struct roped_queue *queue,
                                struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    const quantize_args &codes = args.codes;
    const bool is_packed = has_packets<T>(codes) && is_aligned(args.x, 16) &&
                           (codes.n_rows == 1 || args.x_stride % kVec == 0);
    if (codes.is_tensor) {
        enum roped_status status = find_tensor_scale<rows_of<T>>(args, is_packed, queue, err);
        if (status)
            return status;
    }
    if (codes.n_rows == 0)
        return ROPED_OK;
    const bool is_held = are_held(codes, kVec, queue);
    if (is_packed && is_held && codes.finds)
        return launch_tiles<rows_of<T>, false>(args, queue, err);
    if (is_packed && are_packets(codes))
        return launch_packets<rows_of<T>>(args, queue, err);
    if constexpr (rows_of<T>::kShiftsPackets)
        if (is_held && !codes.finds)
            return launch_shifted_packets<rows_of<T>>(args, queue, err);
    if (is_held)
        return launch_tiles<rows_of<T>, true>(args, queue, err);
    return launch_elements<rows_of<T>>(args, queue, err);
}

extern "C" enum roped_status roped_cuda_quantize(const struct roped_call *call,
                                                 struct roped_queue *queue, struct roped_error *err)
{
    const struct quantize_plan *plan = (const struct quantize_plan *)call->plan;
    const struct roped_tensor *x = &call->in[QUANTIZE_X];
    rows_args args = {x->data, row_stride(x, plan->tiles.width), NULL, {}};
    enum roped_status status = begin_codes(plan, &call->out[QUANTIZE_Y],
                                           &call->out[QUANTIZE_SCALES], queue, &args.codes, err);
    if (status)
        return status;
    args.x_end = whole_end(x->data, ((plan->tiles.n_rows - 1) * args.x_stride + plan->tiles.width) *
                                        (int64_t)roped_dtype_bytes(x->dtype));
    return with_float_type(
        x->dtype, [&](auto tag) { return launch<typename decltype(tag)::type>(args, queue, err); });
}
