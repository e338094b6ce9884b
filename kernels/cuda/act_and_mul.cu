// act_and_mul.cu - act_and_mul on CUDA: 16 bytes of y per thread, from 16 bytes of gate and 16 of
// up, or from 32 of pairs; shifted where addresses, strides or h leave no such packets, and one
// element where those are few.
#include "cuda/act_packets.cuh"

struct act_args {
    struct act_operands of;
    void *y;
    int64_t y_stride; // elements to the next row
    struct act_rows rows;
    struct act_rule rule;
    struct xielu xielu;
    int32_t steps; // bool, of xielu
};

// gelu_fast of Hugging Face, each step of which is rounded.
template <typename T>
__device__ __forceinline__ float gelu_fast_in_steps(float x)
{
    float square = rounded<T>(rounded<T>(__fmul_rn(0.044715f, x)) * x);
    float z = rounded<T>(rounded<T>(__fmul_rn(0x1.988454p-1f, x)) * rounded<T>(1.0f + square));
    float t = rounded<T>(tanhf(z));
    return rounded<T>(rounded<T>(0.5f * x) * rounded<T>(1.0f + t));
}

// The terms do not take each other's digits. NaN stays.
__device__ __forceinline__ float xielu_once(float x, const struct xielu &by)
{
    float e = expm1f(x > by.eps ? by.eps : x);
    float below = fmaf(by.alpha_n, e, (by.slope - by.alpha_n) * x);
    return x > 0.0f ? x * fmaf(by.alpha_p, x, by.slope) : below;
}

// XIELUActivation of Hugging Face, whose numbers are of type T, too.
template <typename T>
__device__ __forceinline__ float xielu_in_steps(float x, const struct xielu &by)
{
    float eps = rounded<T>(by.eps), line = rounded<T>(__fmul_rn(rounded<T>(by.slope), x));
    float square = rounded<T>(rounded<T>(__fmul_rn(rounded<T>(by.alpha_p), x)) * x);
    float e = rounded<T>(expm1f(x > eps ? eps : x));
    float below = rounded<T>(rounded<T>(e - x) * rounded<T>(by.alpha_n));
    return rounded<T>((x > 0.0f ? square : below) + line);
}

template <typename T>
__device__ __forceinline__ float activate_rarely(const act_args &args, float x)
{
    if (args.rule.activation == ACT_GELU_FAST)
        return gelu_fast_in_steps<T>(x);
    return args.steps ? xielu_in_steps<T>(x, args.xielu) : xielu_once(x, args.xielu);
}

// Gates become results, of what hardly any call asks for.
template <typename T, int n>
__device__ __forceinline__ void act_rarely(const act_args &args, bool has_up, float (&gate)[n],
                                           const float (&up)[n])
{
    const float limit = args.rule.limit;
#pragma unroll
    for (int j = 0; j < n; j++) {
        float x = gate[j] > limit ? limit : gate[j], factor = up[j] > limit ? limit : up[j];
        gate[j] = activate_rarely<T>(args, x);
        if (has_up)
            gate[j] *= factor < -limit ? -limit : factor;
    }
}

// What becomes of a gate and an up: kernels of their own for what is rare.
enum act_kind {
    kActOnce,
    kActInSteps, // rounding=steps
    kActRarely   // gelu_fast by its steps, and xielu, which has no up
};

template <typename T, act_kind kKind, int kVec>
__device__ __forceinline__ void act_on(const act_args &args, bool has_up, float (&gate)[kVec],
                                       float (&up)[kVec])
{
    if constexpr (kKind == kActRarely)
        act_rarely<T>(args, has_up, gate, up);
    else
        act_of<T, kKind == kActInSteps>(args.rule, has_up, gate, up);
}

// The 16 bytes at any address of an element as the three aligned halves of a packet that cover
// them: a shift of whole packets would take a choice more for each word. What a row cuts has other
// elements beside its own, which nobody stores; what the tensor cuts is read by elements. end:
// whole_end of the tensor.
template <int kUnit>
struct act_vector {
    const char *from;
    bool is_plain;
    uint2 half[3];

    __device__ __forceinline__ void start(const void *at, bool is_wanted, const void *begin,
                                          const char *end)
    {
        from = static_cast<const char *>(at);
        is_plain = is_wanted && from >= begin && from + 16 <= end;
        const char *base = reinterpret_cast<const char *>((uintptr_t)from & ~(uintptr_t)7);
        asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.s32 p, %7, 0;\n\t"
                     "setp.ne.and.s32 q, %8, 0, p;\n\t"
                     "@p ld.global.v2.u32 {%0, %1}, [%6];\n\t"
                     "@p ld.global.v2.u32 {%2, %3}, [%6+8];\n\t"
                     "@q ld.global.v2.u32 {%4, %5}, [%6+16];\n\t}"
                     : "=r"(half[0].x), "=r"(half[0].y), "=r"(half[1].x), "=r"(half[1].y),
                       "=r"(half[2].x), "=r"(half[2].y)
                     : "l"(__cvta_generic_to_global(base)), "r"((int)is_plain),
                       "r"((int)((uintptr_t)from & 7)));
    }
    // Once they are there: units first to last - 1.
    __device__ __forceinline__ uint4 finish(int first, int last) const
    {
        if (!is_plain)
            return load_part<kUnit>(from, first, last);
        const bool by_4 = (uintptr_t)from & 4;
        uint32_t word[5];
#pragma unroll
        for (int i = 0; i < 5; i++) {
            const uint32_t near = i % 2 ? half[i / 2].y : half[i / 2].x;
            word[i] = by_4 ? (i % 2 ? half[i / 2 + 1].x : half[i / 2].y) : near;
        }
        if constexpr (kUnit == 2) {
            const int bits = (int)((uintptr_t)from & 2) * 8;
#pragma unroll
            for (int i = 0; i < 4; i++)
                word[i] = __funnelshift_r(word[i], word[i + 1], bits);
        }
        return make_uint4(word[0], word[1], word[2], word[3]);
    }
};

// The same of a packet's pairs, 32 bytes from the first word of one on: the halves that both of
// their packets have a part of are read once, and words are whole.
template <int kUnit>
struct act_pairs {
    const char *from;
    bool is_plain;
    uint2 half[5];

    __device__ __forceinline__ void start(const void *at, const void *begin, const char *end)
    {
        from = static_cast<const char *>(at);
        is_plain = from >= begin && from + 32 <= end;
        const char *base = reinterpret_cast<const char *>((uintptr_t)from & ~(uintptr_t)7);
        asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.s32 p, %11, 0;\n\t"
                     "setp.ne.and.s32 q, %12, 0, p;\n\t"
                     "@p ld.global.v2.u32 {%0, %1}, [%10];\n\t"
                     "@p ld.global.v2.u32 {%2, %3}, [%10+8];\n\t"
                     "@p ld.global.v2.u32 {%4, %5}, [%10+16];\n\t"
                     "@p ld.global.v2.u32 {%6, %7}, [%10+24];\n\t"
                     "@q ld.global.v2.u32 {%8, %9}, [%10+32];\n\t}"
                     : "=r"(half[0].x), "=r"(half[0].y), "=r"(half[1].x), "=r"(half[1].y),
                       "=r"(half[2].x), "=r"(half[2].y), "=r"(half[3].x), "=r"(half[3].y),
                       "=r"(half[4].x), "=r"(half[4].y)
                     : "l"(__cvta_generic_to_global(base)), "r"((int)is_plain),
                       "r"((int)((uintptr_t)from & 7)));
    }
    // Once they are there: units first to last - 1, of one packet and of the other.
    __device__ __forceinline__ void finish(int first, int last, uint4 &low, uint4 &high) const
    {
        constexpr int kOfPacket = 16 / kUnit;
        uint32_t word[8];
        if (!is_plain) {
            low = load_part<kUnit>(from, first, last);
            high = load_part<kUnit>(from + 16, first - kOfPacket, last - kOfPacket);
            return;
        }
        const bool by_4 = (uintptr_t)from & 4;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t near = i % 2 ? half[i / 2].y : half[i / 2].x;
            word[i] = by_4 ? (i % 2 ? half[i / 2 + 1].x : half[i / 2].y) : near;
        }
        low = make_uint4(word[0], word[1], word[2], word[3]);
        high = make_uint4(word[4], word[5], word[6], word[7]);
    }
};

// A packet of y as memory has it, which the row's beginning or end may cut: of its elements first
// to last - 1 are the row's. So only what is read has to be shifted into place.
template <typename T, bool kIsPairs, act_kind kKind>
static __global__ void __launch_bounds__(kActThreads)
    act_shifted_kernel(const __grid_constant__ struct act_args args)
{
    constexpr int kVec = kVecOf<T>, kSize = (int)sizeof(T);
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t row = quotient(i, args.rows.to_row);
    T *to = static_cast<T *>(args.y) + row * args.y_stride;
    const int off = (int)((uintptr_t)to & 15) / kSize;
    act_place<kVec> place(args.rows);
    place.column -= off;
    const int first = max(0, (int)-place.column);
    const int last = (int)min((int64_t)kVec, args.rows.width - place.column);
    if (i >= args.rows.n_packets || last <= first)
        return;
    const act_addresses<T, kIsPairs, kVec> at(args.of, place);
    const bool has_up = kIsPairs || args.of.up, is_whole = last - first == kVec;
    float gate[kVec], up[kVec] = {};
    to += place.column;
    finish_before_wait(at.gate, at.up, to);
    wait_for_previous();
    let_next_start();
    if constexpr (kIsPairs) {
        act_pairs<kSize> pairs;
        uint4 low, high;
        float first_pairs[kVec], second_pairs[kVec];
        pairs.start(at.gate, args.of.gate, args.of.gate_end);
        pairs.finish(2 * first, 2 * last, low, high);
        unpack<T>(low, first_pairs);
        unpack<T>(high, second_pairs);
        part(first_pairs, second_pairs, gate, up);
    } else {
        act_vector<kSize> of_gate, of_up;
        of_gate.start(at.gate, true, args.of.gate, args.of.gate_end);
        of_up.start(at.up, has_up, args.of.up, args.of.up_end);
        unpack<T>(of_gate.finish(first, last), gate);
        if (has_up)
            unpack<T>(of_up.finish(first, last), up);
    }
    act_on<T, kKind>(args, has_up, gate, up);
    if (is_whole)
        store_16(to, pack<T>(gate));
    else
        store_part<kSize>(reinterpret_cast<char *>(to), first, last, pack<T>(gate));
}

template <typename T, bool kIsPairs, act_access kAccess, act_kind kKind>
static __global__ void __launch_bounds__(kActThreads)
    act_kernel(const __grid_constant__ struct act_args args)
{
    constexpr int kVec = kActVec<T, kAccess>;
    if (kAccess == kActSingle)
        let_next_start();
    const act_place<kVec> place(args.rows);
    const act_addresses<T, kIsPairs, kVec> at(args.of, place);
    T *to = static_cast<T *>(args.y) + place.row * args.y_stride + place.column;
    if (place.left == 0)
        return;
    finish_before_wait(at.gate, at.up, to);
    wait_for_previous();
    if (kAccess != kActSingle)
        let_next_start();
    float gate[kVec], up[kVec] = {};
    load_operands<T, kIsPairs, kAccess, kVec>(args.of, at, place.n(), gate, up);
    act_on<T, kKind>(args, kIsPairs || args.of.up, gate, up);
    store_packet<T, kAccess, kVec>(to, place, gate);
}

template <typename T, bool kIsPairs, act_access kAccess, act_kind kKind>
static kernel_fn<act_args> *kernel_of_kind()
{
    if constexpr (kAccess == kActShifted)
        return act_shifted_kernel<T, kIsPairs, kKind>;
    else
        return act_kernel<T, kIsPairs, kAccess, kKind>;
}

template <typename T, bool kIsPairs, act_access kAccess>
static kernel_fn<act_args> *kernel_of(const struct act_and_mul_plan *plan)
{
    constexpr bool kMayStep = sizeof(T) == 2, kMayBeRare = !kIsPairs || kMayStep;
    if constexpr (kMayBeRare)
        if (plan->activation == ACT_XIELU || plan->activation == ACT_GELU_FAST)
            return kernel_of_kind<T, kIsPairs, kAccess, kActRarely>();
    if constexpr (kMayStep)
        if (plan->steps)
            return kernel_of_kind<T, kIsPairs, kAccess, kActInSteps>();
    return kernel_of_kind<T, kIsPairs, kAccess, kActOnce>();
}

template <typename T>
static enum roped_status launch(struct act_args args, const struct roped_call *call,
                                struct roped_queue *queue, struct roped_error *err)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    args.of = act_operands_of<T>(plan, &call->in[ACT_AND_MUL_X], &call->in[ACT_AND_MUL_GATE],
                                 &call->in[ACT_AND_MUL_UP]);
    bool has = has_packets<T>(plan, args.of) && has_packets<T>(plan, args.y, args.y_stride);
    act_access way = access_of<T>(call, has, queue);
    // pairs of 16 bits whose words do not begin at multiples of 4 bytes: rare slices of tensors
    if (way == kActShifted && plan->interleaved && sizeof(T) == 2 &&
        !has_words<T>(plan, args.of.gate, args.of.gate_stride, 2))
        way = kActSingle;
    return with_access(way, [&](auto access) {
        kernel_fn<act_args> *kernel = plan->interleaved ? kernel_of<T, true, access>(plan)
                                                        : kernel_of<T, false, access>(plan);
        auto moved = [&](int64_t row) {
            struct act_args further = args;
            further.of = act_moved<T>(args.of, row);
            further.y = static_cast<T *>(args.y) + row * args.y_stride;
            return further;
        };
        constexpr int kVec = kActVec<T, access>;
        const int64_t cut = access == kActShifted ? kVec - 1 : 0; // elements before a row's first
        return launch_rows<kVec>(queue, kernel, plan, "y", moved, err, cut);
    });
}

extern "C" enum roped_status roped_cuda_act_and_mul(const struct roped_call *call,
                                                    struct roped_queue *queue,
                                                    struct roped_error *err)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    const struct roped_tensor *y = &call->out[ACT_AND_MUL_Y];
    if (plan->n_rows == 0)
        return ROPED_OK;
    struct act_args args = {};
    args.y = y->data;
    args.y_stride = row_stride(y, plan->width);
    args.rule = act_rule_of(plan);
    args.xielu = plan->xielu;
    args.steps = plan->steps;
    return with_float_type(y->dtype, [&](auto tag) {
        return launch<typename decltype(tag)::type>(args, call, queue, err);
    });
}
