/*
 * test_quantize_rows.c - FP8 codes by steps are those of quotients, on every
 * instruction set that has such steps; and e2m1 codes.
 */
#include "check.h"

#include "cpu/quantize_rows.h"

#include <roped/numeric.h>

#include <float.h>
#include <math.h>
#include <string.h>

static const struct cpu_rows *rows; /* under test */

enum { N_WORDS = 1 << 16 };

static uint64_t state = 5;

static uint32_t random_word(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static _Alignas(64) uint16_t word[N_WORDS];
static _Alignas(64) uint8_t code[N_WORDS + 64];

static _Alignas(64) float number[N_WORDS];

/* What is in the arrays above, as a type. */
static const void *values_of(enum roped_dtype dtype)
{
    return dtype == ROPED_F32 ? (const void *)number : word;
}

static float value_of(enum roped_dtype dtype, int64_t i)
{
    return dtype == ROPED_F32   ? number[i]
           : dtype == ROPED_F16 ? roped_f16_to_float(word[i])
                                : roped_bf16_to_float(word[i]);
}

static uint8_t code_of(enum code_element element, float x, float divisor)
{
    const float q = x / divisor;
    return element == CODE_E4M3 ? roped_float_to_e4m3(q)
                                : roped_float_to_e5m2(q);
}

static void check_codes(enum code_element element, enum roped_dtype dtype,
                        float divisor, int64_t n, bool is_streamed)
{
    const struct cpu_codes how = {.element = element,
                                  .is_streamed = is_streamed};
    struct cpu_fp8_steps steps = {.divisor = 0};
    for (int i = 0; i < 64; i++)
        code[n + i] = 0x55;
    rows->quantize->encode_type(&how, dtype, code, values_of(dtype), n, n,
                                &divisor, &steps);
    rows->fence();
    for (int64_t i = 0; i < n; i++) {
        const float x = value_of(dtype, i);
        const uint8_t expected = code_of(element, x, divisor);
        if (code[i] != expected) {
            CHECK_FAIL("%s: %s %a / %a is %#x, expected %#x", rows->name,
                       roped_dtype_name(dtype), (double)x, (double)divisor,
                       code[i], expected);
            return;
        }
    }
    for (int i = 0; i < 64; i++)
        CHECK_INT(code[n + i], 0x55);
}

/* Powers of two, their neighbours, short mantissas whose quotients are often
 * half-way between two codes, and others. */
static float divisor_of(int i)
{
    const float power = ldexpf(1, i % 3 == 0 ? i % 184 - 60 : i % 40 - 20);
    const uint32_t bits = roped_float_bits(power);
    switch (i % 5) {
    case 0:
        return power;
    case 1:
        return roped_bits_float(bits + (random_word() & 3));
    case 2:
        return roped_bits_float(bits | (random_word() & 0x7F0000));
    case 3:
        return roped_bits_float(bits | 0x7F0000 | (random_word() & 0xFFFF));
    default:
        return roped_bits_float(bits | (random_word() & 0x7FFFFF));
    }
}

/* Numbers next to where codes by a divisor begin, and some others. */
static void fill_numbers(enum code_element element, float divisor)
{
    for (int i = 0; i < N_WORDS; i++) {
        const uint32_t r = random_word();
        const uint8_t c = (uint8_t)(r % 128);
        const float low = element == CODE_E4M3 ? roped_e4m3_to_float(c)
                                               : roped_e5m2_to_float(c);
        const float high = element == CODE_E4M3
                               ? roped_e4m3_to_float((uint8_t)(c + 1))
                               : roped_e5m2_to_float((uint8_t)(c + 1));
        const float begin = (low + high) / 2 * divisor;
        number[i] = roped_bits_float(
            i % 8 == 0 ? r
                       : (roped_float_bits(begin) + (r >> 8 & 7) - 4) ^
                             (r & 0x80000000u));
    }
}

TEST(codes_by_steps_are_those_of_quotients)
{
    if (!rows->quantize->encode_type)
        return;
    for (int i = 0; i < N_WORDS; i++)
        word[i] = (uint16_t)i;
    for (int i = 0; i < 300; i++) {
        const enum code_element element = i % 2 ? CODE_E4M3 : CODE_E5M2;
        const float divisor = divisor_of(i / 2);
        fill_numbers(element, divisor);
        check_codes(element, ROPED_BF16, divisor, N_WORDS, i & 2);
        check_codes(element, ROPED_F16, divisor, N_WORDS, i & 2);
        check_codes(element, ROPED_F32, divisor, N_WORDS, i & 2);
    }
}

TEST(codes_by_steps_are_of_any_number_of_values)
{
    const enum roped_dtype dtypes[] = {ROPED_BF16, ROPED_F16, ROPED_F32};
    if (!rows->quantize->encode_type)
        return;
    for (int i = 0; i < N_WORDS; i++)
        word[i] = (uint16_t)(random_word() >> 16);
    fill_numbers(CODE_E4M3, 0.3f);
    for (int64_t n = 0; n < 300; n++)
        check_codes(CODE_E4M3, dtypes[n % 3], n < 150 ? 1.7f : 0.3f, n, n & 1);
}

TEST(tiles_have_steps_of_their_own)
{
    enum { TILE = 128, N_TILES = 16, N = N_TILES * TILE - 40 };
    const struct cpu_codes how = {.element = CODE_E4M3};
    struct cpu_fp8_steps steps[N_TILES] = {0};
    float divisor[N_TILES];
    if (!rows->quantize->encode_type)
        return;
    for (int i = 0; i < N; i++)
        word[i] = (uint16_t)(random_word() >> 16);
    for (int i = 0; i < N_TILES; i++)
        divisor[i] = divisor_of(i);
    rows->quantize->encode_type(&how, ROPED_F16, code, word, N, TILE, divisor,
                                steps);
    for (int i = 0; i < N; i++)
        CHECK_INT(code[i], code_of(CODE_E4M3, value_of(ROPED_F16, i),
                                   divisor[i / TILE]));
}

static int32_t largest_of(enum roped_dtype dtype, int64_t first, int64_t n)
{
    float most = 0;
    for (int64_t i = first; i < first + n; i++) {
        const float x = fabsf(value_of(dtype, i));
        most = x > most ? x : most;
    }
    return (int32_t)roped_float_bits(most);
}

TEST(largest_magnitudes_are_those_of_numbers)
{
    enum { TILE = 128, MOST = 5000, MOST_TILES = MOST / TILE + 16 };
    const enum roped_dtype dtypes[] = {ROPED_BF16, ROPED_F16, ROPED_F32};
    if (!rows->quantize->largest_of)
        return;
    for (int64_t n = 0; n < MOST; n += n < 300 ? 1 : 47) {
        const enum roped_dtype dtype = dtypes[n % 3];
        int32_t most = 0, of_tile[MOST_TILES] = {0};
        for (int64_t i = 0; i < n; i++) {
            word[i] = (uint16_t)(random_word() >> (16 + n % 4));
            number[i] = roped_bits_float(random_word() >> n % 4);
        }
        rows->quantize->largest_of(dtype, values_of(dtype), 0, 1, n, MOST,
                                   &most);
        CHECK_INT(most, largest_of(dtype, 0, n));
        rows->quantize->largest_of(dtype, values_of(dtype), 0, 1, n, TILE,
                                   of_tile);
        for (int64_t i = 0; i * TILE < n; i++)
            CHECK_INT(of_tile[i],
                      largest_of(dtype, i * TILE,
                                 n - i * TILE < TILE ? n - i * TILE : TILE));
        /* of two rows, the second of which is here and there larger */
        rows->quantize->largest_of(dtype, values_of(dtype), n / 2, 2, n / 2,
                                   TILE, of_tile);
        for (int64_t i = 0; i * TILE < n / 2; i++) {
            const int64_t here =
                n / 2 - i * TILE < TILE ? n / 2 - i * TILE : TILE;
            const int32_t a = largest_of(dtype, i * TILE, here);
            const int32_t b = largest_of(dtype, n / 2 + i * TILE, here);
            CHECK_INT(of_tile[i], a > b ? a : b);
        }
    }
}

/* Some are signalling NaN. */
static void check_largest(int64_t n, int64_t tile)
{
    static float x[CPU_BLOCK];
    int32_t most[CPU_BLOCK / 16];
    for (int64_t i = 0; i < n; i++) {
        word[i] = (uint16_t)(random_word() >> (16 + n / 16 % 3));
        x[i] = roped_bf16_to_float(word[i]);
    }
    for (int64_t i = 0; i * tile < n; i++)
        most[i] = i % 5 ? 0 : 0x3F800000;
    rows->quantize->largest(x, n, tile, false, most);
    for (int64_t i = 0; i * tile < n; i++) {
        const int64_t left = n - i * tile;
        const int32_t expected =
            largest_of(ROPED_BF16, i * tile, left < tile ? left : tile);
        CHECK_INT(most[i],
                  i % 5 || expected > 0x3F800000 ? expected : 0x3F800000);
    }
}

TEST(largest_magnitudes_of_floats_are_those_of_numbers)
{
    for (int64_t n = 16; n <= CPU_BLOCK; n += 16) {
        check_largest(n, 16);
        check_largest(n, 128);
        check_largest(n, CPU_BLOCK);
    }
}

TEST(nibbles_are_those_of_quotients)
{
    static _Alignas(64) float x[CPU_BLOCK];
    const struct cpu_codes how = {.element = CODE_E2M1, .factor = 1};
    for (int i = 0; i < N_WORDS; i += CPU_BLOCK) {
        const float divisor = i % 3 ? 1.7f : 0.25f;
        for (int j = 0; j < CPU_BLOCK; j++)
            x[j] = roped_bf16_to_float((uint16_t)(i + j));
        rows->quantize->encode(&how, code, x, CPU_BLOCK, CPU_BLOCK, &divisor);
        for (int j = 0; j < CPU_BLOCK; j++)
            CHECK_INT(code[j / 2] >> (j % 2 * 4) & 0xF,
                      roped_float_to_e2m1(x[j] / divisor));
    }
}

/* ------------------------------------------------------------------ groups */

/* Codes of e2m1 are two a byte. */
static uint8_t nth_code(enum code_element element, int64_t i)
{
    if (element != CODE_E2M1)
        return code[i];
    return i % 2 ? code[i / 2] >> 4 : code[i / 2] & 0xF;
}

static uint8_t code_of_float(enum code_element element, float q)
{
    return element == CODE_E2M1 ? roped_float_to_e2m1(q)
                                : roped_float_to_e4m3(q);
}

/* No group of such a value has such a scale: that of Inf is 2^127, that of NaN
 * is NaN. */
static bool is_beyond(enum code_element element, float q, float divisor)
{
    const float most = element == CODE_E2M1 ? 16 : FLT_MAX;
    return (isnan(q) && !isnan(divisor)) ||
           (fabsf(q) > most && divisor < 0x1p127f);
}

/* n words from one on, by a power of two; what lies behind stays. */
static void check_powers(enum code_element element, int64_t first, int64_t n,
                         uint8_t scale, bool is_streamed)
{
    const struct cpu_codes how = {element, 1, 0, is_streamed};
    const float by = roped_e8m0_to_float(scale);
    float divisor[CPU_BLOCK / 32];
    for (int i = 0; i < CPU_BLOCK / 32; i++)
        divisor[i] = by;
    memset(code, 0x55, CPU_BLOCK + 64);
    rows->quantize->encode_powers(&how, code, word + first, n, divisor);
    rows->fence();
    for (int64_t i = 0; i < n; i++) {
        const uint16_t x = word[first + i];
        const float q = roped_bf16_to_float(x) / by;
        const uint8_t expected = code_of_float(element, q);
        if (is_beyond(element, q, by))
            continue;
        if (nth_code(element, i) != expected) {
            CHECK_FAIL("%s: %#x / %a is %#x, expected %#x", rows->name, x,
                       (double)by, nth_code(element, i), expected);
            return;
        }
    }
    for (int i = 0; i < 64; i++)
        CHECK_INT(code[code_bytes(element, n) + i], 0x55);
}

/* Of all words by the scales at the edges, of some by each. */
static bool is_edge(int scale)
{
    return scale < 20 || scale > 250 || scale % 32 == 31;
}

TEST(codes_of_words_less_an_exponent_are_those_of_quotients)
{
    if (!rows->quantize->encode_powers)
        return;
    for (int i = 0; i < N_WORDS; i++)
        word[i] = (uint16_t)i;
    for (int scale = 0; scale < 256; scale++)
        for (int64_t i = is_edge(scale) ? 0 : scale % 8 * CPU_BLOCK;
             i < N_WORDS; i += is_edge(scale) ? CPU_BLOCK : 8 * CPU_BLOCK) {
            check_powers(CODE_E4M3, i, CPU_BLOCK, (uint8_t)scale, scale & 1);
            check_powers(CODE_E2M1, i, CPU_BLOCK, (uint8_t)scale, scale & 1);
        }
}

TEST(groups_of_any_number_have_scales_of_their_own)
{
    enum { GROUP = 32, MOST = 20 };
    const struct cpu_codes how[] = {{.element = CODE_E4M3, .factor = 1},
                                    {.element = CODE_E2M1, .factor = 1}};
    if (!rows->quantize->encode_powers)
        return;
    for (int n = 1; n <= MOST; n++) {
        float divisor[MOST];
        for (int i = 0; i < n; i++)
            divisor[i] = roped_e8m0_to_float((uint8_t)(random_word() >> 24));
        for (int i = 0; i < n * GROUP; i++)
            word[i] = (uint16_t)(random_word() >> 16);
        for (int k = 0; k < 2; k++) {
            const int64_t bytes = code_bytes(how[k].element, n * GROUP);
            memset(code, 0x55, sizeof code);
            rows->quantize->encode_powers(&how[k], code, word, n * GROUP,
                                          divisor);
            for (int i = 0; i < n * GROUP; i++) {
                const float d = divisor[i / GROUP];
                const float q = roped_bf16_to_float(word[i]) / d;
                if (!is_beyond(how[k].element, q, d))
                    CHECK_INT(nth_code(how[k].element, i),
                              code_of_float(how[k].element, q));
            }
            CHECK_INT(code[bytes], 0x55);
        }
    }
}

/* Near numbers whose last bits are 0, among which are those half-way between
 * two codes; or any. */
static float near_half_way(int i)
{
    const uint32_t least = i % 4 ? 0x3FFFF : 0xFFFFFFFF;
    const uint32_t bits = (random_word() & ~least) + random_word() % 5 - 2;
    return roped_bits_float(i % 4 ? bits : random_word());
}

static int32_t largest_of_floats(const float *x, int64_t n)
{
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t bits = (int32_t)(roped_float_bits(x[i]) & 0x7FFFFFFF);
        most = bits > most ? bits : most;
    }
    return most;
}

/* A group by the scale that it has, all by words. */
static bool check_odd_words(enum roped_dtype dtype, enum code_element element,
                            float largest, bool rounds_up, const void *from,
                            const float *x)
{
    enum { GROUP = 32, LEAST = 16 };
    const struct cpu_codes how = {.element = element, .factor = 1};
    const struct code_rule rule = {
        .largest = largest,
        .round_bits =
            rounds_up ? 0x7FFFFF - (roped_float_bits(largest) & 0x7FFFFF) : 0};
    const int32_t most = largest_of_floats(x, GROUP);
    int32_t found;
    uint8_t scale, expected;
    float divisor, same;
    /* the same words, whether more is asked for or not */
    rows->quantize->odd_words(dtype, rounds_up, word, from, GROUP);
    rows->quantize->largest_groups(ROPED_BF16, word, GROUP, GROUP, true,
                                   &found);
    rows->quantize->powers(&rule, &found, 1, &scale, &divisor);
    rows->quantize->powers(&rule, &most, 1, &expected, &same);
    CHECK_INT(scale, expected);
    if (scale != expected)
        return false;
    if (scale < LEAST && most > 0)
        return true;
    rows->quantize->encode_powers(&how, code, word, GROUP, &divisor);
    for (int i = 0; i < GROUP; i++)
        if (nth_code(element, i) != code_of_float(element, x[i] / divisor)) {
            CHECK_FAIL("%s: %a / %a is %#x", rows->name, (double)x[i],
                       (double)divisor, nth_code(element, i));
            return false;
        }
    return true;
}

TEST(codes_and_scales_of_words_rounded_to_odd_are_those_of_floats)
{
    enum { GROUP = 32 };
    float x[GROUP];
    uint16_t half[GROUP];
    bool is_same = rows->quantize->odd_words != NULL;
    for (int turn = 0; is_same && turn < 40000; turn++) {
        const int32_t power = /* or of F16 */
            (int32_t)(turn % 3 ? random_word() % 250 : 98 + random_word() % 48);
        for (int i = 0; i < GROUP; i++) {
            x[i] = turn % 100 ? near_half_way(turn + (turn % 7 ? 0 : i)) : 0;
            /* within some binades, as groups are, but for a few */
            if (turn % 50)
                x[i] = roped_bits_float(
                    (roped_float_bits(x[i]) & 0x807FFFFF) |
                    (uint32_t)(power > i % 13 ? power - i % 13 : 0) << 23);
            half[i] = roped_float_to_f16(x[i]);
        }
        is_same &= check_odd_words(ROPED_F32, CODE_E4M3, 448, turn & 1, x, x);
        is_same &= check_odd_words(ROPED_F32, CODE_E2M1, 6, turn & 1, x, x);
        for (int i = 0; i < GROUP; i++)
            x[i] = roped_f16_to_float(half[i]);
        is_same &=
            check_odd_words(ROPED_F16, CODE_E4M3, 448, turn & 1, half, x);
        is_same &= check_odd_words(ROPED_F16, CODE_E2M1, 6, turn & 1, half, x);
    }
}

/* n words by the scales from one on, one for each group. */
static void check_nibbles(enum roped_dtype dtype, float factor, int64_t first,
                          int64_t n, int scale, bool is_streamed,
                          struct cpu_nibble_words *table)
{
    enum { GROUP = 16, N_SCALES = 127 };
    const struct cpu_codes how = {CODE_E2M1, factor, 0, is_streamed};
    uint8_t scales[CPU_BLOCK / GROUP];
    for (int i = 0; i < CPU_BLOCK / GROUP; i++)
        scales[i] = (uint8_t)((scale + i) % N_SCALES);
    memset(code, 0x55, CPU_BLOCK);
    rows->quantize->encode_nvfp4(&how, dtype, code, word + first, n, scales,
                                 table);
    rows->fence();
    for (int64_t i = 0; i < n; i++) {
        const float d = roped_e4m3_to_float(scales[i / GROUP]);
        const uint16_t x = word[first + i];
        const float product = value_of(dtype, first + i) * factor;
        const uint8_t expected =
            roped_float_to_e2m1(product / (d == 0 ? INFINITY : d));
        /* no such group has 0 for a scale */
        if (d == 0 && !(fabsf(product) < 1) && product == product)
            continue;
        if (nth_code(CODE_E2M1, i) != expected) {
            CHECK_FAIL("%s: %#x * %a / %a is %#x, expected %#x", rows->name, x,
                       (double)factor, (double)d, nth_code(CODE_E2M1, i),
                       expected);
            return;
        }
    }
    CHECK_INT(code[n / 2], 0x55);
}

TEST(codes_by_the_words_of_a_scale_are_those_of_quotients)
{
    static struct cpu_nibble_words table;
    const float factors[] = {1,         0.37f,     448,       6 * 448 / 3.9f,
                             0x1p-126f, 0x1p-149f, 0x1p-30f,  0x1.8p127f,
                             0x1p100f,  3e-20f,    1.000001f, 12345.678f};
    if (!rows->quantize->encode_nvfp4)
        return;
    for (int i = 0; i < N_WORDS; i++)
        word[i] = (uint16_t)i;
    for (int i = 0; i < 24; i++) {
        memset(&table, 0, sizeof table);
        for (int64_t j = 0; j < N_WORDS; j += CPU_BLOCK)
            for (int scale = i % 12; scale < 127; scale += 8)
                check_nibbles(i < 12 ? ROPED_BF16 : ROPED_F16, factors[i % 12],
                              j, CPU_BLOCK, scale, scale & 1, &table);
    }
    memset(&table, 0, sizeof table);
    for (int64_t n = 16; n < 300; n += 16)
        check_nibbles(ROPED_BF16, 1.7f, 0x3E00, n, (int)n, false, &table);
}

/* Each scale has sixteen values of its own. */
TEST(nibbles_have_the_values_of_their_scales)
{
    enum { GUARD = 64, UNWRITTEN = 0x5555 };
    static struct cpu_nibble_values table;
    static _Alignas(64) uint16_t value[CPU_BLOCK + GUARD];
    uint8_t scale[CPU_BLOCK / 16];
    if (!rows->quantize->expand_nibbles)
        return;
    for (int i = 0; i < 256 * 16; i++)
        table.value[i / 16][i % 16] = (uint16_t)i;
    for (int64_t n = 16; n <= CPU_BLOCK; n += 16)
        for (int64_t group = 16; group <= 32 && n % group == 0; group *= 2) {
            for (int i = 0; i < CPU_BLOCK / 16; i++)
                scale[i] = (uint8_t)(random_word() >> 24);
            for (int i = 0; i < CPU_BLOCK / 2; i++)
                code[i] = (uint8_t)(random_word() >> 24);
            for (int i = 0; i < CPU_BLOCK + GUARD; i++)
                value[i] = UNWRITTEN;
            rows->quantize->expand_nibbles(value, code, n, group, scale, n & 32,
                                           &table);
            rows->fence();
            for (int64_t i = 0; i < n; i++)
                CHECK_INT(value[i],
                          scale[i / group] * 16 + nth_code(CODE_E2M1, i));
            for (int64_t i = n; i < n + GUARD; i++)
                CHECK_INT(value[i], UNWRITTEN);
        }
}

TEST(unknown_scales_are_found)
{
    bool is_known[256] = {false};
    uint8_t scale[CPU_BLOCK / 16];
    if (!rows->quantize->first_unknown)
        return;
    for (int i = 0; i < CPU_BLOCK / 16; i++)
        scale[i] = (uint8_t)(random_word() >> 24);
    for (int64_t n = 0; n <= CPU_BLOCK / 16; n++) {
        CHECK_INT(rows->quantize->first_unknown(is_known, scale, n),
                  n && is_known[scale[n - 1]] ? n
                  : n                         ? n - 1
                                              : 0);
        if (n)
            is_known[scale[n - 1]] = true;
    }
}

TEST(largest_magnitudes_of_groups_are_those_of_numbers_or_of_all)
{
    static int32_t most[CPU_BLOCK / 16 + 1];
    if (!rows->quantize->largest_groups)
        return;
    for (int64_t n = 32; n <= CPU_BLOCK; n += 32) {
        for (int64_t i = 0; i < n; i++)
            word[i] = (uint16_t)(random_word() >> (16 + n / 32 % 3));
        for (int k = 0; k < 3; k++) { /* NVFP4, MX, NVFP4 */
            const int64_t group = k == 1 ? 32 : 16;
            const enum roped_dtype dtype = k == 2 ? ROPED_F16 : ROPED_BF16;
            most[n / group] = 5;
            rows->quantize->largest_groups(dtype, word, n, group, k == 1, most);
            for (int64_t i = 0; i < n / group; i++) {
                int32_t expected = largest_of(dtype, i * group, group);
                for (int64_t j = i * group; k == 1 && j < (i + 1) * group; j++)
                    if ((word[j] & 0x7FFF) << 16 > expected)
                        expected = (word[j] & 0x7FFF) << 16;
                CHECK_INT(most[i], expected);
            }
            CHECK_INT(most[n / group], 5);
        }
    }
}

/* Two NaNs are the same: a product of a code and a scale that are both NaN has
 * the bits of one of them, and the compiler says of which, loop by loop. */
static bool are_same(enum roped_dtype type, uint16_t a, uint16_t b)
{
    const bool is_f16 = type == ROPED_F16;
    return a == b ||
           (isnan(is_f16 ? roped_f16_to_float(a) : roped_bf16_to_float(a)) &&
            isnan(is_f16 ? roped_f16_to_float(b) : roped_bf16_to_float(b)));
}

/* By a table, where there is one scale, and without. */
static void check_values(enum code_element element, enum roped_dtype type,
                         float scale, int64_t n)
{
    static _Alignas(64) uint16_t value[CPU_BLOCK], expected[CPU_BLOCK];
    const struct cpu_expansion how = {element, type, false};
    float scales[CPU_BLOCK / 16];
    for (int i = 0; i < CPU_BLOCK / 16; i++)
        scales[i] = scale;
    for (int i = 0; i < CPU_BLOCK; i++) {
        code[i] = (uint8_t)(i < 256 ? (uint32_t)i : random_word() >> 24);
        value[i] = 0x5555;
    }
    rows->quantize->expand(&how, value, code, n, CPU_BLOCK, scales);
    rows->quantize->expand(&how, expected, code, n, 16, scales);
    for (int64_t i = 0; i < n; i++) {
        if (!are_same(type, value[i], expected[i])) {
            CHECK_FAIL("%s: %#x times %a is %#x, expected %#x", rows->name,
                       code[i], (double)scale, value[i], expected[i]);
            return;
        }
    }
    for (int64_t i = n; i < CPU_BLOCK; i++)
        CHECK_INT(value[i], 0x5555);
}

TEST(values_do_not_depend_on_how_many_have_a_scale)
{
    const float scales[] = {1,     0.37f,     -1.9f,    0,        -0.0f,
                            1e-7f, 0x1p-133f, 0x1p125f, INFINITY, NAN};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        for (int64_t n = CPU_BLOCK; n > 500; n -= 37) {
            check_values(CODE_E4M3, ROPED_BF16, scales[i], n);
            check_values(CODE_E4M3, ROPED_F16, scales[i], n);
            check_values(CODE_E5M2, ROPED_BF16, scales[i], n);
            check_values(CODE_E5M2, ROPED_F16, scales[i], n);
        }
}

/* Those of MXFP8; or powers of two, rare ones, and others. */
static float scale_of(int i, bool is_power)
{
    const float rare[] = {0,     -0.0f, INFINITY,  NAN,     0x1p-127f,
                          -1.5f, 1e-7f, 0x1p-133f, 0x1p125f};
    const float power = ldexpf(1, (int)(random_word() % 276) - 148);
    if (is_power)
        return roped_e8m0_to_float((uint8_t)(random_word() >> 24));
    if (i % 4 == 0)
        return rare[random_word() % 9];
    if (i % 4 == 1)
        return power;
    return roped_bits_float(roped_float_bits(i % 4 == 2 ? power : 1) |
                            (random_word() & 0x807FFFFF));
}

/* Tiles of 16 have no table. */
TEST(values_by_the_scales_of_tiles_are_those_of_smaller_tiles)
{
    static _Alignas(64) uint16_t value[CPU_BLOCK], expected[CPU_BLOCK];
    const struct cpu_expansion how = {CODE_E4M3, ROPED_BF16, false};
    const int64_t tiles[] = {32, 64, 128};
    for (int turn = 0; turn < 600; turn++) {
        const int64_t tile = tiles[turn % 3], n = CPU_BLOCK - turn / 3 % 8 * 96;
        float scale[CPU_BLOCK / 32], scales[CPU_BLOCK / 16];
        for (int64_t i = 0; i * tile < CPU_BLOCK; i++)
            scale[i] = scale_of((int)i + turn, turn % 2);
        for (int64_t i = 0; i < CPU_BLOCK / 16; i++)
            scales[i] = scale[i * 16 / tile];
        for (int i = 0; i < CPU_BLOCK; i++)
            code[i] = (uint8_t)(random_word() >> 24);
        rows->quantize->expand(&how, value, code, n, tile, scale);
        rows->quantize->expand(&how, expected, code, n, 16, scales);
        for (int64_t i = 0; i < n; i++)
            if (!are_same(ROPED_BF16, value[i], expected[i])) {
                CHECK_FAIL("%s: %#x times %a is %#x, expected %#x", rows->name,
                           code[i], (double)scales[i / 16], value[i],
                           expected[i]);
                return;
            }
    }
}

int main(void)
{
    for (int rank = 0; (rows = cpu_rows_at(rank)) != NULL; rank++) {
        printf("%s:\n", rows->name);
        check_run();
    }
    return check_done();
}
