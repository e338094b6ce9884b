// fp8_parts.cuh - parts of tokens that do not rotate and become FP8, where tokens have a stride:
// kernel and launch. Without one they are a stream (device/fp8_stream.cuh) of the kernel that
// rotates.
#pragma once

#include "cuda/device/fp8_stream.cuh"
#include "cuda/rotate_launch.cuh"

// Units are vectors, or elements.
struct fp8_parts {
    const char *from;
    uint8_t *to;
    uint32_t from_bytes, to_bytes; // from one token to the next
    int64_t n_units;
    struct divisor token_units;
    float scale;
    int32_t is_e5m2;
    int32_t has_vectors;
};

template <typename T>
static __global__ void quantize_parts_kernel(const __grid_constant__ struct fp8_parts parts)
{
    constexpr int kVec = kVecOf<T>;
    let_next_start();
    int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= parts.n_units)
        return;
    int64_t token = quotient(index, parts.token_units);
    int column = (int)(index - token * parts.token_units.by) * (parts.has_vectors ? kVec : 1);
    const T *from = reinterpret_cast<const T *>(parts.from + token * parts.from_bytes) + column;
    uint8_t *to = parts.to + token * parts.to_bytes + column;
    wait_for_previous();
    if (parts.has_vectors) {
        float x[kVec];
        unpack<T>(load_16(from), x);
        store_fp8(to, x, parts.scale, parts.is_e5m2);
    } else {
        float x[1] = {element<T>::to_float(*from)};
        store_fp8(to, x, parts.scale, parts.is_e5m2);
    }
}

static inline bool has_stride(const struct roped_tensor *in, const struct roped_tensor *out)
{
    return in->stride != 0 || out->stride != 0;
}

template <typename T>
static enum roped_status launch_part(const struct roped_tensor *in, const struct roped_tensor *out,
                                     int64_t n_tokens, int64_t n_elements, float scale,
                                     struct roped_queue *queue, struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    struct fp8_parts parts = {};
    if (n_tokens * n_elements == 0)
        return ROPED_OK;
    parts.from = static_cast<const char *>(in->data);
    parts.to = static_cast<uint8_t *>(out->data);
    parts.from_bytes = token_bytes_of(in, n_elements);
    parts.to_bytes = token_bytes_of(out, n_elements);
    parts.scale = scale;
    parts.is_e5m2 = out->dtype == ROPED_F8_E5M2;
    parts.has_vectors = is_aligned(in->data, 16) && is_aligned(out->data, kVec) &&
                        n_elements % kVec == 0 && parts.from_bytes % 16 == 0 &&
                        parts.to_bytes % kVec == 0;
    int64_t units = n_elements / (parts.has_vectors ? kVec : 1);
    parts.token_units = divisor_by(units);
    parts.n_units = n_tokens * units;
    return start(queue, quantize_parts_kernel<T>, dim3(ROTATE_THREADS),
                 ceil_div(parts.n_units, ROTATE_THREADS), dim3(), parts, err);
}

// Of a call that has been launched: the parts that were left out there.
template <typename T>
static enum roped_status launch_parts(const struct roped_call *call, struct roped_queue *queue,
                                      struct roped_error *err)
{
    const struct heads_plan *plan = heads_plan_of(call);
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < plan->n_parts && !status; i++) {
        const struct heads_part *part = &plan->part[i];
        if (part->rotates || part->to == HEADS_NO_PORT)
            continue;
        const struct roped_tensor *in = &call->in[part->from], *out = &call->out[part->to];
        if (has_stride(in, out))
            status = launch_part<T>(in, out, plan->rotary.n_tokens, part->heads * part->width,
                                    part->scale, queue, err);
    }
    return status;
}

// The stream of a part that goes to an output; of no elements where there is no such part, or it
// has a stride.
static inline struct fp8_stream part_stream_of(const struct roped_call *call, int input)
{
    const struct heads_plan *plan = heads_plan_of(call);
    const struct heads_part *part = part_from(plan, input);
    struct fp8_stream stream = {};
    if (!part)
        return stream;
    const struct roped_tensor *in = &call->in[part->from], *out = &call->out[part->to];
    stream.from = in->data;
    stream.to = static_cast<uint8_t *>(out->data);
    stream.scale = part->scale;
    if (!has_stride(in, out))
        stream.n_elements = plan->rotary.n_tokens * part->heads * part->width;
    return stream;
}

static inline void use_vectors(struct fp8_stream *stream, int vector)
{
    stream->has_vectors = is_aligned(stream->from, 16) && is_aligned(stream->to, vector);
}

static inline int64_t cut_stream(struct fp8_stream *stream, int64_t tile_vectors, int vector)
{
    stream->n_tiles = ceil_div(ceil_div(stream->n_elements, vector), tile_vectors);
    return stream->n_tiles;
}
