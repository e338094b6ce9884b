/*
 * binary_sum_rows.c - the inner loops of binary_backward where both operands
 * are broadcast, and of sums; built once per instruction set, as rows.c is.
 *
 * As in binary_rows.c, a few terms are added in float32, and only what comes of
 * that in double.
 */
#include "cpu/binary_terms.h"

/* Of the summed operand's terms, by inverses where the values are these. */
static enum kind kind_of_terms(const struct cpu_binary *binary)
{
    if (!binary->is_inverse)
        return kind_of(binary);
    return binary->sums_a ? MUL : PRODUCT;
}

#define WITH_TYPE_AND_TERMS(dtype, kind, work, ...)                            \
    if ((kind) != PRODUCT)                                                     \
        WITH_TYPE_AND_KIND(dtype, kind, work, __VA_ARGS__)                     \
    else if ((dtype) == ROPED_F32)                                             \
        work(ROPED_F32, PRODUCT, __VA_ARGS__);                                 \
    else if ((dtype) == ROPED_F16)                                             \
        work(ROPED_F16, PRODUCT, __VA_ARGS__);                                 \
    else                                                                       \
        work(ROPED_BF16, PRODUCT, __VA_ARGS__);

/* -------------------------------------------------------------- wide rows */

INLINE void add_lanes(double *to, bool is_begun, vfloat x)
{
    enum { HALF = LANES / 2 };
    doubles more = widen_floats(x);
    __typeof__(more.lo) lo, hi; /* not both as one: GCC would store them */
    if (is_begun) {
        memcpy(&lo, to, sizeof lo);
        memcpy(&hi, to + HALF, sizeof hi);
        more = (doubles){lo + more.lo, hi + more.hi};
    }
    memcpy(to, &more.lo, sizeof lo);
    memcpy(to + HALF, &more.hi, sizeof hi);
}

/* The block becomes the sums, or where they are begun is added to them. */
INLINE void add_block(double *sum, bool is_begun, block x)
{
    add_lanes(sum, is_begun, x.lo);
    add_lanes(sum + LANES, is_begun, x.hi);
}

/* Zeros lie behind, and quotients of them. */
INLINE block first_terms(enum kind kind, block term, int64_t n)
{
    const bool divides = kind == OVER_SUM || kind == OVER_FULL;
    return divides ? first_of(term, n) : term;
}

/* Of what the operand that is not summed has values. */
enum values {
    OF_ROWS,
    OF_COLUMNS,
    OF_ALL /* in memory, a row may be every row */
};

struct wide {
    struct cpu_wide of;
    struct signs sign;
};

/* The terms of n elements of a row. */
INLINE block wide_block(enum roped_dtype dtype, enum kind kind, enum values of,
                        const struct wide *wide, int64_t row, int64_t i,
                        int64_t n, block y)
{
    const int64_t at = row * wide->of.stride + i;
    const int64_t x_at = row * wide->of.x_stride + i;
    const block g = load_at(dtype, wide->of.g, at, n);
    block x = g;
    prefetch_block(dtype, wide->of.g, at);
    if (kind != LINEAR && of == OF_ROWS)
        x.lo = x.hi = splat(wide->of.values[row]);
    else if (kind != LINEAR && of == OF_COLUMNS)
        x = load_floats(wide->of.values + i, n);
    else if (kind != LINEAR)
        x = load_at(dtype, wide->of.x, x_at, n);
    return sum_terms(kind, wide->sign, g, x, y);
}

/* n columns of at most eight rows, which are added in float32. */
INLINE void wide_columns_at(enum roped_dtype dtype, enum kind kind,
                            enum values of, const struct wide *wide,
                            int64_t begin, int64_t end, int64_t i, int64_t n)
{
    block y = {splat(0), splat(0)}, other = y;
    if (kind == OVER_SUM || kind == PRODUCT)
        y = load_floats(wide->of.y + i, n);
    block total = wide_block(dtype, kind, of, wide, begin, i, n, y);
    int64_t row = begin + 1;
    for (; row + 2 <= end; row += 2) {
        other = plus(other, wide_block(dtype, kind, of, wide, row, i, n, y));
        total =
            plus(total, wide_block(dtype, kind, of, wide, row + 1, i, n, y));
    }
    if (row < end)
        other = plus(other, wide_block(dtype, kind, of, wide, row, i, n, y));
    add_block(wide->of.sum + i, begin > 0 || wide->of.is_begun,
              plus(total, other));
}

INLINE void wide_columns_loop(enum roped_dtype dtype, enum kind kind,
                              enum values of, const struct wide *wide)
{
    enum { ROWS_PER_DOUBLE = 8 };
    const int64_t width = wide->of.width, rest = width % BLOCK;
    for (int64_t row = 0; row < wide->of.rows; row += ROWS_PER_DOUBLE) {
        const int64_t left = wide->of.rows - row;
        const int64_t end =
            row + (left < ROWS_PER_DOUBLE ? left : ROWS_PER_DOUBLE);
        int64_t i = 0;
        for (; i + BLOCK <= width; i += BLOCK)
            wide_columns_at(dtype, kind, of, wide, row, end, i, BLOCK);
        if (rest > 0)
            wide_columns_at(dtype, kind, of, wide, row, end, i, rest);
    }
}

/* Four blocks are added in float32. */
INLINE double wide_row(enum roped_dtype dtype, enum kind kind, enum values of,
                       const struct wide *wide, int64_t row)
{
#define TERMS(i) wide_block(dtype, kind, of, wide, row, i, BLOCK, y)
    const int64_t width = wide->of.width, rest = width % BLOCK;
    block y = {splat(0), splat(0)};
    if (kind == OVER_SUM || kind == PRODUCT)
        y.lo = y.hi = splat(wide->of.y[row]);
    doubles sum = widen_floats(splat(0));
    int64_t i = 0;
    for (; i + 4 * BLOCK <= width; i += 4 * BLOCK)
        sum = add_floats(
            sum, plus(plus(TERMS(i), TERMS(i + BLOCK)),
                      plus(TERMS(i + 2 * BLOCK), TERMS(i + 3 * BLOCK))));
    for (; i + BLOCK <= width; i += BLOCK)
        sum = add_floats(sum, TERMS(i));
    if (rest > 0) {
        block term = wide_block(dtype, kind, of, wide, row, i, rest, y);
        sum = add_floats(sum, first_terms(kind, term, rest));
    }
    return sum_of_doubles(sum);
#undef TERMS
}

INLINE void wide_rows_loop(enum roped_dtype dtype, enum kind kind,
                           enum values of, const struct wide *wide)
{
    for (int64_t row = 0; row < wide->of.rows; row++) {
        const double sum = wide_row(dtype, kind, of, wide, row);
        wide->of.sum[row] = wide->of.is_begun ? wide->of.sum[row] + sum : sum;
    }
}

INLINE void wide_columns_of(enum roped_dtype dtype, enum kind kind,
                            const struct wide *wide)
{
    if (wide->of.values)
        wide_columns_loop(dtype, kind, OF_ROWS, wide);
    else
        wide_columns_loop(dtype, kind, OF_ALL, wide);
}

INLINE void wide_rows_of(enum roped_dtype dtype, enum kind kind,
                         const struct wide *wide)
{
    if (wide->of.values)
        wide_rows_loop(dtype, kind, OF_COLUMNS, wide);
    else
        wide_rows_loop(dtype, kind, OF_ALL, wide);
}

static void wide_columns(const struct cpu_binary *binary,
                         const struct cpu_wide *of)
{
    const struct wide wide = {*of, signs_of(binary)};
    WITH_TYPE_AND_TERMS(binary->dtype, kind_of_terms(binary), wide_columns_of,
                        &wide)
}

static void wide_rows(const struct cpu_binary *binary,
                      const struct cpu_wide *of)
{
    const struct wide wide = {*of, signs_of(binary)};
    WITH_TYPE_AND_TERMS(binary->dtype, kind_of_terms(binary), wide_rows_of,
                        &wide)
}

/* ------------------------------------------------------- any broadcasting */

struct spread_terms {
    const void *g;
    const float *x, *y; /* x of the operand that is not summed */
    float *term;
    int64_t n;
    struct signs sign;
};

INLINE block spread_block(enum roped_dtype dtype, enum kind kind,
                          const struct spread_terms *all, int64_t i, int64_t n)
{
    block g = load_at(dtype, all->g, i, n), x = g, y = g;
    prefetch_block(dtype, all->g, i);
    if (kind != LINEAR)
        x = load_floats(all->x + i, n);
    if (kind == OVER_SUM || kind == PRODUCT)
        y = load_floats(all->y + i, n);
    return sum_terms(kind, all->sign, g, x, y);
}

INLINE void spread_loop(enum roped_dtype dtype, enum kind kind, bool is_begun,
                        const struct spread_terms *all)
{
    const int64_t rest = all->n % BLOCK, whole = all->n - rest;
    for (int64_t i = 0; i < whole; i += BLOCK) {
        block term = spread_block(dtype, kind, all, i, BLOCK);
        if (is_begun)
            term = plus(term, load32(all->term + i));
        store32(all->term + i, term);
    }
    if (rest > 0) {
        block term = spread_block(dtype, kind, all, whole, rest);
        term = first_terms(kind, term, rest);
        if (is_begun)
            term = plus(term, load32(all->term + whole));
        store32(all->term + whole, term);
    }
}

INLINE void all_terms(enum roped_dtype dtype, enum kind kind, bool is_begun,
                      const struct spread_terms *all)
{
    if (is_begun)
        spread_loop(dtype, kind, true, all);
    else
        spread_loop(dtype, kind, false, all);
}

static void add_terms(const struct cpu_binary *binary, float *term,
                      bool is_begun, const void *g, const float *a,
                      const float *b, int64_t n)
{
    const bool is_a = binary->sums_a;
    const struct spread_terms all = {g, is_a ? b : a,    is_a ? a : b, term,
                                     n, signs_of(binary)};
    WITH_TYPE_AND_TERMS(binary->dtype, kind_of_terms(binary), all_terms,
                        is_begun, &all)
}

INLINE uint32_t is_normal(float x)
{
    enum { SMALLEST = 0x00800000, INFINITE = 0x7F800000 };
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7FFFFFFF) - SMALLEST < INFINITE - SMALLEST;
}

static bool invert(float *x, int64_t n, bool squared)
{
    float inverse[CPU_BLOCK];
    uint32_t outside = 0;
    for (int64_t i = 0; i < n; i++) {
        const float divisor = squared ? -(x[i] * x[i]) : x[i];
        inverse[i] = 1 / divisor;
        outside |= !is_normal(divisor) | !is_normal(inverse[i]);
    }
    if (outside == 0)
        memcpy(x, inverse, (size_t)n * sizeof *x);
    return outside == 0;
}

static void add_to(double *restrict sum, bool is_begun,
                   const float *restrict term, int64_t n)
{
    if (is_begun) {
        add(sum, term, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        sum[i] = (double)term[i];
}

/* Element i of the result is from[i / times], which is a product and a shift.
 */
INLINE void repeat_few(float *to, const float *from, int64_t n, int32_t times)
{
    enum { SHIFT = 16 };
    const int32_t factor = (1 << SHIFT) / times + 1, whole = LANES / times;
    int32_t lane[LANES], place = 0;
    vint lanes;
    for (int i = 0; i < LANES; i++)
        lane[i] = i * factor;
    memcpy(&lanes, lane, sizeof lanes);
    for (int64_t i = 0; i < n * times; i += LANES) {
        const vint k = (lanes + place * factor) >> SHIFT;
        store_lanes(to + i, permuted(load_lanes(from), k));
        place += LANES - whole * times;
        from += whole + (place >= times);
        place -= place >= times ? times : 0;
    }
}

static void repeat(float *to, const float *from, int64_t n, int64_t times,
                   int64_t run)
{
    if (run == 1 && times < LANES) {
        repeat_few(to, from, n, (int32_t)times);
        return;
    }
    for (int64_t i = 0; run == 1 && i < n; i++, to += times) {
        const vfloat x = splat(from[i]);
        for (int64_t at = 0; at < times; at += LANES)
            store_lanes(to + at, x);
    }
    for (int64_t i = 0; run > 1 && i < n; i++, from += run)
        for (int64_t time = 0; time < times; time++, to += run)
            for (int64_t at = 0; at < run; at += LANES)
                store_lanes(to + at, load_lanes(from + at));
}

/* The sum of each of eight rows, whose additions do not wait for each other. */
INLINE void sum_narrow_rows(double *to, const double *from, int64_t width)
{
    double sum[8] = {0};
    for (int64_t i = 0; i < width; i++)
        for (int row = 0; row < 8; row++)
            sum[row] += from[row * width + i];
    memcpy(to, sum, sizeof sum);
}

/* The sum of a row: eight at once, and those at last. */
INLINE double sum_row(const double *x, int64_t width)
{
    double part[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= width; i += 8)
        for (int j = 0; j < 8; j++)
            part[j] += x[i + j];
    for (; i < width; i++)
        sum += x[i];
    for (int j = 0; j < 8; j++)
        sum += part[j];
    return sum;
}

static void add_doubles(double *restrict to, const double *restrict from,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

/* The later half of rows is added to the earlier one, until there is one row:
 * long loops, however short rows are. */
static void fold(double *x, int64_t outer, int64_t n, int64_t inner)
{
    enum { NARROW = 32 };
    int64_t i = 0;
    for (; inner == 1 && n < NARROW && i + 8 <= outer; i += 8)
        sum_narrow_rows(x + i, x + i * n, n);
    for (; inner == 1 && i < outer; i++)
        x[i] = sum_row(x + i * n, n);
    for (; i < outer; i++) {
        double *rows = x + i * n * inner;
        for (int64_t left = n; left > 1;) {
            const int64_t more = left / 2;
            left -= more;
            add_doubles(rows, rows + left * inner, more * inner);
        }
        if (i > 0)
            memmove(x + i * inner, rows, (size_t)inner * sizeof *x);
    }
}

/* Each row's sum: see sum_row. */
INLINE double sum_floats(const float *x, int64_t width)
{
    const int64_t rest = width % BLOCK, whole = width - rest;
    doubles sum = widen_floats(splat(0)), more = sum;
    for (int64_t i = 0; i < whole; i += BLOCK) {
        const block b = load_floats(x + i, BLOCK);
        const doubles lo = widen_floats(b.lo), hi = widen_floats(b.hi);
        sum = (doubles){sum.lo + lo.lo, sum.hi + lo.hi};
        more = (doubles){more.lo + hi.lo, more.hi + hi.hi};
    }
    sum = (doubles){sum.lo + more.lo, sum.hi + more.hi};
    if (rest > 0)
        sum = add_floats(sum, load_floats(x + whole, rest));
    return sum_of_doubles(sum);
}

/* The sums of LANES rows, of which there is a vector each. */
INLINE vfloat sum_lanes(vfloat *x)
{
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) {
            const block pairs = split32((block){x[2 * i], x[2 * i + 1]});
            x[i] = pairs.lo + pairs.hi;
        }
    return x[0];
}

/* Of rows that are at most a few blocks. */
INLINE void fold_narrow(double *sum, const float *x, int64_t outer, int64_t n)
{
    const int64_t rest = n % BLOCK, whole = n - rest;
    float lane[LANES];
    for (int i = 0; i < LANES; i++)
        lane[i] = (float)i;
    const vmask is_of_row = is_less(load_lanes(lane), splat((float)n));
    for (int64_t i = 0; i < outer; i += LANES) {
        vfloat part[LANES];
        float sums[LANES];
        const int64_t rows = outer - i < LANES ? outer - i : LANES;
        for (int64_t row = 0; row < LANES; row++) {
            const float *from = x + (i + (row < rows ? row : 0)) * n;
            if (n <= LANES) {
                part[row] = pick_lanes(is_of_row, load_lanes(from), splat(0));
                continue;
            }
            block of_row = load_floats(from + whole, rest);
            for (int64_t at = 0; at < whole; at += BLOCK)
                of_row = plus(of_row, load_floats(from + at, BLOCK));
            part[row] = of_row.lo + of_row.hi;
        }
        store_lanes(sums, sum_lanes(part));
        for (int64_t row = 0; row < rows; row++)
            sum[i + row] = (double)sums[row];
    }
}

/* Eight rows are added in float32, then in double. */
INLINE void fold_rows(double *sum, const float *x, int64_t n, int64_t inner)
{
    enum { ROWS_PER_DOUBLE = 8 };
    for (int64_t i = 0; i < inner; i += BLOCK)
        for (int64_t row = 0; row < n; row += ROWS_PER_DOUBLE) {
            const float *from = x + row * inner + i;
            const int64_t rows =
                n - row < ROWS_PER_DOUBLE ? n - row : ROWS_PER_DOUBLE;
            block total = load32(from), other = {splat(0), splat(0)};
            int64_t at = 1;
            for (; at + 2 <= rows; at += 2) {
                other = plus(other, load32(from + at * inner));
                total = plus(total, load32(from + (at + 1) * inner));
            }
            if (at < rows)
                other = plus(other, load32(from + at * inner));
            add_block(sum + i, row > 0, plus(total, other));
        }
}

static void fold_floats(double *sum, const float *x, int64_t outer, int64_t n,
                        int64_t inner)
{
    enum { NARROW = 3 * BLOCK, LONG = 256 };
    if (inner == 1 && n < NARROW) {
        fold_narrow(sum, x, outer, n);
    } else if (inner == 1) {
        for (int64_t i = 0; i < outer; i++)
            sum[i] = sum_floats(x + i * n, n);
    } else if (inner < LANES && n * inner >= LONG) {
        add_to(sum, false, x, outer * n * inner);
        fold(sum, outer, n, inner);
    } else {
        for (int64_t i = 0; i < outer; i++)
            fold_rows(sum + i * inner, x + i * n * inner, n, inner);
    }
}

static void round_sums(float *restrict to, const double *restrict sum,
                       int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)sum[i];
}

const struct cpu_binary_sum_rows ISA(cpu_binary_sum_rows) = {
    .wide_columns = wide_columns,
    .wide_rows = wide_rows,
    .repeat = repeat,
    .invert = invert,
    .add_terms = add_terms,
    .add_floats = add_to,
    .fold_floats = fold_floats,
    .round_sums = round_sums,
    .fold = fold,
};
