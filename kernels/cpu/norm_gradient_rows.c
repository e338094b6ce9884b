/*
 * norm_gradient_rows.c - sums and products of blocks; built once per
 * instruction set, as rows.c is. The compiler makes vectors of these loops.
 */
#include "cpu/norm_gradient_rows.h"
#include "cpu/rows_isa.h"

/* Lane by lane in float32, at most CPU_BLOCK / CPU_LANES terms each. */
static double dot(const float *restrict a, const float *restrict b, int64_t n)
{
    float lane[CPU_LANES] = {0};
    double sum = 0;
    for (int64_t i = 0; i < n; i += CPU_LANES)
        for (int64_t j = 0; j < CPU_LANES; j++)
            lane[j] += a[i + j] * b[i + j];
    for (int64_t j = 0; j < CPU_LANES; j++)
        sum += (double)lane[j];
    if (sum - sum == 0 && (sum >= 0x1p-90 || sum <= -0x1p-90))
        return sum;
    sum = 0; /* a product may have left float32's range */
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static double sum_of(const float *restrict a, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i];
    return sum;
}

static void centre(float *restrict a, float high, float low, float s, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        a[i] = (a[i] - high - low) * s;
}

static void multiply(float *restrict a, const float *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        a[i] *= b[i];
}

static void descend(float *restrict a, const float *restrict b,
                    const float *restrict c, float s, float shift, float k,
                    int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        a[i] = s * (a[i] - shift - k * b[i]);
    for (int64_t i = 0; i < n && c; i++)
        a[i] += c[i];
}

static void add_products(double *restrict sum, const float *restrict a,
                         const float *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += (double)a[i] * (double)b[i];
}

static void add(double *restrict sum, const float *restrict a, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += (double)a[i];
}

extern const struct cpu_norm_gradient_rows ISA(cpu_norm_gradient_rows);
const struct cpu_norm_gradient_rows ISA(cpu_norm_gradient_rows) = {
    .dot = dot,
    .sum = sum_of,
    .centre = centre,
    .multiply = multiply,
    .descend = descend,
    .add_products = add_products,
    .add = add,
};
