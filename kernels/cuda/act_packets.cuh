// act_packets.cuh - what the kernels of act_and_mul, of its gradients and of act_and_mul_quantize
// share: where gate and up are, packets of 16 bytes of them, and what becomes of these.
#pragma once

extern "C" {
#include "ops/act_and_mul.h"
}

#include "cuda/device/activation.cuh"
#include "cuda/device/packet.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/shifted.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/dispatch.cuh"

#include <math.h>

#include <type_traits>

constexpr int kActThreads = 128;

// The gate and the up of rows, or their gradients; elements from a row to the next.
struct act_operands {
    void *gate, *up; // up: NULL, there is none
    int64_t gate_stride, up_stride;
    const char *gate_end, *up_end; // shifted.cuh
};

// A packet of a row for each thread.
struct act_rows {
    uint32_t n_packets; // of all rows
    uint32_t packets;   // of a row, the last one not always whole
    divisor_of_index to_row;
    int64_t width;
};

// How a packet is moved.
enum act_access {
    kActAligned,
    kActKept,    // the same, and its lines stay in L2 (device/vector.cuh)
    kActShifted, // at any address (device/shifted.cuh)
    kActSingle   // a packet is one element
};

template <typename T, act_access kAccess>
constexpr int kActVec = kAccess == kActSingle ? 1 : kVecOf<T>;

// The even elements of two packets, and the odd ones.
template <int kVec>
__device__ __forceinline__ void part(const float (&first)[kVec], const float (&second)[kVec],
                                     float (&even)[kVec], float (&odd)[kVec])
{
#pragma unroll
    for (int i = 0; i < kVec; i++) {
        even[i] = 2 * i < kVec ? first[2 * i % kVec] : second[2 * i % kVec];
        odd[i] = 2 * i + 1 < kVec ? first[(2 * i + 1) % kVec] : second[(2 * i + 1) % kVec];
    }
}

// And back.
template <int kVec>
__device__ __forceinline__ void weave(const float (&even)[kVec], const float (&odd)[kVec],
                                      float (&first)[kVec], float (&second)[kVec])
{
#pragma unroll
    for (int i = 0; i < kVec; i++) {
        constexpr int n = kVec;
        first[i] = i % 2 ? odd[i / 2] : even[i / 2];
        second[i] = (n + i) % 2 ? odd[(n + i) / 2] : even[(n + i) / 2];
    }
}

// Where a thread's packet is: left elements of its row from there on, 0 where it has none.
template <int kVec>
struct act_place {
    uint32_t row;
    int64_t column, left;

    __device__ __forceinline__ explicit act_place(const act_rows &rows)
    {
        uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
        row = quotient(i, rows.to_row);
        column = (int64_t)(i - row * rows.packets) * kVec;
        left = i < rows.n_packets ? rows.width - column : 0;
    }
    __device__ __forceinline__ int n() const
    {
        return left < kVec ? (int)left : kVec;
    }
};

// A packet's gate and up. Of pairs it is two packets of gate, the second one in the place of up.
template <typename T, bool kIsPairs, int kVec>
struct act_addresses {
    T *gate, *up;

    __device__ __forceinline__ act_addresses(const act_operands &of, const act_place<kVec> &place)
    {
        gate = static_cast<T *>(of.gate) + place.row * of.gate_stride;
        up = static_cast<T *>(of.up) + place.row * of.up_stride;
        gate += kIsPairs ? 2 * place.column : place.column;
        up = kIsPairs ? gate + kVec : up + place.column;
    }
};

// A packet that is not shifted. By a policy that is made before the branch of up: in that branch it
// would be several instructions more, and up would wait for the packets that are loaded before.
template <act_access kAccess>
__device__ __forceinline__ uint64_t act_policy()
{
    return kAccess == kActKept ? policy_to_keep() : 0;
}

template <typename T, act_access kAccess, int kVec>
__device__ __forceinline__ typename packet<T, kVec>::raw load_packet(const T *from, uint64_t policy)
{
    if constexpr (kAccess == kActKept)
        return load_16_by<true>(policy, from);
    else
        return packet<T, kVec>::load(from);
}

// n elements of a packet each, at addresses of gate and up.
template <typename T, bool kIsPairs, act_access kAccess, int kVec>
__device__ __forceinline__ void load_operands(const act_operands &of,
                                              const act_addresses<T, kIsPairs, kVec> &at, int n,
                                              float (&gate)[kVec], float (&up)[kVec])
{
    bool has_up = kIsPairs || of.up;
    if constexpr (kAccess == kActShifted) {
        constexpr int kSize = (int)sizeof(T);
        shifted_vector<kSize> of_gate, of_up;
        of_gate.start(at.gate, (kIsPairs ? 2 * n : n) * kSize, of.gate_end);
        if constexpr (kIsPairs)
            of_up.start(at.up, (2 * n - kVec) * kSize, of.gate_end);
        else
            of_up.start(at.up, has_up ? n * kSize : 0, of.up_end);
        unpack<T>(of_gate.finish(), gate);
        unpack<T>(of_up.finish(), up);
    } else {
        using pack_of = packet<T, kVec>;
        const uint64_t policy = act_policy<kAccess>();
        auto of_gate = load_packet<T, kAccess, kVec>(at.gate, policy);
        if (has_up) {
            auto of_up = load_packet<T, kAccess, kVec>(at.up, policy);
            pack_of::widen(of_up, up);
        }
        pack_of::widen(of_gate, gate);
    }
    if constexpr (kIsPairs) {
        float first[kVec], second[kVec];
        memcpy(first, gate, sizeof first);
        memcpy(second, up, sizeof second);
        part(first, second, gate, up);
    }
}

// Vectors of a row, of which left elements are there.
template <typename T, int kVecs, int kWords>
__device__ __forceinline__ void store_any(T *to, int64_t left, int64_t column,
                                          const uint32_t (&word)[kWords])
{
    using unit = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
    int lane = threadIdx.x % 32;
    store_shifted<unit, kVecs>(reinterpret_cast<char *>(to), left, lane > 0 && column > 0,
                               lane < 31, word);
}

template <typename T, act_access kAccess, int kVec>
__device__ __forceinline__ void store_packet(T *to, const act_place<kVec> &place,
                                             const float (&y)[kVec])
{
    if constexpr (kAccess == kActShifted) {
        const uint4 words = pack<T>(y);
        store_any<T, 1, 4>(to, place.left, place.column, {words.x, words.y, words.z, words.w});
    } else {
        packet<T, kVec>::store(to, y);
    }
}

// What load_operands reads, from gate and up.
template <typename T, bool kIsPairs, act_access kAccess, int kVec>
__device__ __forceinline__ void
store_operands(bool has_up, const act_addresses<T, kIsPairs, kVec> &to,
               const act_place<kVec> &place, const float (&gate)[kVec], const float (&up)[kVec])
{
    if constexpr (kIsPairs) {
        float first[kVec], second[kVec];
        weave(gate, up, first, second);
        if constexpr (kAccess == kActShifted) {
            const uint4 a = pack<T>(first), b = pack<T>(second);
            store_any<T, 2, 8>(to.gate, 2 * place.left, place.column,
                               {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w});
        } else {
            packet<T, kVec>::store(to.gate, first);
            packet<T, kVec>::store(to.up, second);
        }
    } else {
        store_packet<T, kAccess, kVec>(to.gate, place, gate);
        if (has_up)
            store_packet<T, kAccess, kVec>(to.up, place, up);
    }
}

// ------------------------------------------------------------------------------------ values

// What becomes of a gate and an up.
struct act_rule {
    float limit, alpha, beta; // a beta of -0 leaves every number as it is
    int32_t activation;
    int32_t changes, rounds; // bool; changes: there is a limit, or a beta
};

static inline struct act_rule act_rule_of(const struct act_and_mul_plan *plan)
{
    return {plan->limit,
            plan->alpha,
            plan->beta == 0 ? -0.0f : plan->beta,
            plan->activation,
            plan->limit < INFINITY || plan->beta != 0,
            plan->rounds};
}

template <typename T>
__device__ __forceinline__ float rounded(float x)
{
    return element<T>::to_float(element<T>::from_float(x));
}

// gelu_new of Hugging Face, each step of which is rounded.
template <typename T>
__device__ __forceinline__ float gelu_in_steps(float x)
{
    float cube = rounded<T>(rounded<T>(__fmul_rn(x, x)) * x);
    float z = rounded<T>(__fadd_rn(x, rounded<T>(__fmul_rn(0.044715f, cube))));
    float t = rounded<T>(tanhf(rounded<T>(__fmul_rn(0x1.988454p-1f, z))));
    return rounded<T>(rounded<T>(0.5f * x) * rounded<T>(1.0f + t));
}

// x * sigmoid(alpha * x), the same way.
template <typename T>
__device__ __forceinline__ float sigmoid_in_steps(float x, float alpha)
{
    return rounded<T>(x * rounded<T>(sigmoid(rounded<T>(__fmul_rn(alpha, x)))));
}

template <typename T, int n>
__device__ __forceinline__ void activate_in_steps(const act_rule &rule, float (&gate)[n],
                                                  float (&up)[n])
{
    bool is_gelu = rule.activation == ACT_GELU_TANH;
#pragma unroll
    for (int j = 0; j < n; j++) {
        gate[j] = is_gelu ? gelu_in_steps<T>(gate[j]) : sigmoid_in_steps<T>(gate[j], rule.alpha);
        up[j] = rounded<T>(up[j] + rule.beta);
    }
}

// Gates become act(gate) * up in float32, or act(gate) alone. kSteps: rounding=steps.
template <typename T, bool kSteps, int n>
__device__ __forceinline__ void act_of(const act_rule &rule, bool has_up, float (&gate)[n],
                                       float (&up)[n])
{
    if (rule.changes) {
#pragma unroll
        for (int j = 0; j < n; j++) {
            gate[j] = at_most(rule.limit, gate[j]);
            up[j] = clamped(rule.limit, up[j]);
            up[j] = kSteps ? up[j] : up[j] + rule.beta;
        }
    }
    if constexpr (kSteps)
        activate_in_steps<T>(rule, gate, up);
    else
        activate(rule.activation, rule.alpha, gate);
    if (!kSteps && rule.rounds) {
#pragma unroll
        for (int j = 0; j < n; j++)
            gate[j] = rounded<T>(gate[j]);
    }
    if (has_up) {
#pragma unroll
        for (int j = 0; j < n; j++)
            gate[j] *= up[j];
    }
}

// ------------------------------------------------------------------------------------ launch

// Where the last whole packet ends of an operand of so many columns.
template <typename T>
static const char *act_end(const void *from, int64_t stride, int64_t width,
                           const struct act_and_mul_plan *plan)
{
    int64_t last = (plan->n_rows - 1) * stride + width;
    return from ? whole_end(from, last * (int64_t)sizeof(T)) : NULL;
}

// Of x, or of gate and up where that is not given; of pairs up is none.
template <typename T>
static struct act_operands
act_operands_of(const struct act_and_mul_plan *plan, const struct roped_tensor *x,
                const struct roped_tensor *gate, const struct roped_tensor *up)
{
    struct act_operands of = {};
    int64_t h = plan->width;
    if (!roped_tensor_given(x)) {
        of = {gate->data, up->data, row_stride(gate, h), row_stride(up, h), NULL, NULL};
    } else {
        T *data = static_cast<T *>(x->data);
        of.gate = data;
        of.gate_stride = of.up_stride = row_stride(x, plan->gated ? 2 * h : h);
        if (plan->gated && !plan->interleaved) {
            of.gate = plan->gate_second ? data + h : data;
            of.up = plan->gate_second ? data : data + h;
        }
    }
    of.gate_end = act_end<T>(of.gate, of.gate_stride, plan->interleaved ? 2 * h : h, plan);
    of.up_end = act_end<T>(of.up, of.up_stride, h, plan);
    return of;
}

// The operands some rows further.
template <typename T>
static struct act_operands act_moved(struct act_operands of, int64_t rows)
{
    of.gate = static_cast<T *>(of.gate) + rows * of.gate_stride;
    of.up = of.up ? static_cast<T *>(of.up) + rows * of.up_stride : NULL;
    return of;
}

// Do words of n elements begin every row?
template <typename T>
static bool has_words(const struct act_and_mul_plan *plan, const void *from, int64_t stride, int n)
{
    return is_aligned(from, (uintptr_t)n * sizeof(T)) && (plan->n_rows == 1 || stride % n == 0);
}
template <typename T>
static bool has_words(const struct act_and_mul_plan *plan, const struct act_operands &of, int n)
{
    return has_words<T>(plan, of.gate, of.gate_stride, n) &&
           has_words<T>(plan, of.up, of.up ? of.up_stride : 0, n);
}

// Does 16 bytes divide every address that begins a packet?
template <typename T>
static bool has_packets(const struct act_and_mul_plan *plan, const void *from, int64_t stride)
{
    return has_words<T>(plan, from, stride, kVecOf<T>);
}
template <typename T>
static bool has_packets(const struct act_and_mul_plan *plan, const struct act_operands &of)
{
    return plan->width % kVecOf<T> == 0 && has_words<T>(plan, of, kVecOf<T>);
}

// How packets of a call are moved. What a thread does for a whole one takes longer than a small
// call otherwise, but less so than shifting.
template <typename T>
static act_access access_of(const struct roped_call *call, bool has_packets,
                            const struct roped_queue *queue)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    const int64_t n = plan->n_rows * plan->width;
    if (is_small<T>(has_packets ? 3 * n : n, queue))
        return kActSingle;
    if (!has_packets)
        return kActShifted;
    return passes_l2(roped_call_bytes(call), queue) ? kActKept : kActAligned;
}

// function(std::integral_constant) for a way to move packets.
template <typename F>
static auto with_access(act_access access, const F &function)
{
    switch (access) {
    case kActAligned:
        return function(std::integral_constant<act_access, kActAligned>{});
    case kActKept:
        return function(std::integral_constant<act_access, kActKept>{});
    case kActShifted:
        return function(std::integral_constant<act_access, kActShifted>{});
    default:
        return function(std::integral_constant<act_access, kActSingle>{});
    }
}

// Starts a kernel of at most so many rows, of so many packets each, at a time that these can be
// counted in a register. Args have the rows, and moved(rows) is those arguments some rows further.
template <typename Args, typename Moved>
static enum roped_status
launch_rows_of(int64_t packets, struct roped_queue *queue, kernel_fn<Args> *kernel,
               const struct act_and_mul_plan *plan, const Moved &moved, struct roped_error *err)
{
    const int64_t most = kMostPackets / packets;
    enum roped_status status = ROPED_OK;
    for (int64_t row = 0; row < plan->n_rows && !status; row += most) {
        int64_t rows = plan->n_rows - row < most ? plan->n_rows - row : most;
        Args args = moved(row);
        args.rows = {(uint32_t)(rows * packets), (uint32_t)packets, index_divisor(packets),
                     plan->width};
        status = start(queue, kernel, dim3(kActThreads),
                       (rows * packets + kActThreads - 1) / kActThreads, dim3(1), args, err);
    }
    return status;
}

// Of packets of kVec elements. more: elements of a row beside its width.
template <int kVec, typename Args, typename Moved>
static enum roped_status launch_rows(struct roped_queue *queue, kernel_fn<Args> *kernel,
                                     const struct act_and_mul_plan *plan, const char *name,
                                     const Moved &moved, struct roped_error *err, int64_t more = 0)
{
    const int64_t packets = blocks_of(plan->width + more, kVec);
    if (packets > kMostPackets)
        return roped_fail(
            err, ROPED_TOO_LARGE,
            "tensor '%s': rows of %lld elements, expected at most %lld on this device", name,
            (long long)plan->width, (long long)(kMostPackets * kVec));
    return launch_rows_of(packets, queue, kernel, plan, moved, err);
}
