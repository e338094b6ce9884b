/*
 * sweep_backward.c - shapes of binary_backward for `bench_ops --sweep`: those
 * of models, each in two types, random ones, and others.
 */
#include "bench/sweep.h"

#include "kernel/random.h"

#include <stdio.h>

enum { N_RANDOM = 60 };

/* Shapes of a and b, of one rank. */
struct pair {
    int rank;
    int64_t a[5], b[5];
};

/* clang-format off */
static const struct pair models[] = {
    {2, {2048, 4096},       {2048, 4096}},
    {2, {2048, 4096},       {1, 4096}},       /* weight of a norm */
    {2, {2048, 4096},       {2048, 1}},       /* weight of a token */
    {3, {8, 512, 5120},     {1, 1, 5120}},
    {3, {8, 512, 5120},     {8, 512, 1}},
    {3, {8, 512, 5120},     {1, 512, 5120}},  /* positions beside a batch */
    {3, {8, 512, 5120},     {8, 1, 5120}},    /* modulation of diffusion */
    {4, {4, 32, 1024, 128}, {4, 1, 1024, 128}},
    {4, {4, 32, 1024, 128}, {1, 1, 1024, 128}},
    {4, {4, 32, 1024, 128}, {1, 32, 1, 1}},   /* gain of a head */
    {4, {2, 16, 1024, 1024},{1, 16, 1024, 1024}}, /* bias of attention */
    {4, {2, 16, 1024, 1024},{2, 1, 1, 1024}}, /* mask of attention */
    {4, {16, 256, 56, 56},  {1, 256, 1, 1}},  /* channels of images */
    {2, {64, 8192},         {1, 1}},
    {2, {1, 4096},          {1, 1}},
    {2, {16, 1024},         {1, 1024}},
    {2, {32, 7168},         {32, 1}},
    {2, {4096, 18432},      {1, 18432}},
    {4, {3, 5, 7, 1111},    {3, 1, 7, 1}},
    {2, {4096, 1},          {1, 4096}},       /* products of two vectors */
};
/* Rows that begin anywhere, of few terms or in few threads; and operands that
 * are both broadcast, over small dims, or in outer products. They come last:
 * random shapes stay. */
static const struct pair others[] = {
    {2, {2, 400001},        {1, 400001}},
    {2, {3, 266665},        {1, 266665}},
    {2, {6, 600001},        {1, 600001}},
    {3, {200, 3, 777},      {200, 1, 777}},
    {2, {300, 333},         {1, 333}},
    {2, {5000, 161},        {1, 161}},
    {3, {1, 25, 32},        {5592, 25, 1}},
    {5, {1, 4, 1, 5, 8},    {11863, 4, 1, 1, 8}},
    {5, {608, 4, 1, 1, 112},{1, 1, 1, 16, 1}},
    {2, {16384, 1},         {1, 1024}},
    {2, {1000, 1},          {1, 20001}},
    {3, {8, 2048, 1},       {8, 1, 2048}},
    {2, {64, 1},            {1, 100000}},
};
/* clang-format on */

enum {
    N_MODELS = sizeof models / sizeof *models,
    N_OTHERS = sizeof others / sizeof *others
};

/* 2^power to twice that; two in three a multiple of 8. */
static int64_t random_size(struct random_source *source, int power)
{
    int64_t size = random_int(source, 1LL << power, (2LL << power) - 1);
    bool is_even = random_int(source, 0, 2) > 0;
    return is_even && size > 8 ? size / 8 * 8 : size;
}

/* 2^10 to 2^25 elements: a last dim of 8 to 16,383, what is left for the first
 * one up to 65,535, and others between. b is broadcast in about every second
 * dim; once in six, some of these are a's instead. */
static struct pair random_pair(struct random_source *source)
{
    struct pair pair = {.rank = (int)random_int(source, 2, 5)};
    int bits = (int)random_int(source, 10, 25);
    bool is_of_both = random_once_in(source, 6);
    int n_ones = 0;
    for (int i = pair.rank - 1; i >= 0; i--) {
        bool is_last = i == pair.rank - 1;
        int most = is_last ? 13 : i == 0 ? 15 : 8;
        most = bits < most ? bits : most;
        int least = is_last ? 3 : i == 0 ? most : 0;
        int power = (int)random_int(source, least, most);
        pair.a[i] = pair.b[i] = random_size(source, power);
        bits -= power;
        if (random_once_in(source, 2)) {
            bool is_of_a = is_of_both && random_once_in(source, 2);
            n_ones += pair.a[i] > 1;
            (is_of_a ? pair.a : pair.b)[i] = 1;
        }
    }
    if (n_ones == 0)
        pair.b[0] = 1;
    return pair;
}

/* "8x512" by 'x', "8,512" by ','. */
static const char *shape_text(const struct pair *pair, const int64_t *dims,
                              char between, char text[80])
{
    int at = 0;
    for (int i = 0; i < pair->rank; i++)
        at += snprintf(text + at, 80 - (size_t)at, "%.*s%lld", i > 0, &between,
                       (long long)dims[i]);
    return text;
}

/* The row of a pair, whose texts the next one overwrites. */
static struct bench_row row_of(const struct pair *pair, enum roped_dtype dtype,
                               const char *function)
{
    static char name[240], sizes[260], params[32];
    char a[80], b[80], out[80];
    int64_t o[5];
    for (int i = 0; i < pair->rank; i++)
        o[i] = pair->a[i] == 1 ? pair->b[i] : pair->a[i];
    snprintf(name, sizeof name, "%s backward %s %s / %s", function,
             sweep_type_name(dtype), shape_text(pair, pair->a, 'x', a),
             shape_text(pair, pair->b, 'x', b));
    snprintf(sizes, sizeof sizes, "o=%s a=%s b=%s",
             shape_text(pair, o, ',', out), shape_text(pair, pair->a, ',', a),
             shape_text(pair, pair->b, ',', b));
    snprintf(params, sizeof params, "function=%s", function);
    return (struct bench_row){.name = name,
                              .op = "binary_backward",
                              .dtype = dtype,
                              .sizes = sizes,
                              .inputs = "a b",
                              .params = params};
}

void sweep_backward(uint64_t seed, int n_random, sweep_visit_fn *visit,
                    void *context)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_BF16, ROPED_F16};
    struct bench_row row;
    for (int i = 0; i < 2 * N_MODELS && !n_random; i++) {
        row = row_of(&models[i / 2], types[i % 2], "mul");
        visit(context, &row);
    }
    for (int i = 0; i < (n_random ? n_random : N_RANDOM); i++) {
        struct random_source source = {seed * 1000003 + 2 * N_MODELS +
                                       (uint64_t)i};
        struct pair pair = random_pair(&source);
        enum roped_dtype dtype = types[random_int(&source, 0, 2)];
        row = row_of(&pair, dtype, random_once_in(&source, 5) ? "div" : "mul");
        visit(context, &row);
    }
    for (int i = 0; i < 2 * N_OTHERS && !n_random; i++) {
        row = row_of(&others[i / 2], types[i % 2], "mul");
        visit(context, &row);
    }
}
