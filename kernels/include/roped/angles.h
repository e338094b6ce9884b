/*
 * angles.h - rotary frequencies: what a model's rope parameters mean.
 *
 * Every scaling variant ends in the same two things: r/2 inverse frequencies
 * and one attention factor. Two parameter sets that end in the same numbers
 * are the same angles, so a table of cos and sin is keyed by them.
 *
 * Rounding (fl is rounding to float32), so that tables equal those that
 * PyTorch builds and models were trained with: e_i = fl(2i/r), P_i =
 * fl(theta^e_i) correctly rounded, f_i = fl(1/P_i), every later step of a
 * variant in float32 in the order written in core/angles.c; the angle is
 * fl(position * f_i). angle_precision f64 keeps everything in float64.
 */
#ifndef ROPED_ANGLES_H
#define ROPED_ANGLES_H

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Order of the choices of parameter 'scaling'. */
enum roped_scaling {
#define SCALING(id, ...) ROPED_SCALING_##id,
#include <roped/scaling.def>
    ROPED_SCALING_COUNT
};

/* "|none|linear|...": the choices stand behind the first character. */
extern ROPED_API const char roped_scaling_choices[];

enum roped_longrope {
    ROPED_LONGROPE_AUTO,
    ROPED_LONGROPE_SHORT,
    ROPED_LONGROPE_LONG
};
enum roped_angle_precision { ROPED_ANGLE_F32, ROPED_ANGLE_F64 };
enum roped_angle_mode {
    ROPED_ANGLES_AUTO,
    ROPED_ANGLES_TABLE,
    ROPED_ANGLES_COMPUTE
};

/* Rows of positions that the pairs of a head may follow, at most. */
enum { ROPED_MAX_AXES = 4 };

/* A short list of integers, as "16,24,24" in a query string. */
enum { ROPED_MAX_INTS = 8 };
struct roped_ints {
    int32_t count; /* 0: not given, or an empty list */
    int32_t reserved;
    int64_t value[ROPED_MAX_INTS];
};

/* An integer or float parameter that was not given and has no default. */
#define ROPED_UNSET_INT   INT64_MIN
#define ROPED_UNSET_FLOAT __builtin_nan("")

/*
 * The angle parameters that every rotary operator shares:
 * embedded in its parameter struct as member 'angles'. Types are those of
 * roped/op.h: double, int64_t, int32_t for bool and choice.
 */
struct roped_angle_params {
    double theta;
    double factor; /* unset: NaN, like every double below that has no default */
    double low_freq_factor;
    double high_freq_factor;
    double beta_fast;
    double beta_slow;
    double mscale;
    double mscale_all_dim;
    double attention_factor;
    double alpha;
    double mixed_b;
    int64_t max_position;          /* unset: ROPED_UNSET_INT */
    int64_t original_max_position; /* unset: ROPED_UNSET_INT */
    struct roped_ints mrope_section;
    struct roped_ints mrope_axes;
    int64_t mrope_turns;     /* sections that take turns before the others */
    int32_t scaling;         /* enum roped_scaling */
    int32_t truncate;        /* bool */
    int32_t longrope;        /* enum roped_longrope */
    int32_t angle_precision; /* enum roped_angle_precision */
    int32_t mrope_interleaved;
    int32_t mode; /* parameter 'angles': enum roped_angle_mode */
};

/* Fills *params with the defaults of every member. */
ROPED_API void roped_angle_params_init(struct roped_angle_params *params);

/* The two factor lists of LongRoPE, [r/2] each, or NULL. Not owned. A list that
 * came in a request's body begins at any byte of it: read it by memcpy. */
struct roped_longrope_factors {
    const float *short_factor;
    const float *long_factor;
    int64_t count; /* r/2 */
};

/*
 * Resolved frequencies. n_pairs is r/2, or head_dim/2 for proportional (whose
 * last pairs have frequency 0). frequency points at memory of the caller.
 */
struct roped_angles {
    int64_t n_pairs;
    float attention_factor; /* multiplied into cos and sin */
    int32_t precision;      /* enum roped_angle_precision: type of frequency */
    union {
        const float *f32;
        const double *f64;
    } frequency;
};

/* Bytes of a frequency array of n_pairs entries in this precision. */
ROPED_API size_t roped_angles_frequency_bytes(int64_t n_pairs,
                                              int32_t precision);

/*
 * M-RoPE: the pairs of a head are cut into sections, and section s follows row
 * mrope_axes[s] of positions, row s where there is no such list. Sections lie
 * in blocks, or take turns (mrope_interleaved): pair i is of section i mod n
 * while that has pairs left by mrope_section, else of section 0. Or the first
 * mrope_turns of them, which are equal, take turns, and the others follow in
 * blocks.
 */
ROPED_API int roped_angles_section(const struct roped_angle_params *params,
                                   int64_t pair);

/* Has each section frequencies of its own? Then positions need its row. */
ROPED_API bool roped_angles_are_axial(const struct roped_angle_params *params);

/* Do sections add to n_pairs (0: not known), and follow rows that there are? */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_angles_check_sections(const struct roped_angle_params *params,
                            int64_t n_pairs, struct roped_error *err);

/*
 * Number of pairs that these parameters rotate in a head of head_dim elements
 * with rotary width rotary_dim.
 */
ROPED_API int64_t roped_angles_pairs(const struct roped_angle_params *params,
                                     int64_t rotary_dim, int64_t head_dim);

/*
 * Resolves parameters into *out, writing roped_angles_pairs() frequencies
 * into storage (roped_angles_frequency_bytes() of them, 16-byte aligned).
 * largest_position is that of the call (dynamic and longrope depend on it).
 * ROPED_BAD_PARAMETER names the parameter that is missing or out of range.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_angles_resolve(const struct roped_angle_params *params,
                     const struct roped_longrope_factors *factors,
                     int64_t rotary_dim, int64_t head_dim,
                     int64_t largest_position, void *storage,
                     struct roped_angles *out, struct roped_error *err);

/* True where the frequencies depend on the call's largest position. */
ROPED_API bool
roped_angles_depend_on_position(const struct roped_angle_params *params);

/* Equality of the numbers, and a hash of them: a resident table's key. */
ROPED_API bool roped_angles_equal(const struct roped_angles *a,
                                  const struct roped_angles *b);
ROPED_API uint64_t roped_angles_hash(const struct roped_angles *angles);

#ifdef __cplusplus
}
#endif

#endif
