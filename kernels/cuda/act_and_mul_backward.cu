// act_and_mul_backward.cu - gradients of act_and_mul on CUDA: a packet of each tensor per thread,
// as in act_and_mul.cu; every tensor is read or written once.
extern "C" {
#include "ops/act_and_mul_backward.h"
}

#include "cuda/act_packets.cuh"

#include <math.h>

struct act_gradient_args {
    struct act_operands of, grad;
    void *grad_y;
    int64_t grad_y_stride; // elements to the next row
    const char *grad_y_end;
    struct act_rows rows;
    float limit, alpha;
    float of_up, beta; // up * of_up + beta: 1 where there is no up; a beta of -0 changes no number
    int32_t activation;
    int32_t limits, rounds; // bool
};

// Numbers beyond the limit, or at it, become the limit.
template <int kVec>
__device__ __forceinline__ uint32_t limit_all(float limit, bool is_signed, float (&x)[kVec])
{
    uint32_t beyond = 0;
#pragma unroll
    for (int j = 0; j < kVec; j++) {
        bool is_beyond = (is_signed ? fabsf(x[j]) : x[j]) >= limit;
        x[j] = is_beyond ? is_signed ? copysignf(limit, x[j]) : limit : x[j];
        beyond |= (uint32_t)is_beyond << j;
    }
    return beyond;
}

template <typename T, int kVec>
__device__ __forceinline__ void round_all(float (&x)[kVec])
{
#pragma unroll
    for (int j = 0; j < kVec; j++)
        x[j] = element<T>::to_float(element<T>::from_float(x[j]));
}

// gate becomes its gradient, and up too. What hardly any call asks for is behind branches of all.
template <typename T, int kVec>
__device__ __forceinline__ void descend(const act_gradient_args &args, const float (&g)[kVec],
                                        float (&gate)[kVec], float (&up)[kVec])
{
    uint32_t gates_beyond = 0, ups_beyond = 0;
    float slope[kVec], to_act[kVec], of_all = 0.0f; // NaN where a gradient is, or beyond all
    if (args.limits) {
        gates_beyond = limit_all(args.limit, false, gate);
        ups_beyond = limit_all(args.limit, true, up);
    }
    differentiate(args.activation, args.alpha, gate, slope);
#pragma unroll
    for (int j = 0; j < kVec; j++)
        to_act[j] = g[j] * fmaf(up[j], args.of_up, args.beta);
    if (sizeof(T) == 2 && args.rounds) {
        round_all<T>(to_act);
        round_all<T>(gate);
    }
#pragma unroll
    for (int j = 0; j < kVec; j++) {
        up[j] = g[j] * gate[j];
        gate[j] = to_act[j] * slope[j];
        of_all = fmaf(gate[j], 0.0f, of_all);
    }
    if (of_all != 0.0f) {
#pragma unroll
        for (int j = 0; j < kVec; j++) // anything times a slope of 0 is 0
            gate[j] = isnan(gate[j]) && slope[j] == 0.0f ? 0.0f : gate[j];
    }
    if (args.limits) {
#pragma unroll
        for (int j = 0; j < kVec; j++) {
            gate[j] = gates_beyond >> j & 1 ? 0.0f : gate[j];
            up[j] = ups_beyond >> j & 1 ? 0.0f : up[j];
        }
    }
}

// Blocks that find room on a multiprocessor: by 32 registers, or 48.
template <typename T, act_access kAccess>
constexpr int kBlocksAtOnce = sizeof(T) == 4 && kAccess != kActShifted ? 16 : 10;

template <typename T, bool kIsPairs, act_access kAccess>
static __global__ void __launch_bounds__(kActThreads, (kBlocksAtOnce<T, kAccess>))
    act_gradient_kernel(const __grid_constant__ struct act_gradient_args args)
{
    constexpr int kVec = kActVec<T, kAccess>;
    if (kAccess == kActSingle)
        let_next_start();
    const act_place<kVec> place(args.rows);
    const act_addresses<T, kIsPairs, kVec> at(args.of, place), to(args.grad, place);
    const T *from = static_cast<T *>(args.grad_y) + place.row * args.grad_y_stride + place.column;
    if (kAccess != kActShifted && place.left == 0)
        return;
    if (kAccess == kActSingle) // a small call: what is left of addresses would cost behind the wait
        finish_before_wait(at.gate, at.up, to.gate, to.up, from);
    else
        finish_addresses(at.gate, at.up, to.gate, to.up, from);
    wait_for_previous();
    if (kAccess != kActSingle)
        let_next_start();
    float g[kVec], gate[kVec], up[kVec] = {};
    if constexpr (kAccess == kActShifted) {
        shifted_vector<(int)sizeof(T)> of_g;
        of_g.start(from, place.n() * (int)sizeof(T), args.grad_y_end);
        load_operands<T, kIsPairs, kAccess, kVec>(args.of, at, place.n(), gate, up);
        unpack<T>(of_g.finish(), g);
    } else {
        auto of_g = load_packet<T, kAccess, kVec>(from, act_policy<kAccess>());
        load_operands<T, kIsPairs, kAccess, kVec>(args.of, at, place.n(), gate, up);
        packet<T, kVec>::widen(of_g, g);
    }
    bool has_up = kIsPairs || args.of.up;
    descend<T>(args, g, gate, up);
    store_operands<T, kIsPairs, kAccess, kVec>(has_up, to, place, gate, up);
}

// Elements one by one, or two by two, as words that lanes have side by side: nothing is shifted,
// and a warp reads and writes whole lines, wherever a row lies. A thread has kWords of them.
constexpr int kWords = 4;

// A word of kUnit elements.
template <typename T, int kUnit>
struct act_word {
    static constexpr int kBytes = kUnit * (int)sizeof(T);
    using raw =
        std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, uint32_t, uint16_t>>;

    static __device__ __forceinline__ raw load_if(bool is_wanted, const T *from)
    {
        raw word = {};
        if (is_wanted)
            word = *reinterpret_cast<const raw *>(from);
        return word;
    }
    static __device__ __forceinline__ void widen(const raw &word, float *x)
    {
        T of[kUnit];
        memcpy(of, &word, sizeof word);
#pragma unroll
        for (int i = 0; i < kUnit; i++)
            x[i] = element<T>::to_float(of[i]);
    }
    static __device__ __forceinline__ void store(T *to, const float *x)
    {
        T of[kUnit];
        raw word;
#pragma unroll
        for (int i = 0; i < kUnit; i++)
            of[i] = element<T>::from_float(x[i]);
        memcpy(&word, of, sizeof word);
        *reinterpret_cast<raw *>(to) = word;
    }
};

// kUnit: elements of a word of grad_y; of pairs each is one, and gate and up are a word.
template <typename T, bool kIsPairs, int kUnit>
static __global__ void __launch_bounds__(kActThreads)
    act_gradient_words_kernel(const __grid_constant__ struct act_gradient_args args)
{
    constexpr int kVec = kWords * kUnit, kApart = 32 * kUnit, kOf = kIsPairs ? 2 : kUnit;
    using word = act_word<T, kUnit>;
    using operand = act_word<T, kOf>;
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t row = quotient(i, args.rows.to_row), packet = i - row * args.rows.packets;
    const int64_t column = (int64_t)(packet / 32) * (32 * kVec) + packet % 32 * kUnit;
    const int left =
        i < args.rows.n_packets ? (int)min(args.rows.width - column, (int64_t)32 * kVec) : 0;
    const int64_t at = kIsPairs ? 2 * column : column;
    const bool has_up = !kIsPairs && args.of.up;
    const T *from = static_cast<T *>(args.grad_y) + row * args.grad_y_stride + column;
    const T *gates = static_cast<T *>(args.of.gate) + row * args.of.gate_stride + at;
    const T *ups = has_up ? static_cast<T *>(args.of.up) + row * args.of.up_stride + at : gates;
    T *to_gates = static_cast<T *>(args.grad.gate) + row * args.grad.gate_stride + at;
    T *to_ups = static_cast<T *>(args.grad.up) + row * args.grad.up_stride + at;
    if (left <= 0)
        return;
    finish_addresses(from, gates, ups, to_gates, to_ups);
    wait_for_previous();
    let_next_start();
    typename word::raw of_g[kWords];
    typename operand::raw of_gate[kWords], of_up[kIsPairs ? 1 : kWords];
#pragma unroll
    for (int w = 0; w < kWords; w++) {
        const bool has = left > w * kApart;
        of_g[w] = word::load_if(has, from + w * kApart);
        of_gate[w] = operand::load_if(has, gates + w * 32 * kOf);
        if constexpr (!kIsPairs)
            of_up[w] = operand::load_if(has && has_up, ups + w * kApart);
    }
    float g[kVec], gate[kVec], up[kVec];
#pragma unroll
    for (int w = 0; w < kWords; w++) {
        word::widen(of_g[w], g + w * kUnit);
        if constexpr (kIsPairs) {
            float pair[2];
            operand::widen(of_gate[w], pair);
            gate[w] = pair[0];
            up[w] = pair[1];
        } else {
            operand::widen(of_gate[w], gate + w * kUnit);
            operand::widen(of_up[w], up + w * kUnit);
        }
    }
    descend<T>(args, g, gate, up);
#pragma unroll
    for (int w = 0; w < kWords; w++) {
        if (left <= w * kApart)
            break;
        if constexpr (kIsPairs) {
            const float pair[2] = {gate[w], up[w]};
            operand::store(to_gates + w * 64, pair);
        } else {
            operand::store(to_gates + w * kApart, gate + w * kUnit);
            if (has_up)
                operand::store(to_ups + w * kApart, up + w * kUnit);
        }
    }
}

// The kernel of a call by words, of how many elements; NULL: pairs are at addresses that have none.
template <typename T>
static kernel_fn<act_gradient_args> *words_kernel(const struct act_and_mul_plan *plan,
                                                  const struct act_gradient_args &args, int *unit)
{
    *unit = 1;
    if (plan->interleaved)
        return has_words<T>(plan, args.of, 2) && has_words<T>(plan, args.grad, 2)
                   ? act_gradient_words_kernel<T, true, 1>
                   : NULL;
    if constexpr (sizeof(T) == 2)
        if (plan->width % 2 == 0 && has_words<T>(plan, args.of, 2) &&
            has_words<T>(plan, args.grad, 2) &&
            has_words<T>(plan, args.grad_y, args.grad_y_stride, 2)) {
            *unit = 2;
            return act_gradient_words_kernel<T, false, 2>;
        }
    return act_gradient_words_kernel<T, false, 1>;
}

template <typename T>
static enum roped_status launch(struct act_gradient_args args, const struct roped_call *call,
                                struct roped_queue *queue, struct roped_error *err)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    args.of = act_operands_of<T>(plan, &call->in[ACT_BACKWARD_X], &call->in[ACT_BACKWARD_GATE],
                                 &call->in[ACT_BACKWARD_UP]);
    args.grad =
        act_operands_of<T>(plan, &call->out[ACT_BACKWARD_GRAD_X],
                           &call->out[ACT_BACKWARD_GRAD_GATE], &call->out[ACT_BACKWARD_GRAD_UP]);
    args.grad_y_end = act_end<T>(args.grad_y, args.grad_y_stride, plan->width, plan);
    bool has = has_packets<T>(plan, args.of) && has_packets<T>(plan, args.grad) &&
               has_packets<T>(plan, args.grad_y, args.grad_y_stride);
    const auto moved = [&](int64_t row) {
        struct act_gradient_args further = args;
        further.of = act_moved<T>(args.of, row);
        further.grad = act_moved<T>(args.grad, row);
        further.grad_y = static_cast<T *>(args.grad_y) + row * args.grad_y_stride;
        return further;
    };
    const act_access access = access_of<T>(call, has, queue);
    int unit;
    kernel_fn<act_gradient_args> *by_words = words_kernel<T>(plan, args, &unit);
    const int64_t of_warp = 32 * kWords * unit;
    const int64_t packets = 32 * blocks_of(plan->width, of_warp);
    // of narrower rows lanes would idle
    if (by_words && access == kActShifted && plan->width >= of_warp && packets <= kMostPackets)
        return launch_rows_of(packets, queue, by_words, plan, moved, err);
    return with_access(access, [&](auto access) {
        kernel_fn<act_gradient_args> *kernel = plan->interleaved
                                                   ? act_gradient_kernel<T, true, access>
                                                   : act_gradient_kernel<T, false, access>;
        return launch_rows<kActVec<T, access>>(queue, kernel, plan, "grad_y", moved, err);
    });
}

extern "C" enum roped_status roped_cuda_act_and_mul_backward(const struct roped_call *call,
                                                             struct roped_queue *queue,
                                                             struct roped_error *err)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    const struct roped_tensor *grad_y = &call->in[ACT_BACKWARD_GRAD_Y];
    if (plan->n_rows == 0)
        return ROPED_OK;
    struct act_gradient_args args = {};
    args.grad_y = grad_y->data;
    args.grad_y_stride = row_stride(grad_y, plan->width);
    args.limit = plan->limit;
    args.limits = plan->limit < INFINITY;
    args.alpha = plan->alpha;
    args.of_up = plan->gated;
    args.beta = !plan->gated ? 1.0f : plan->beta == 0 ? -0.0f : plan->beta;
    args.activation = plan->activation;
    args.rounds = plan->rounds;
    return with_float_type(grad_y->dtype, [&](auto tag) {
        return launch<typename decltype(tag)::type>(args, call, queue, err);
    });
}
