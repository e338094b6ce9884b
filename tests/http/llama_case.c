/*
 * llama_case.c - a call as Llama 3.1 8B makes it, and the check of its answer:
 * for deploy/quickstart.sh.
 *     llama_case make BODY            q [512, 32, 128] and k [512, 8, 128] BF16
 *     llama_case check BODY ANSWER    against a float64 rotation
 * Knows nothing of the library's own frequencies: it has the formulas of
 * Hugging Face's rope_scaling "llama3" once more.
 */
#include "http/harness.h"

#include <roped/numeric.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 512, N_HEADS = 32, N_KV_HEADS = 8, WIDTH = 128 };

/* The last 512 tokens of a prompt of 16,384: beyond the 8,192 that the model
 * was first trained on, where the scaling matters. */
enum { FIRST_POSITION = 16384 - N_TOKENS };

static void *take(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory) {
        fprintf(stderr, "llama_case: no memory\n");
        exit(EXIT_FAILURE);
    }
    return memory;
}

/* About normal, as activations are: a sum of uniforms, xorshift behind it. */
static void fill(uint16_t *to, int64_t n, uint64_t state)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = -2;
        for (int j = 0; j < 4; j++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            sum += (float)(state >> 40) * 0x1p-24f;
        }
        to[i] = roped_float_to_bf16(1.7f * sum);
    }
}

static int make(const char *path)
{
    int64_t q_dims[3] = {N_TOKENS, N_HEADS, WIDTH};
    int64_t k_dims[3] = {N_TOKENS, N_KV_HEADS, WIDTH}, n = N_TOKENS;
    struct tensor_file file = {0};
    uint16_t *q = take(sizeof *q * N_TOKENS * N_HEADS * WIDTH);
    uint16_t *k = take(sizeof *k * N_TOKENS * N_KV_HEADS * WIDTH);
    int64_t *positions = take(sizeof *positions * N_TOKENS);
    size_t bytes;
    fill(q, (int64_t)N_TOKENS * N_HEADS * WIDTH, 88172645463325252u);
    fill(k, (int64_t)N_TOKENS * N_KV_HEADS * WIDTH, 1234567891011u);
    for (int i = 0; i < N_TOKENS; i++)
        positions[i] = FIRST_POSITION + i;
    file_add(&file, "q", ROPED_BF16, 3, q_dims, q);
    file_add(&file, "k", ROPED_BF16, 3, k_dims, k);
    file_add(&file, "positions", ROPED_I64, 1, &n, positions);
    unsigned char *body = file_write(&file, &bytes);
    FILE *out = fopen(path, "wb");
    bool is_written = out && fwrite(body, 1, bytes, out) == bytes;
    if (!out || fclose(out) != 0 || !is_written) {
        perror(path);
        return EXIT_FAILURE;
    }
    printf("%s: %zu bytes\n", path, bytes);
    free(body);
    free(q);
    free(k);
    free(positions);
    return EXIT_SUCCESS;
}

/* Frequencies in float32, step by step as PyTorch builds them. */
static void llama3_frequencies(float *frequency)
{
    const float factor = 8, low = 1, high = 4, original = 8192;
    for (int i = 0; i < WIDTH / 2; i++) {
        float power = (float)pow(500000, (double)(2 * i) / WIDTH);
        float f = 1 / power;
        float wavelength = (float)(2 * 3.14159265358979323846) / f;
        float t = (original / wavelength - low) / (high - low);
        if (wavelength > original / low)
            f = f / factor;
        else if (wavelength >= original / high)
            f = (1 - t) * f / factor + t * f;
        frequency[i] = f;
    }
}

struct worst {
    double ulps; /* largest error, in units in the last place of BF16 */
    int64_t values;
};

static double unit_of(double x)
{
    int exponent;
    frexp(x, &exponent);
    return ldexp(1, exponent - 1 - 7);
}

/* Rotates one head in float64 and compares. */
static void check_head(const uint16_t *in, const uint16_t *out, float position,
                       const float *frequency, struct worst *worst)
{
    double largest = 0;
    for (int i = 0; i < WIDTH; i++) {
        double x = fabs((double)roped_bf16_to_float(in[i]));
        /* GCC 12 for aarch64 fails at fmax of what is widened */
        largest = x > largest ? x : largest;
    }
    for (int i = 0; i < WIDTH; i++) {
        int pair = i % (WIDTH / 2);
        float angle = position * frequency[pair];
        double x = (double)roped_bf16_to_float(in[pair]);
        double y = (double)roped_bf16_to_float(in[pair + WIDTH / 2]);
        double expected = i < WIDTH / 2
                              ? x * cos((double)angle) - y * sin((double)angle)
                              : y * cos((double)angle) + x * sin((double)angle);
        double off = fabs((double)roped_bf16_to_float(out[i]) - expected);
        /* products cancel: the sum is as exact as its terms */
        off = fmax(0, off - 1e-6 * largest);
        worst->ulps = fmax(worst->ulps, off / unit_of(expected));
        worst->values++;
    }
}

static unsigned char *read_whole(const char *path, size_t *bytes)
{
    enum { MOST_BYTES = 64 << 20 };
    FILE *file = fopen(path, "rb");
    unsigned char *all = take(MOST_BYTES);
    *bytes = file ? fread(all, 1, MOST_BYTES, file) : 0;
    if (file)
        fclose(file);
    return all;
}

static bool load(const char *path, struct tensor_file *file)
{
    size_t bytes;
    unsigned char *all = read_whole(path, &bytes);
    bool is_read = file_read(file, all, bytes, NULL, NULL);
    free(all);
    if (!is_read)
        fprintf(stderr, "llama_case: %s is no safetensors file\n", path);
    return is_read;
}

static float position_of(int64_t row, int64_t n_heads)
{
    int64_t token = row / n_heads;
    return (float)(FIRST_POSITION + token);
}

static bool check_tensor(const char *name, const struct tensor_file *body,
                         const struct tensor_file *answer)
{
    const struct roped_tensor *in = file_find(body, name);
    const struct roped_tensor *out = file_find(answer, name);
    struct worst worst = {0};
    float frequency[WIDTH / 2];
    if (!in || !out || out->dtype != ROPED_BF16 || out->rank != 3 ||
        memcmp(in->dims, out->dims, 3 * sizeof *in->dims) != 0) {
        fprintf(stderr, "llama_case: no %s of the right shape\n", name);
        return false;
    }
    llama3_frequencies(frequency);
    for (int64_t row = 0; row < in->dims[0] * in->dims[1]; row++)
        check_head((const uint16_t *)in->data + row * WIDTH,
                   (const uint16_t *)out->data + row * WIDTH,
                   position_of(row, in->dims[1]), frequency, &worst);
    bool is_right = worst.ulps <= 0.51;
    printf("  %s [%" PRId64 ", %" PRId64 ", %" PRId64 "] BF16: %" PRId64
           " values, largest error %.3f of a unit in the last place: %s\n",
           name, out->dims[0], out->dims[1], out->dims[2], worst.values,
           worst.ulps, is_right ? "correctly rounded" : "WRONG");
    return is_right;
}

int main(int argc, char **argv)
{
    struct tensor_file body, answer;
    if (argc == 3 && strcmp(argv[1], "make") == 0)
        return make(argv[2]);
    if (argc != 4 || strcmp(argv[1], "check") != 0) {
        fprintf(stderr, "usage: llama_case make BODY | check BODY ANSWER\n");
        return 2;
    }
    if (!load(argv[2], &body) || !load(argv[3], &answer))
        return EXIT_FAILURE;
    bool is_right = check_tensor("q", &body, &answer);
    is_right = check_tensor("k", &body, &answer) && is_right;
    file_free(&body);
    file_free(&answer);
    return is_right ? EXIT_SUCCESS : EXIT_FAILURE;
}
