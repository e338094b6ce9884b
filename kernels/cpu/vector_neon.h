/*
 * vector_neon.h - cpu/vector.h for aarch64, whose every processor has NEON with
 * fused multiply-add and float16's conversions; with or without the bfloat16
 * instructions of ARMv8.6.
 */
#ifndef ROPED_CPU_VECTOR_NEON_H
#define ROPED_CPU_VECTOR_NEON_H

#include <arm_neon.h>

/* STREAMS = 1 streams and prefetches as on x86-64. Neither has been measured
 * on this architecture: NOTES.md. */
enum {
    LANES = 4,
    BLOCK = 2 * LANES,
    HAS_FUSED = 1,
    HAS_POWERS = 0,
    HAS_JOINED = 0,
    STREAMS = 0,
    UNROLLS = 1
};

typedef float32x4_t vfloat;
typedef int32x4_t vint;
typedef uint32x4_t vbits;
typedef uint16x8_t raw16;
typedef uint8x8_t raw8;
typedef struct {
    vfloat lo, hi;
} block;
typedef struct {
    float64x2_t lo, hi;
} doubles;

/* -------------------------------------------------------------- arithmetic */

INLINE vfloat splat(float x)
{
    return vdupq_n_f32(x);
}

INLINE vfloat permuted(vfloat x, vint k)
{
    return (vfloat){x[k[0]], x[k[1]], x[k[2]], x[k[3]]};
}

INLINE vfloat multiply_add(vfloat a, vfloat b, vfloat c)
{
    return vfmaq_f32(c, a, b);
}

INLINE vfloat negative_multiply_add(vfloat a, vfloat b, vfloat c)
{
    return vfmsq_f32(c, a, b);
}

INLINE vfloat difference_of_products(vfloat a, vfloat b, vfloat c, vfloat d)
{
    return vfmsq_f32(a * b, c, d);
}

INLINE vint nearest_integers(vfloat x)
{
    return vcvtnq_s32_f32(x);
}

INLINE vfloat floats_of(vint x)
{
    return vcvtq_f32_s32(x);
}

INLINE bool all_below(vfloat x, float limit)
{
    return vminvq_u32(vcltq_f32(x, splat(limit))) != 0;
}

INLINE vfloat larger_magnitude(vfloat x, vfloat magnitude)
{
    return vmaxnmq_f32(vabsq_f32(x), magnitude);
}

INLINE float largest_lane(vfloat x)
{
    return vmaxnmvq_f32(x);
}

/* Of four vectors, to four floats. */
INLINE void largest_lanes4(const vfloat *x, float *out)
{
    vst1q_f32(out,
              vpmaxnmq_f32(vpmaxnmq_f32(x[0], x[1]), vpmaxnmq_f32(x[2], x[3])));
}

INLINE vfloat where_odd(vint k, vfloat odd, vfloat even)
{
    return vbslq_f32(vtstq_s32(k, vdupq_n_s32(1)), odd, even);
}

INLINE doubles widen_floats(vfloat x)
{
    return (doubles){vcvt_f64_f32(vget_low_f32(x)), vcvt_high_f64_f32(x)};
}

INLINE double sum_of_doubles(doubles x)
{
    return vaddvq_f64(x.lo + x.hi);
}

/* ------------------------------------------------------------------ memory */

INLINE block load32(const void *from)
{
    const float *x = from;
    return (block){vld1q_f32(x), vld1q_f32(x + LANES)};
}

INLINE void store32(void *to, block x)
{
    float *y = to;
    vst1q_f32(y, x.lo);
    vst1q_f32(y + LANES, x.hi);
}

INLINE raw16 load16(const void *from)
{
    return vld1q_u16(from);
}

INLINE void store16(void *to, raw16 x)
{
    vst1q_u16(to, x);
}

INLINE void store8(void *to, raw8 x)
{
    vst1_u8(to, x);
}

/* The instruction only hints that the caches need not keep what it stores. */
INLINE void stream32(void *to, block x)
{
    if (STREAMS)
        __asm__("stnp %q1, %q2, %0"
                : "=Ump"(*(block *)to)
                : "w"(x.lo), "w"(x.hi));
    else
        store32(to, x);
}

INLINE void stream16(void *to, raw16 x)
{
    const uint64x2_t half = vreinterpretq_u64_u16(x);
    if (STREAMS)
        __asm__("stnp %d1, %d2, %0"
                : "=Ump"(*(raw16 *)to)
                : "w"(half), "w"(vdupq_laneq_u64(half, 1)));
    else
        store16(to, x);
}

INLINE void stream8(void *to, raw8 x)
{
    store8(to, x);
}

INLINE void stream64(void *to, const void *from)
{
    const float *x = from;
    float *y = to;
    stream32(y, load32(x));
    stream32(y + BLOCK, load32(x + BLOCK));
}

INLINE void fence(void)
{
}

/* ------------------------------------------------------------- conversions */

INLINE block widen_f16(raw16 x)
{
    const float16x8_t half = vreinterpretq_f16_u16(x);
    return (block){vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half)};
}

INLINE block load_f16(const void *from)
{
    return widen_f16(load16(from));
}

INLINE raw16 narrow_f16(block x)
{
    return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.lo), x.hi));
}

INLINE block split32(block x)
{
    return (block){vuzp1q_f32(x.lo, x.hi), vuzp2q_f32(x.lo, x.hi)};
}

INLINE block merge32(block x)
{
    return (block){vzip1q_f32(x.lo, x.hi), vzip2q_f32(x.lo, x.hi)};
}

INLINE vbits bits_of(vfloat x)
{
    return vreinterpretq_u32_f32(x);
}

/* The lower and upper halves of eight lanes. */
INLINE raw16 low_halves(vbits lo, vbits hi)
{
    return vuzp1q_u16(vreinterpretq_u16_u32(lo), vreinterpretq_u16_u32(hi));
}

INLINE raw16 high_halves(vbits lo, vbits hi)
{
    return vuzp2q_u16(vreinterpretq_u16_u32(lo), vreinterpretq_u16_u32(hi));
}

/* All ones in the halves whose lanes are no NaN. */
INLINE raw16 number_halves(block x)
{
    return low_halves(vceqq_f32(x.lo, x.lo), vceqq_f32(x.hi, x.hi));
}

INLINE block widen_bf16(raw16 x)
{
    return (block){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)),
                   vreinterpretq_f32_u32(vshll_high_n_u16(x, 16))};
}

INLINE block split_bf16(raw16 x)
{
    const vbits pairs = vreinterpretq_u32_u16(x);
    return (block){
        vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)),
        vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xFFFF0000u)))};
}

INLINE bool any_nan(block x)
{
    const float largest = vmaxvq_f32(vmaxq_f32(x.lo, x.hi)); /* or NaN */
    return largest != largest;
}

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
/* The dot product would add both squares with one instruction, but rounds to
 * odd. */
INLINE vfloat add_bf16_squares(vfloat sum, raw16 x)
{
    const bfloat16x8_t v = vreinterpretq_bf16_u16(x);
    return vbfmlaltq_f32(vbfmlalbq_f32(sum, v, v), v, v);
}

INLINE raw16 narrow_bf16(block x)
{
    return vreinterpretq_u16_bf16(
        vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x.lo), x.hi));
}

INLINE raw16 result_bf16(block x)
{
    return narrow_bf16(x);
}

INLINE raw16 merge_bf16(block x)
{
    return narrow_bf16(merge32(x));
}
#else
INLINE vfloat add_bf16_squares(vfloat sum, raw16 x)
{
    const block v = split_bf16(x);
    return multiply_add(v.hi, v.hi, multiply_add(v.lo, v.lo, sum));
}

/* The upper halves of lanes, which the lower ones round to nearest even: from
 * half a unit on, up; where the upper one is even, from the next on. */
INLINE raw16 round_halves(raw16 high, raw16 low)
{
    const raw16 even = vbicq_u16(vdupq_n_u16(1), high);
    return vrsraq_n_u16(high, vqsubq_u16(low, even), 16);
}

/* The same of results, whose NaNs are quiet: rounding up shall not carry out of
 * a mantissa of ones into the sign. */
INLINE raw16 round_results(raw16 high, raw16 low)
{
    const int16x8_t positive = vreinterpretq_s16_u16(high);
    high = vreinterpretq_u16_s16(vminq_s16(positive, vdupq_n_s16(0x7FFE)));
    return round_halves(vminq_u16(high, vdupq_n_u16(0xFFFE)), low);
}

INLINE raw16 narrow_bf16(block x)
{
    const raw16 high = high_halves(bits_of(x.lo), bits_of(x.hi));
    const raw16 code =
        round_halves(high, low_halves(bits_of(x.lo), bits_of(x.hi)));
    if (UNLIKELY(any_nan(x)))
        return vbslq_u16(number_halves(x), code,
                         vorrq_u16(high, vdupq_n_u16(0x40)));
    return code;
}

INLINE raw16 result_bf16(block x)
{
    return round_results(high_halves(bits_of(x.lo), bits_of(x.hi)),
                         low_halves(bits_of(x.lo), bits_of(x.hi)));
}

INLINE raw16 merge_bf16(block x)
{
    const raw16 even = vreinterpretq_u16_f32(x.lo);
    const raw16 odd = vreinterpretq_u16_f32(x.hi);
    return round_results(vtrn2q_u16(even, odd), vtrn1q_u16(even, odd));
}
#endif

/*
 * Magnitudes of x, at most max, to FP8 codes in the low seven bits of each
 * lane: m mantissa bits, bias b. Adding the power of two whose unit in the last
 * place is the spacing of codes at |x| rounds to nearest even; the low bits of
 * the sum then count codes from the start of the binade, and the exponent says
 * which code that is.
 */
INLINE vbits fp8_magnitude(vfloat x, int m, int b, float max)
{
    const uint32_t smallest = (uint32_t)(128 - b); /* normal exponent field */
    const uint32_t first_code = -(smallest << m) & 0xFF;
    const vfloat magnitude = vminnmq_f32(vabsq_f32(x), splat(max));
    const vbits binade =
        vandq_u32(vmaxq_u32(bits_of(magnitude), vdupq_n_u32(smallest << 23)),
                  vdupq_n_u32(0xFFu << 23));
    const vbits power =
        binade + vdupq_n_u32(((uint32_t)(23 - m) << 23) + first_code);
    const vfloat sum = magnitude + vreinterpretq_f32_u32(power);
    return bits_of(sum) + (binade >> (23 - m));
}

/* The sign is the lane's, the other bits are those of code. */
INLINE raw8 with_signs(raw8 code, raw16 high)
{
    return vbsl_u8(vdup_n_u8(0x7F), code, vshrn_n_u16(high, 8));
}

INLINE raw8 narrow_fp8(block x, float scale, int m, int b, float max)
{
    x = (block){x.lo * splat(scale), x.hi * splat(scale)};
    const raw16 code = low_halves(fp8_magnitude(x.lo, m, b, max),
                                  fp8_magnitude(x.hi, m, b, max));
    const raw8 number =
        with_signs(vmovn_u16(code), high_halves(bits_of(x.lo), bits_of(x.hi)));
    return vbsl_u8(vmovn_u16(number_halves(x)), number, vdup_n_u8(0x7F));
}

/*
 * Times 2^-112 q has float16's exponent, subnormal codes included, so that the
 * upper bits are the code, after half of its unit is added. What a subnormal
 * product lost is at most half a unit of the window.
 */
INLINE block code_bits(block q)
{
    const vfloat bias = splat(0x1p-112f);
    return (block){q.lo * bias, q.hi * bias};
}

/* All ones where x is far enough from where codes change. */
INLINE vbits sure_lanes(vfloat x, int m)
{
    const uint32_t far = (1u << (22 - m)) - QUOTIENT_WINDOW;
    return vtstq_u32(bits_of(x), vdupq_n_u32(far));
}

INLINE raw8 round_codes(enum order order, block x, int m)
{
    const block y = order == PAIRS ? merge32(x) : x;
    const raw16 high = high_halves(bits_of(y.lo), bits_of(y.hi));
    const raw16 magnitude = vandq_u16(high, vdupq_n_u16(0x7FFF));
    const raw16 most =
        vminq_u16(magnitude, vdupq_n_u16(m == 3 ? 0x7E7 : 0xF6F));
    return with_signs(m == 3 ? vrshrn_n_u16(most, 4) : vrshrn_n_u16(most, 5),
                      high);
}

INLINE bool quotient_codes(enum order order, const block *q, int n, int m,
                           raw8 *codes)
{
    vbits sure = vdupq_n_u32(UINT32_MAX);
    for (int i = 0; i < n; i++) {
        const block x = code_bits(q[i]);
        sure &= sure_lanes(x.lo, m) & sure_lanes(x.hi, m);
        codes[i] = round_codes(order, x, m);
    }
    return vminvq_u32(sure) != 0;
}

INLINE block bounded(block x, float bound)
{
    const vfloat most = splat(bound), least = splat(-bound);
    return (block){vmaxq_f32(least, vminq_f32(most, x.lo)),
                   vmaxq_f32(least, vminq_f32(most, x.hi))};
}

#endif
