/*
 * vector_portable.h - cpu/vector.h for any machine: the compiler's vectors
 * of 16 bytes, little-endian. Nothing is streamed.
 */
#ifndef ROPED_CPU_VECTOR_PORTABLE_H
#define ROPED_CPU_VECTOR_PORTABLE_H

enum {
    LANES = 4,
    BLOCK = 2 * LANES,
    HAS_FUSED = 0,
    HAS_POWERS = 0,
    HAS_JOINED = 0,
    STREAMS = 1,
    UNROLLS = 0
};

typedef float vfloat __attribute__((vector_size(4 * sizeof(float))));
typedef int32_t vint __attribute__((vector_size(sizeof(vfloat))));
typedef double vdouble __attribute__((vector_size(sizeof(vfloat))));
typedef struct {
    vfloat lo, hi;
} block;
typedef struct {
    vdouble lo, hi;
} doubles;
typedef struct {
    uint16_t code[BLOCK];
} raw16;
typedef struct {
    uint8_t code[BLOCK];
} raw8;

/* Elements of a and b, counted through both; integers are a vector of as many.
 * GCC 11 knows its own built-in alone, Clang the other. */
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(integers, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(integers, a, b, ...)                                           \
    __builtin_shuffle(a, b, (integers){__VA_ARGS__})
#endif

/* -------------------------------------------------------------- arithmetic */

INLINE vfloat splat(float x)
{
    return (vfloat){x, x, x, x};
}

INLINE vfloat permuted(vfloat x, vint k)
{
    return (vfloat){x[k[0]], x[k[1]], x[k[2]], x[k[3]]};
}

INLINE vfloat multiply_add(vfloat a, vfloat b, vfloat c)
{
    return a * b + c;
}

INLINE vfloat difference_of_products(vfloat a, vfloat b, vfloat c, vfloat d)
{
    return a * b - c * d;
}

INLINE vfloat negative_multiply_add(vfloat a, vfloat b, vfloat c)
{
    return c - a * b;
}

INLINE vint nearest_integers(vfloat x)
{
    const vfloat to_integer = splat(0x1.8p23f);
    return (vint)(x + to_integer) - (vint)to_integer;
}

INLINE vfloat floats_of(vint x)
{
    return __builtin_convertvector(x, vfloat);
}

INLINE bool all_below(vfloat x, float limit)
{
    return x[0] < limit && x[1] < limit && x[2] < limit && x[3] < limit;
}

INLINE vfloat larger_magnitude(vfloat x, vfloat magnitude)
{
    vint own = (vint)x & 0x7FFFFFFF;
    vint is_larger = (vint)((vfloat)own > magnitude);
    return (vfloat)((own & is_larger) | ((vint)magnitude & ~is_larger));
}

INLINE float largest_lane(vfloat x)
{
    float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
    return a > b ? a : b;
}

/* Of four vectors, to four floats. */
INLINE void largest_lanes4(const vfloat *x, float *out)
{
    for (int i = 0; i < 4; i++)
        out[i] = largest_lane(x[i]);
}

INLINE vfloat where_odd(vint k, vfloat odd, vfloat even)
{
    vint mask = -(k & 1);
    return (vfloat)(((vint)odd & mask) | ((vint)even & ~mask));
}

INLINE doubles widen_floats(vfloat x)
{
    return (doubles){{(double)x[0], (double)x[1]},
                     {(double)x[2], (double)x[3]}};
}

INLINE double sum_of_doubles(doubles x)
{
    vdouble sum = x.lo + x.hi;
    return sum[0] + sum[1];
}

/* ------------------------------------------------------------------ memory */

INLINE block load32(const void *from)
{
    block x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store32(void *to, block x)
{
    memcpy(to, &x, sizeof x);
}

INLINE raw16 load16(const void *from)
{
    raw16 x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store16(void *to, raw16 x)
{
    memcpy(to, &x, sizeof x);
}

INLINE void store8(void *to, raw8 x)
{
    memcpy(to, &x, sizeof x);
}

INLINE void stream32(void *to, block x)
{
    store32(to, x);
}

INLINE void stream16(void *to, raw16 x)
{
    store16(to, x);
}

INLINE void stream8(void *to, raw8 x)
{
    store8(to, x);
}

INLINE void stream64(void *to, const void *from)
{
    memcpy(to, from, 64);
}

INLINE void fence(void)
{
}

/* ------------------------------------------------------------- conversions */

typedef uint32_t vbits __attribute__((vector_size(sizeof(vfloat))));
typedef uint16_t vhalves __attribute__((vector_size(sizeof(vfloat))));

INLINE vbits splat_bits(uint32_t x)
{
    return (vbits){x, x, x, x};
}

/* a where mask is all ones, b where it is 0 */
INLINE vbits select_bits(vbits mask, vbits a, vbits b)
{
    return (a & mask) | (b & ~mask);
}

/* All ones where a > b; both without a sign bit. */
INLINE vbits above(vbits a, vbits b)
{
    return (vbits)((vint)a > (vint)b);
}

INLINE vbits magnitude_of(vfloat x)
{
    return (vbits)x & splat_bits(0x7FFFFFFFu);
}

INLINE vbits nan_lanes(vfloat x)
{
    return above(magnitude_of(x), splat_bits(0x7F800000u));
}

INLINE bool any_nan(block x)
{
    const vbits nan = nan_lanes(x.lo) | nan_lanes(x.hi);
    uint32_t any = 0;
    for (int i = 0; i < LANES; i++)
        any |= nan[i];
    return any != 0;
}

/* The lower halves of eight lanes. */
INLINE raw16 pack_halves(vbits lo, vbits hi)
{
    raw16 to;
    vhalves x =
        SHUFFLE(vhalves, (vhalves)lo, (vhalves)hi, 0, 2, 4, 6, 8, 10, 12, 14);
    memcpy(&to, &x, sizeof to);
    return to;
}

/* Eight halves as the lower halves of two vectors. */
INLINE void unpack_halves(raw16 from, vbits *lo, vbits *hi)
{
    const vhalves zero = {0};
    vhalves x;
    memcpy(&x, &from, sizeof x);
    *lo = (vbits)SHUFFLE(vhalves, x, zero, 0, 8, 1, 9, 2, 10, 3, 11);
    *hi = (vbits)SHUFFLE(vhalves, x, zero, 4, 12, 5, 13, 6, 14, 7, 15);
}

/* 2^112 takes the exponent from float16's bias to float32's. */
INLINE vfloat widen_f16_lanes(vbits x)
{
    vbits magnitude = (x & splat_bits(0x7FFFu)) << 13;
    vbits finite = (vbits)((vfloat)magnitude * splat(0x1p112f));
    vbits special = magnitude | splat_bits(0x7F800000u); /* Inf, NaN */
    vbits is_special = above(magnitude, splat_bits((0x7C00u << 13) - 1));
    return (vfloat)(select_bits(is_special, special, finite) |
                    (x & splat_bits(0x8000u)) << 16);
}

INLINE block widen_f16(raw16 from)
{
    vbits lo, hi;
    unpack_halves(from, &lo, &hi);
    return (block){widen_f16_lanes(lo), widen_f16_lanes(hi)};
}

INLINE block load_f16(const void *from)
{
    return widen_f16(load16(from));
}

INLINE block widen_bf16(raw16 from)
{
    vbits lo, hi;
    unpack_halves(from, &lo, &hi);
    return (block){(vfloat)(lo << 16), (vfloat)(hi << 16)};
}

INLINE vbits narrow_bf16_lanes(vfloat x)
{
    vbits bits = (vbits)x;
    vbits odd = (bits >> 16) & splat_bits(1);
    vbits rounded = bits + splat_bits(0x7FFFu) + odd;
    vbits nan = bits | splat_bits(0x400000u);
    return select_bits(nan_lanes(x), nan, rounded) >> 16;
}

INLINE raw16 narrow_bf16(block x)
{
    return pack_halves(narrow_bf16_lanes(x.lo), narrow_bf16_lanes(x.hi));
}

/*
 * Codes of magnitudes, at most largest, in a format with m mantissa bits and
 * bias b. Adding the power of two whose unit in the last place is the spacing
 * of codes at |x| rounds to nearest even; the low bits of the sum then count
 * codes from the start of the binade, and the exponent says which that is.
 */
INLINE vbits small_code(vfloat x, int m, int b, float max)
{
    const vbits smallest = splat_bits((uint32_t)(128 - b) << 23);
    const vbits largest = splat_bits(roped_float_bits(max));
    vbits magnitude = magnitude_of(x);
    magnitude = select_bits(above(magnitude, largest), largest, magnitude);
    vbits binade = magnitude & splat_bits(0x7F800000u);
    binade = select_bits(above(binade, smallest), binade, smallest);
    vbits power = binade + splat_bits((uint32_t)(23 - m) << 23);
    vbits sum = (vbits)((vfloat)magnitude + (vfloat)power);
    return sum - power + ((binade - smallest) >> (23 - m));
}

/* The code after that of 65504 is Inf. */
INLINE vbits narrow_f16_lanes(vfloat x)
{
    vbits sign = ((vbits)x >> 16) & splat_bits(0x8000u);
    vbits nan = splat_bits(0x7E00u) | (((vbits)x >> 13) & splat_bits(0x1FFu));
    vbits code = small_code(x, 10, 15, 65536);
    return select_bits(nan_lanes(x), nan, code) | sign;
}

INLINE raw16 narrow_f16(block x)
{
    return pack_halves(narrow_f16_lanes(x.lo), narrow_f16_lanes(x.hi));
}

INLINE vbits narrow_fp8_lanes(vfloat x, int m, int b, float max)
{
    vbits sign = ((vbits)x >> 24) & splat_bits(0x80u);
    vbits code = small_code(x, m, b, max) | sign;
    return select_bits(nan_lanes(x), splat_bits(0x7Fu), code);
}

INLINE raw8 narrow_fp8(block x, float scale, int m, int b, float max)
{
    x = (block){x.lo * splat(scale), x.hi * splat(scale)};
    typedef uint8_t vbytes __attribute__((vector_size(BLOCK)));
    vhalves code;
    raw8 to;
    raw16 halves = pack_halves(narrow_fp8_lanes(x.lo, m, b, max),
                               narrow_fp8_lanes(x.hi, m, b, max));
    memcpy(&code, &halves, sizeof code);
    vbytes bytes = __builtin_convertvector(code, vbytes);
    memcpy(&to, &bytes, sizeof to);
    return to;
}

INLINE block split32(block x)
{
    return (block){SHUFFLE(vint, x.lo, x.hi, 0, 2, 4, 6),
                   SHUFFLE(vint, x.lo, x.hi, 1, 3, 5, 7)};
}

INLINE block merge32(block x)
{
    return (block){SHUFFLE(vint, x.lo, x.hi, 0, 4, 1, 5),
                   SHUFFLE(vint, x.lo, x.hi, 2, 6, 3, 7)};
}

INLINE raw16 result_bf16(block x)
{
    return narrow_bf16(x);
}

INLINE raw16 merge_bf16(block x)
{
    return narrow_bf16(merge32(x));
}

INLINE block split_bf16(raw16 x)
{
    return split32(widen_bf16(x));
}

INLINE vfloat add_bf16_squares(vfloat sum, raw16 x)
{
    const block v = split_bf16(x);
    return multiply_add(v.hi, v.hi, multiply_add(v.lo, v.lo, sum));
}

/* Dividing four costs no more than what would tell whether it can be spared.
 */
INLINE bool quotient_codes(enum order order, const block *q, int n, int m,
                           raw8 *codes)
{
    (void)order;
    (void)q;
    (void)m;
    memset(codes, 0, (size_t)n * sizeof *codes);
    return false;
}

INLINE block bounded(block x, float bound)
{
    (void)bound;
    return x;
}

#endif
