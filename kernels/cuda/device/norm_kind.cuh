// norm_kind.cuh - what a launch of a norm (norm.cuh) is told, and what a kernel of one is compiled
// for.
#pragma once

#include "cuda/device/fp8.cuh"
#include "cuda/device/vector.cuh"

// The weight's type beside that of x (T).
enum weight_kind {
    kWeightNone,
    kWeightSame,
    kWeightFloat, // T is narrow
    kWeightHalf,  // T is float
    kWeightBf16   // T is float
};

// Codes of 8 bits: their format, which is E4M3 if no bit says another, and whether scales that are
// found are rounded up to powers of two.
enum norm_codes { kCodesAreE5m2 = 1, kCodesAreInt8 = 2, kScalesArePowers = 4 };

// What every row needs comes first, what hardly any call needs last: a line of parameters that no
// row has read is a miss, and nothing else runs while one row waits for it. The second line starts
// with hidden, which is read before the wait.
struct norm_args {
    const void *x;
    const void *weight;
    void *y;
    const void *residual; // of a sum
    void *residual_out;
    int64_t n_rows;
    int64_t hidden;
    float eps;
    float inverse_hidden;
    float weight_bias;
    int32_t n_vectors; // of a row, where 16 bytes divide it; or its shares (norm_quarters.cuh)
    // codes of 8 bits (ops/rmsnorm_quantize.h)
    int32_t group_shift; // 2^group_shift vectors of x share a scale
    float scale_ub;
    float smallest_scale;
    struct shared_divisor divisor; // the scale that was given, or the largest finite value
    int32_t codes;                 // bits of enum norm_codes
    int32_t weight_kind;
    float *scales;
    int64_t scale_row;   // elements from a scale to that of the next row
    int64_t scale_group; // to that of the next group
    int64_t n_groups;    // of a row
    double exact_inverse_hidden;
    // of kernels whose rows registers do not hold (norm_staged.cuh)
    int32_t sums_in_double; // bool
    int32_t is_staged;      // bool: else a row is read again
    int32_t by_elements;    // bool, where vectors are not aligned
    int32_t n_places;       // of a thread, for rows in turn (norm_turns.cuh)
    int32_t rounds_product; // bool: rounding hf or type on a narrow type
    int32_t rounds_result;  // bool: rounding type on one
    // elements from a row to the next, where they may be more than hidden: norm_config, kStrides
    int64_t x_pitch;
    int64_t y_pitch;
    int64_t residual_pitch;
    int64_t residual_out_pitch;
    const void *bias;                 // of a centred norm, of weight's type; NULL: 0
    const char *x_end, *residual_end; // device/shifted.cuh
    int32_t stores_early;             // bool, of one: residual_out takes no input's place
    int32_t n_shares;                 // of a row of one, by half as many threads
    // of a sum of terms
    const void *addend; // or NULL
    int64_t addend_pitch;
    float x_scale;
    int32_t rounds_sum;     // bool: every step, of a narrow type
    int32_t residual_first; // bool: before the addend
    const char *addend_end; // device/shifted.cuh
    // of any sum
    float residual_scale, addend_scale, sum_scale;
    int32_t residual_is_float; // bool: beside a narrow x, and so is residual_out
    int64_t heads;             // of a row of the tensors, each of which is one here; of kFromHeads
    // of narrow rows in turn (norm_centred_turns.cuh)
    int32_t keeps;   // bool: what is read stays in L2
    int32_t n_turns; // of a block whose rows lie beside each other; 0: of every block, a grid apart
};

// What is known of a row once it is summed: y = (z - mean) * scale + rest. mean and rest, what the
// mean is beside it times -scale, are those of a centred norm.
struct row_scale {
    float scale;
    float mean;
    float rest;
};

// Where a row comes from.
enum norm_source {
    kFromX,
    kFromSum,        // x + residual, which is stored too
    kFromRoundedSum, // the same as it is stored; of a narrow type
    kFromTerms,      // x * x_scale, an addend and residual, in any order, rounded or not
    kFromAny,        // the same with every scale, and with a residual of float
    kFromHeads       // x in heads with weights of their own; of a centred norm
};

// Where the result goes.
enum norm_sink {
    kToFloats,      // the type of x
    kToFp8,         // divided by the scale that was given
    kToFp8PerRow,   // by one made from the row
    kToFp8PerGroup, // by one for each group of the row
};

// One kind of norm: the type of x, the row's source, the result's sink.
template <typename Element, norm_source kFrom, norm_sink kTo>
struct norm_kind {
    using T = Element;
    static constexpr int kVec = kVecOf<T>;
    static constexpr bool kHasHeads = kFrom == kFromHeads;
    static constexpr bool kAdds = kFrom != kFromX && !kHasHeads;
    static constexpr bool kRoundsSum = kFrom == kFromRoundedSum;
    static constexpr bool kHasTerms = kFrom == kFromTerms || kFrom == kFromAny;
    static constexpr bool kIsAny = kFrom == kFromAny; // and is read again, not held
    static constexpr norm_sink kSink = kTo;
};
