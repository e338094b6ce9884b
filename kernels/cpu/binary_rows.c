/*
 * binary_rows.c - the inner loops of binary_backward, in plain C that the
 * compiler vectorises; built once per instruction set with CPU_ISA, as
 * rows.c is. Only stores that bypass the caches are intrinsics.
 */
#include "cpu/binary_rows.h"

#include "ops/binary_backward.h"

#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)

/* ------------------------------------------------------------------ terms */

static void negate(float *restrict to, const float *restrict g, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = -g[i];
}

static void multiply(float *restrict to, const float *restrict g,
                     const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = g[i] * x[i];
}

static void divide(float *restrict to, const float *restrict g,
                   const float *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = g[i] / b[i];
}

/* Divided twice: b * b would leave float32's range where (a / b) / b does not
 */
static void divide_twice(float *restrict to, const float *restrict g,
                         const float *restrict a, const float *restrict b,
                         int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = -(g[i] * (a[i] / b[i] / b[i]));
}

static void terms(int function, int side, float *to, const float *g,
                  const float *a, const float *b, int64_t n)
{
    bool is_a = side == BINARY_IN_A;
    if (function == BINARY_MUL)
        multiply(to, g, is_a ? b : a, n);
    else if (function == BINARY_DIV && is_a)
        divide(to, g, b, n);
    else if (function == BINARY_DIV)
        divide_twice(to, g, a, b, n);
    else if (function == BINARY_SUB && !is_a)
        negate(to, g, n);
    else
        memcpy(to, g, (size_t)n * sizeof *to);
}

/* ------------------------------------------------------------------- sums */

static void add(double *restrict sum, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += (double)x[i];
}

static double row_sum(const float *x, int64_t n)
{
    enum { LANES = 16 };
    double sum[LANES] = {0}, tail = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            sum[lane] += (double)x[i + lane];
    for (; i < n; i++)
        tail += (double)x[i];
    if (n < LANES)
        return tail;
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            sum[lane] += sum[lane + half];
    return sum[0] + tail;
}

static void add_row_sums(double *sum, const float *x, int64_t rows,
                         int64_t columns)
{
    for (int64_t row = 0; row < rows; row++)
        sum[row] += row_sum(x + row * columns, columns);
}

/* -------------------------------------------------------------- streaming */

#if defined(__AVX512F__)
typedef __m512i wide;
#define WIDE_LOAD(from)       _mm512_loadu_si512(from)
#define WIDE_STREAM(to, wide) _mm512_stream_si512((void *)(to), wide)
#elif defined(__AVX2__)
typedef __m256i wide;
#define WIDE_LOAD(from)       _mm256_loadu_si256((const void *)(from))
#define WIDE_STREAM(to, wide) _mm256_stream_si256((void *)(to), wide)
#elif defined(__SSE2__)
typedef __m128i wide;
#define WIDE_LOAD(from)       _mm_loadu_si128((const void *)(from))
#define WIDE_STREAM(to, wide) _mm_stream_si128((void *)(to), wide)
#endif

static void stream(void *to, const void *from, size_t bytes)
{
#ifdef WIDE_STREAM
    unsigned char *at = to;
    const unsigned char *source = from;
    size_t head = (size_t)(-(uintptr_t)to % sizeof(wide));
    head = head < bytes ? head : bytes;
    memcpy(at, source, head);
    size_t i = head;
    for (; i + sizeof(wide) <= bytes; i += sizeof(wide))
        WIDE_STREAM(at + i, WIDE_LOAD(source + i));
    memcpy(at + i, source + i, bytes - i);
#else
    memcpy(to, from, bytes);
#endif
}

static void stream_end(void)
{
#ifdef WIDE_STREAM
    _mm_sfence();
#endif
}

extern const struct cpu_binary_rows PASTE(cpu_binary_rows_, CPU_ISA);
const struct cpu_binary_rows PASTE(cpu_binary_rows_, CPU_ISA) = {
    .terms = terms,
    .add = add,
    .add_row_sums = add_row_sums,
    .stream = stream,
    .stream_end = stream_end,
};
