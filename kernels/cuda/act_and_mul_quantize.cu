// act_and_mul_quantize.cu - act_and_mul_quantize on CUDA: quantize of what act_and_mul computes.
// Given scales, those of a tensor, and groups take the packets of quantize, rows and blocks of 128
// x 128 its tiles, so memory is read once. Groups at addresses that leave no packets go to shared
// memory, and a row that is too wide for registers is computed twice, element by element.
#include "cuda/act_packets.cuh"
#include "cuda/quantize_tiles.cuh"

extern "C" {
#include "ops/act_and_mul_quantize.h"
}

struct coded_args {
    struct act_operands of;
    int32_t interleaved, gated, steps, rounds_result; // bool
    int32_t is_silu; // bool: and no limit, and nothing is rounded before the codes
    struct act_rule rule;
    quantize_args codes;
};

template <int n>
struct floats {
    float of[n];
};

// Products and, by what a call asks for, their rounding. By value: a function that is called has no
// registers of its caller.
template <typename T, bool kMayStep, int n>
__device__ __forceinline__ floats<n> products(const coded_args &args, floats<n> gate, floats<n> up)
{
    if (kMayStep && args.steps)
        act_of<T, kMayStep>(args.rule, args.gated, gate.of, up.of);
    else
        act_of<T, false>(args.rule, args.gated, gate.of, up.of);
    if (args.rounds_result) {
#pragma unroll
        for (float &y : gate.of)
            y = rounded<T>(y);
    }
    return gate;
}

template <typename T, bool kMayStep, int n>
static __device__ __noinline__ floats<n> products_called(const coded_args &args, floats<n> gate,
                                                         floats<n> up)
{
    return products<T, kMayStep>(args, gate, up);
}

// The source of products. kIsPlain: of two tensors, and no step is rounded but the activation and
// the product, as hardly any call asks for more.
template <typename Element, bool kIsPlain>
struct products_of {
    using T = Element;
    using args = coded_args;
    static constexpr const char *kName = "y";
    static constexpr bool kMayPair = !kIsPlain, kMayStep = !kIsPlain && sizeof(T) == 2;
    static constexpr bool kIsCheap = false, kIsRare = !kIsPlain, kShiftsPackets = true;
    static constexpr bool kHasWords = kIsPlain;
    static constexpr int kPacketsOfPart = 64;

    struct addresses {
        const T *gate, *up;
    };
    template <int n>
    struct operands {
        typename packet<T, n>::raw gate, up;
    };

    // Elements of gate's tensor for each of a row.
    static __device__ __forceinline__ int across(const args &args)
    {
        return kMayPair && args.interleaved ? 2 : 1;
    }

    struct shifted {
        shifted_vector<(int)sizeof(T)> gate, up;

        __device__ __forceinline__ void start(const args &args, const addresses &from, int left)
        {
            const bool is_pairs = kMayPair && args.interleaved;
            const int bytes = min(left, kVecOf<T>) * across(args) * (int)sizeof(T);
            gate.start(from.gate, bytes, args.of.gate_end);
            up.start(from.up,
                     is_pairs     ? bytes - 16
                     : args.gated ? bytes
                                  : 0,
                     is_pairs ? args.of.gate_end : args.of.up_end);
        }
        __device__ __forceinline__ operands<kVecOf<T>> finish() const
        {
            return {gate.finish(), up.finish()};
        }
    };

    template <int n>
    static __device__ __forceinline__ addresses at(const args &args, int64_t row, int64_t column)
    {
        const T *gate = static_cast<const T *>(args.of.gate) + row * args.of.gate_stride;
        const T *up = static_cast<const T *>(args.of.up) + row * args.of.up_stride;
        if (!kIsPlain && args.interleaved)
            return {gate + 2 * column, gate + 2 * column + n};
        return {gate + column, up + column};
    }
    static __device__ __forceinline__ addresses moved(const args &args, const addresses &from,
                                                      int n)
    {
        return {from.gate + across(args) * n, from.up + across(args) * n};
    }
    static __device__ __forceinline__ void finish_before_wait(const args &args,
                                                              const addresses &from)
    {
        ::finish_before_wait(from.gate, from.up, args.gated, args.is_silu);
    }
    template <int n>
    static __device__ __forceinline__ operands<n> load(const args &args, const addresses &from)
    {
        operands<n> out = {};
        out.gate = packet<T, n>::load(from.gate);
        if (args.gated)
            out.up = packet<T, n>::load(from.up);
        return out;
    }
    // Values so far apart from each other, of which there are those before left.
    static __device__ __forceinline__ void load_apart(const args &args, const addresses &from,
                                                      int apart, int left,
                                                      operands<1> (&out)[kVecOf<T>])
    {
#pragma unroll
        for (int i = 0; i < kVecOf<T>; i++) {
            out[i] = {};
            if (i * apart < left)
                out[i].gate = packet<T, 1>::load(from.gate + i * apart);
            if (args.gated && i * apart < left)
                out[i].up = packet<T, 1>::load(from.up + i * apart);
        }
    }
    template <int n>
    static __device__ __forceinline__ operands<n> none()
    {
        return {};
    }
    template <int n, bool kCalls = false>
    static __device__ __forceinline__ void values(const args &args, const operands<n> &from,
                                                  float (&x)[n])
    {
        floats<n> gate, up;
        packet<T, n>::widen(from.gate, gate.of);
        packet<T, n>::widen(from.up, up.of);
        if (kMayPair && args.interleaved) {
            const floats<n> first = gate, second = up;
            part(first.of, second.of, gate.of, up.of);
        }
        multiply<n, kCalls>(args, gate, up, x);
    }
    // The same of values that were loaded one by one.
    template <int n, bool kCalls>
    static __device__ __forceinline__ void values(const args &args, const operands<1> (&from)[n],
                                                  float (&x)[n])
    {
        floats<n> gate, up;
#pragma unroll
        for (int i = 0; i < n; i++) {
            float of_gate[1], of_up[1];
            packet<T, 1>::widen(from[i].gate, of_gate);
            packet<T, 1>::widen(from[i].up, of_up);
            gate.of[i] = of_gate[0];
            up.of[i] = of_up[0];
        }
        multiply<n, kCalls>(args, gate, up, x);
    }

  private:
    template <int n, bool kCalls>
    static __device__ __forceinline__ void multiply(const args &args, floats<n> gate,
                                                    const floats<n> &up, float (&x)[n])
    {
        if constexpr (!kCalls) {
            gate = products<T, kMayStep>(args, gate, up);
        } else if (!args.is_silu) {
            gate = products_called<T, kMayStep>(args, gate, up);
        } else {
#pragma unroll
            for (int i = 0; i < n; i++)
                gate.of[i] = silu(gate.of[i]) * (args.gated ? up.of[i] : 1.0f);
        }
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = gate.of[i];
    }
};

// Pairs, and activations in steps, are rare: what they have registers for is shifted, also where it
// need not be.
template <typename T, bool kIsPlain>
static enum roped_status launch(const coded_args &args, const struct act_and_mul_plan *plan,
                                struct roped_queue *queue, struct roped_error *err)
{
    using S = products_of<T, kIsPlain>;
    const quantize_args &codes = args.codes;
    const bool is_packed = has_packets<T>(codes) && has_packets<T>(plan, args.of);
    if (codes.is_tensor) {
        enum roped_status status = find_tensor_scale<S>(args, is_packed, queue, err);
        if (status)
            return status;
    }
    if (codes.n_rows == 0)
        return ROPED_OK;
    const bool is_held = are_held(codes, kVecOf<T>, queue);
    if constexpr (kIsPlain)
        if (is_packed && is_held && codes.finds)
            return launch_tiles<S, kTileWhole>(args, queue, err);
    if (is_packed && are_packets(codes) && !(is_held && codes.finds))
        return launch_packets<S>(args, queue, err);
    if constexpr (kIsPlain)
        if (is_held && !codes.finds && is_small<T>(codes.n_rows * codes.width, queue))
            return launch_shifted_packets<S, 1>(args, queue, err);
    if (is_held && !codes.finds)
        return launch_shifted_packets<S>(args, queue, err);
    if (is_held)
        return launch_tiles<S, kTileShifted>(args, queue, err);
    return launch_elements<products_of<T, false>>(args, queue, err);
}

extern "C" enum roped_status roped_cuda_act_and_mul_quantize(const struct roped_call *call,
                                                             struct roped_queue *queue,
                                                             struct roped_error *err)
{
    const struct act_and_mul_quantize_plan *plan =
        (const struct act_and_mul_quantize_plan *)call->plan;
    const struct roped_tensor *x = &call->in[ACT_AND_MUL_X], *gate = &call->in[ACT_AND_MUL_GATE];
    coded_args args = {};
    args.interleaved = plan->act.interleaved;
    args.gated = plan->act.gated;
    args.steps = plan->act.steps;
    args.rounds_result = plan->rounds_result;
    args.rule = act_rule_of(&plan->act);
    args.is_silu = plan->act.activation == ACT_SILU && !args.rule.changes && !args.rule.rounds &&
                   !args.steps && !args.rounds_result;
    enum roped_status status = begin_codes(&plan->quantize, &call->out[QUANTIZE_Y],
                                           &call->out[QUANTIZE_SCALES], queue, &args.codes, err);
    if (status)
        return status;
    return with_float_type(roped_tensor_given(x) ? x->dtype : gate->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        args.of = act_operands_of<T>(&plan->act, x, gate, &call->in[ACT_AND_MUL_UP]);
        return args.interleaved || args.steps ? launch<T, false>(args, &plan->act, queue, err)
                                              : launch<T, true>(args, &plan->act, queue, err);
    });
}
