/*
 * sweep_models.c - shapes for `bench_ops --sweep` that nobody chose for an
 * operator: those of models that people run, and random ones. Which operators
 * have rows of a width, and what else they take, say their descriptors.
 */
#include "bench/sweep.h"

#include "kernel/random.h"

#include <stdio.h>
#include <string.h>

static const struct model {
    const char *name;
    int64_t hidden, heads, kv_heads, head;
} models[] = {
    {"Llama 3.2 1B", 2048, 32, 8, 64},
    {"Llama 3.2 3B", 3072, 24, 8, 128},
    {"Llama 3.1 8B", 4096, 32, 8, 128},
    {"Llama 3.1 70B", 8192, 64, 8, 128},
    {"Llama 3.1 405B", 16384, 128, 8, 128},
    {"Llama 2 7B", 4096, 32, 32, 128},
    {"Llama 2 13B", 5120, 40, 40, 128},
    {"Mistral 7B", 4096, 32, 8, 128},
    {"Mistral Nemo 12B", 5120, 32, 8, 128},
    {"Mistral Large 123B", 12288, 96, 8, 128},
    {"Mixtral 8x22B", 6144, 48, 8, 128},
    {"Qwen2.5 0.5B", 896, 14, 2, 64},
    {"Qwen2.5 1.5B", 1536, 12, 2, 128},
    {"Qwen2.5 3B", 2048, 16, 2, 128},
    {"Qwen2.5 7B", 3584, 28, 4, 128},
    {"Qwen2.5 14B", 5120, 40, 8, 128},
    {"Qwen2.5 72B", 8192, 64, 8, 128},
    {"Qwen3 0.6B", 1024, 16, 8, 128},
    {"Qwen3 1.7B", 2048, 16, 8, 128},
    {"Qwen3 4B", 2560, 32, 8, 128},
    {"Qwen3 8B", 4096, 32, 8, 128},
    {"Qwen3 14B", 5120, 40, 8, 128},
    {"Qwen3 32B", 5120, 64, 8, 128},
    {"Qwen3 30B-A3B", 2048, 32, 4, 128},
    {"Qwen3 235B-A22B", 4096, 64, 4, 128},
    {"Gemma 2 2B", 2304, 8, 4, 256},
    {"Gemma 2 9B", 3584, 16, 8, 256},
    {"Gemma 2 27B", 4608, 32, 16, 128},
    {"Gemma 3 1B", 1152, 4, 1, 256},
    {"Gemma 3 4B", 2560, 8, 4, 256},
    {"Gemma 3 12B", 3840, 16, 8, 256},
    {"Gemma 3 27B", 5376, 32, 16, 128},
    {"Phi 3 mini", 3072, 32, 32, 96},
    {"Phi 4", 5120, 40, 10, 128},
    {"DeepSeek V3", 7168, 128, 128, 192},
    {"gpt-oss 20B", 2880, 64, 8, 64},
    {"GPT-2", 768, 12, 12, 64},
    {"Falcon 7B", 4544, 71, 1, 64},
    {"StarCoder2 15B", 6144, 48, 4, 128},
    {"Command R+", 12288, 96, 8, 128},
};
enum { N_MODELS = sizeof models / sizeof *models };

/* Widths of other rows: heads, latents of MLA, and MLPs. */
static const int64_t more_widths[] = {64,    128,   192,   512,   1000,
                                      11008, 13824, 14336, 18432, 24576};
enum { N_MORE = sizeof more_widths / sizeof *more_widths };

static const int64_t steps[] = {1, 64, 2048, 16384};
enum { N_STEPS = sizeof steps / sizeof *steps, N_RANDOM = 240 };

/* clang-format off */
#define CODE_NORMS  "rmsnorm_quantize add_rmsnorm_quantize"
#define QUANTIZES   "quantize act_and_mul_quantize"
#define ACTIVATIONS "act_and_mul act_and_mul_backward"
/* What an operator does beside what it does by default. */
static const struct variant {
    const char *ops; /* that have it; NULL: all */
    const char *suffix, *params;
    int64_t group; /* divides the width */
} variants[] = {
    {CODE_NORMS, "", "dequant_scale=0.05", 1},
    {CODE_NORMS, " dynamic", "dynamic=true", 1},
    {CODE_NORMS, " by 128", "dynamic=true&group_size=128", 128},
    {NULL, "", NULL, 1},
    {CODE_NORMS, " int8", "dynamic=true&output_dtype=int8", 1},
    {CODE_NORMS, " mxfp8", "dynamic=true&output_dtype=mxfp8", 32},
    {CODE_NORMS, " mxfp4", "dynamic=true&output_dtype=mxfp4", 32},
    {CODE_NORMS, " nvfp4", "dynamic=true&output_dtype=nvfp4&global_scale=500", 16},
    {QUANTIZES, " by 128", "granularity=group", 128},
    {QUANTIZES, " given", "dynamic=false&dequant_scale=0.05", 1},
    {QUANTIZES, " int8", "output_dtype=int8", 1},
    {QUANTIZES, " mxfp8", "output_dtype=mxfp8", 32},
    {QUANTIZES, " mxfp4", "output_dtype=mxfp4", 32},
    {QUANTIZES, " nvfp4", "output_dtype=nvfp4&global_scale=500", 16},
    {"dequantize", " to bf16", "output_dtype=bf16", 1},
    {ACTIVATIONS, " gelu", "activation=gelu", 1},
    {ACTIVATIONS, " gelu_tanh", "activation=gelu_tanh", 1},
    {ACTIVATIONS, " relu2", "activation=relu2", 1},
    {ACTIVATIONS, " pairs", "activation=swiglu_oai&interleaved=true", 1},
    {"gated_rmsnorm", " gate first", "gate_first=true&rounding=hf", 1},
    {"gated_rmsnorm", " by 128", "gate_first=true&rounding=hf&group_size=128", 128},
    {"rmsnorm layer_norm", " of 32 heads", "heads=32", 32},
    {"add_rmsnorm add_layer_norm", " sum rounded", "sum_rounding=type", 1},
    {"rmsnorm add_rmsnorm rmsnorm_add rmsnorm_backward", " hf", "rounding=hf", 1},
};
/* clang-format on */
enum {
    N_VARIANTS = sizeof variants / sizeof *variants,
    N_OF_WIDTHS = 3 /* the first, of norms into codes by every width */
};

struct sweep {
    sweep_visit_fn *visit;
    void *context;
};

const char *sweep_type_name(enum roped_dtype dtype)
{
    return dtype == ROPED_F32 ? "f32" : dtype == ROPED_BF16 ? "bf16" : "f16";
}

/* Needed inputs, and of alternatives to others the first. */
static uint32_t needed_of(const struct roped_op *op)
{
    uint32_t needed = roped_op_needed(op);
    for (int i = 0; i < ROPED_MAX_GIVEN; i++) {
        const struct roped_given *given = &op->given[i];
        if (!given->when && !given->with_param && !(needed & given->without))
            needed |= given->without & -given->without;
    }
    return needed;
}

/* The inputs that a call cannot do without, and those that have a value
 * for each column: weights and biases. */
static const char *inputs_of(const struct roped_op *op, char text[96])
{
    uint32_t needed = needed_of(op);
    int at = 0;
    text[0] = '\0';
    for (int i = 0; i < roped_op_inputs(op); i++) {
        bool is_weight = strcmp(op->in[i].shape, "h") == 0;
        if (op->in[i].flags & ROPED_OPTIONAL &&
            (is_weight || needed & ROPED_INPUT(i)))
            at += snprintf(text + at, 96 - (size_t)at, "%s%s", at ? " " : "",
                           op->in[i].name);
    }
    return text;
}

static void visit_rows(const struct sweep *sweep, const struct roped_op *op,
                       enum roped_dtype dtype, int64_t n, int64_t width,
                       const struct variant *variant)
{
    char name[96], sizes[64], inputs[96];
    snprintf(name, sizeof name, "%s %s %lldx%lld%s", op->name,
             sweep_type_name(dtype), (long long)n, (long long)width,
             variant ? variant->suffix : "");
    snprintf(sizes, sizeof sizes, "rows=%lld h=%lld", (long long)n,
             (long long)width);
    const struct bench_row row = {.name = name,
                                  .op = op->name,
                                  .dtype = dtype,
                                  .sizes = sizes,
                                  .inputs = inputs_of(op, inputs),
                                  .params = variant ? variant->params : NULL};
    sweep->visit(sweep->context, &row);
}

static bool has_variant(const struct roped_op *op,
                        const struct variant *variant)
{
    size_t length = strlen(op->name);
    for (const char *at = variant->ops; at; at = strchr(at, ' ')) {
        at += *at == ' ';
        if (strncmp(at, op->name, length) == 0 &&
            (at[length] == ' ' || !at[length]))
            return true;
    }
    return !variant->ops;
}

/* Rows of a width by every step. Float32 has the width of twice as many 16-bit
 * elements: one step will do. */
static void sweep_width(const struct sweep *sweep, const struct roped_op *op,
                        int64_t width)
{
    bool quantizes = has_variant(op, &variants[0]);
    for (int v = 0; v < (quantizes ? N_OF_WIDTHS : 1); v++) {
        if (width % variants[v].group)
            continue;
        for (int s = 0; s < N_STEPS; s++)
            visit_rows(sweep, op, ROPED_BF16, steps[s], width,
                       quantizes ? &variants[v] : NULL);
        visit_rows(sweep, op, ROPED_F32, 2048, width,
                   quantizes ? &variants[v] : NULL);
    }
}

static void sweep_heads(const struct sweep *sweep, const char *op,
                        const char *inputs, const struct model *model)
{
    for (int s = 0; s < N_STEPS; s++) {
        char name[96], sizes[96];
        snprintf(name, sizeof name,
                 "%s bf16 %lld tokens, %lld+%lld heads x %lld", op,
                 (long long)steps[s], (long long)model->heads,
                 (long long)model->kv_heads, (long long)model->head);
        snprintf(sizes, sizeof sizes, "n=%lld hq=%lld hk=%lld d=%lld",
                 (long long)steps[s], (long long)model->heads,
                 (long long)model->kv_heads, (long long)model->head);
        const struct bench_row row = {.name = name,
                                      .op = op,
                                      .dtype = ROPED_BF16,
                                      .sizes = sizes,
                                      .inputs = inputs};
        sweep->visit(sweep->context, &row);
    }
}

/* Has an earlier model rows, or heads, of the same sizes? */
static bool is_new_width(int i)
{
    for (int j = 0; j < i; j++)
        if (models[j].hidden == models[i].hidden)
            return false;
    return true;
}

static bool has_new_heads(int i)
{
    for (int j = 0; j < i; j++)
        if (models[j].heads == models[i].heads &&
            models[j].kv_heads == models[i].kv_heads &&
            models[j].head == models[i].head)
            return false;
    return true;
}

/* Has it rows of one width, "rows h", and no other sizes? */
static bool has_rows(const struct roped_op *op)
{
    return op->tokens && strcmp(op->tokens, "rows") == 0;
}

/* 1 to 65,536 rows of 8 to 24,576 columns, at most 2^27 elements; two in three
 * widths are multiples of 8. */
static void visit_random(const struct sweep *sweep, uint64_t seed, int n_shapes)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_BF16, ROPED_F16};
    struct random_source source = {seed * 1000033};
    for (int i = 0; i < n_shapes;) {
        const struct roped_op *op =
            roped_op_at((int)random_int(&source, 0, roped_op_count() - 1));
        int64_t n = random_int(&source, 1, 1LL << random_int(&source, 0, 16));
        int64_t width = random_int(&source, 8, 24576);
        const struct variant *variant;
        do
            variant = &variants[random_int(&source, 0, N_VARIANTS - 1)];
        while (!has_variant(op, variant));
        enum roped_dtype dtype = types[random_int(&source, 0, 2)];
        if (!random_once_in(&source, 3))
            width = width / 8 * 8;
        if (variant->group > 1)
            width =
                (width + variant->group - 1) / variant->group * variant->group;
        if (!has_rows(op) || n * width > 1LL << 27)
            continue;
        i++;
        visit_rows(sweep, op, dtype, n, width, variant);
    }
}

void sweep_models(uint64_t seed, int n_random, sweep_visit_fn *visit,
                  void *context)
{
    static const char *const heads[][2] = {
        {"rope", "k positions"},
        {"qk_rmsnorm_rope", "k positions q_weight k_weight"}};
    struct sweep sweep = {visit, context};
    for (int i = 0; i < roped_op_count() && !n_random; i++) {
        const struct roped_op *op = roped_op_at(i);
        for (int m = 0; m < N_MODELS && has_rows(op); m++)
            if (is_new_width(m))
                sweep_width(&sweep, op, models[m].hidden);
        for (int w = 0; w < N_MORE && has_rows(op); w++)
            sweep_width(&sweep, op, more_widths[w]);
    }
    for (int m = 0; m < N_MODELS && !n_random; m++)
        for (int h = 0; h < 2 && has_new_heads(m); h++)
            sweep_heads(&sweep, heads[h][0], heads[h][1], &models[m]);
    visit_random(&sweep, seed, n_random ? n_random : N_RANDOM);
}
