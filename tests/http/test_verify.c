/*
 * test_verify.c - ropectl verify: every operator against a daemon that is
 * right, what it fetches from the daemon, and answers that are not right.
 */
#include "check.h"
#include "http/command.h"
#include "http/harness.h"

#include <roped/numeric.h>

#include <cjson/cJSON.h>
#include <math.h>

enum { MAX_FILE_BYTES = 1 << 20 };

/* Values that round in every type; integers count up. */
static void fill(enum roped_dtype dtype, int64_t n, unsigned char *to)
{
    for (int64_t i = 0; i < n; i++, to += roped_dtype_bytes(dtype)) {
        float value = (float)(sin((double)i * 0.7 + 1) * 1.3);
        uint16_t bf16 = roped_float_to_bf16(value),
                 f16 = roped_float_to_f16(value);
        int64_t index = i;
        if (dtype == ROPED_F32)
            memcpy(to, &value, sizeof value);
        else if (dtype == ROPED_BF16)
            memcpy(to, &bf16, sizeof bf16);
        else if (dtype == ROPED_F16)
            memcpy(to, &f16, sizeof f16);
        else if (dtype == ROPED_U8)
            *to = 0;
        else
            memcpy(to, &index, roped_dtype_bytes(dtype));
    }
}

/* Adds "name F32 4,8": */
static void add_tensor(struct tensor_file *file, const char *spec,
                       unsigned char *memory)
{
    char name[64], dtype[16], shape[64], *at = shape;
    struct roped_tensor tensor = {.rank = 0};
    CHECK(sscanf(spec, " %63s %15s %63[0-9,]", name, dtype, shape) == 3);
    tensor.dtype = roped_dtype_from_name(dtype, strlen(dtype));
    while (*at && tensor.rank < ROPED_MAX_RANK) {
        tensor.dims[tensor.rank++] = strtoll(at, &at, 10);
        at += *at == ',';
    }
    fill(tensor.dtype, roped_tensor_elements(&tensor), memory);
    file_add(file, name, tensor.dtype, tensor.rank, tensor.dims, memory);
}

/* Writes in.safetensors of "name F32 4,8; ...". */
static void write_inputs(const char *specs)
{
    static unsigned char memory[12][MAX_FILE_BYTES / 12];
    struct tensor_file file = {0};
    size_t bytes;
    for (int i = 0; specs && i < 12; i++) {
        add_tensor(&file, specs, memory[i]);
        specs = strchr(specs, ';');
        specs = specs ? specs + 1 : NULL;
    }
    unsigned char *body = file_write(&file, &bytes);
    command_file("in.safetensors", body, bytes);
    free(body);
}

TEST(every_operator_is_verified)
{
    static const struct {
        const char *inputs, *call;
    } cases[] = {
        {"x F32 4,64", "rmsnorm"},
        {"x BF16 2,3,64; weight F32 64", "rmsnorm --weight_bias 1"},
        {"x F16 4,64; residual F16 4,64", "add_rmsnorm"},
        {"x BF16 4,128", "rmsnorm_quantize --dynamic true --group_size 32"},
        {"x BF16 4,128", "rmsnorm_quantize --fp8 u8"},
        {"x F32 4,64; residual F32 4,64",
         "add_rmsnorm_quantize --output_dtype e5m2"},
        {"q F32 8,4,64; k F32 8,2,64; positions I32 8", "rope --theta 500000"},
        {"q BF16 8,4,64; positions I64 8", "rope --angles table --style gptj"},
        {"q F16 8,4,64; k F16 8,2,64; positions I32 8; q_weight F16 64; "
         "k_weight F16 64",
         "qk_rmsnorm_rope"},
        {"q_rope BF16 8,4,64; k_rope BF16 8,64", "rope_quantize"},
        {"q F32 4,4,64; k F32 4,2,64; v F32 4,2,64; k_cache F32 16,2,64; "
         "v_cache F32 16,2,64; slots I32 4",
         "rope_append"},
        {"q F32 4,4,64; k F32 4,2,64; v F32 4,2,64; k_cache U8 16,2,64; "
         "v_cache U8 16,2,64; slots I32 4",
         "qk_rmsnorm_rope_append"},
        {"grad_output F32 64,8; a F32 8; b F32 64,8",
         "binary_backward --function mul"},
        {"grad_output BF16 64,8; a BF16 64,8; b BF16 8",
         "binary_backward --function div"},
        {"grad_output F32 64,8; a F32 64,8; b F32 1",
         "binary_backward --function sub"},
    };
    char arguments[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_inputs(cases[i].inputs);
        snprintf(arguments, sizeof arguments, "verify %s in.safetensors",
                 cases[i].call);
        command_expect(arguments, 0, "\nwithin  yes\n");
    }
}

TEST(what_the_server_keeps_is_fetched)
{
    static const char table[] = "{\"theta\":500000,\"scaling\":\"linear\","
                                "\"factor\":4,\"rows\":4096}";
    command_file("rope.json", table, sizeof table - 1);
    write_inputs("q F32 8,4,64; positions I32 8");
    command_expect("tables put t rope.json", 0, "linear");
    command_expect("verify rope in.safetensors --table t", 0, "within  yes");
    command_expect("verify rope in.safetensors --table u", 3,
                   "table 'u' does not exist");
    write_inputs("weight F32 64");
    command_expect("regions put w in.safetensors", 0, "[64]");
    write_inputs("x F32 4,64");
    command_expect("verify rmsnorm in.safetensors --from.weight w", 0,
                   "within  yes");
    command_expect("verify rmsnorm in.safetensors --from.weight none", 3,
                   "'none'");
    command_expect("verify rmsnorm in.safetensors --from.weight w:4", 2,
                   "region 'w:4' has an offset, expected a whole one");
    command_expect("verify rmsnorm in.safetensors --into.y w", 2,
                   "'--into.NAME' leaves an output on the server");
    command_expect("regions zeros raw --bytes 256", 0, "256");
    command_expect("verify rmsnorm in.safetensors --from.weight raw", 1,
                   "region 'raw' is plain bytes, expected a tensor");
}

TEST(caches_that_stay_on_the_server_are_compared)
{
    write_inputs("q F32 4,4,64; k F32 4,2,64; v F32 4,2,64; slots I32 4");
    command_expect("regions zeros k --dtype F32 --shape 16,2,64", 0, "k");
    command_expect("regions zeros v --dtype F32 --shape 16,2,64", 0, "v");
    command_expect("verify rope_append in.safetensors --from.k_cache k "
                   "--from.v_cache v",
                   0, "\n  v_cache  F32    [16,2,64]          0");
    command_expect("regions get v v.npy", 0, "v.npy"); /* it was written to */
    command_expect("cat v.npy", 0, "[1.0939,");
}

TEST(verify_writes_and_prints_as_run_does)
{
    char output[4096];
    const char *end = NULL;
    write_inputs("x F32 4,64");
    CHECK_INT(
        command_run("verify rmsnorm in.safetensors -o y.npy --output json",
                    output, sizeof output),
        0);
    cJSON *document = cJSON_ParseWithOpts(output, &end, false);
    cJSON *row = cJSON_GetObjectItem(document, "outputs")->child;
    CHECK(cJSON_IsTrue(cJSON_GetObjectItem(document, "within")));
    /* a GPU adds in another order */
    const char *backend = getenv("ROPED_TEST_BACKEND");
    int most = backend && strcmp(backend, "cpu") != 0 ? 4 * 64 : 0;
    int differing = cJSON_GetObjectItem(row, "differing")->valueint;
    CHECK(differing >= 0 && differing <= most);
    CHECK(strcmp(end, "\n") == 0);
    cJSON_Delete(document);
    command_expect("cat y.npy", 0, "[4,64]");
    command_expect("verify rmsnorm", 2, "usage: ropectl verify OP");
    command_expect("verify rmsnorm none", 1, "cannot read 'none'");
    command_expect("verify rmsnorm in.safetensors --server http://127.0.0.1:1",
                   4, "could not connect");
}

/* ----------------------------------------------------- answers that are wrong
 */

/* The daemon's answer to a call. */
static void take_answer(const char *call, struct tensor_file *out)
{
    char arguments[256], path[128], output[4096];
    static unsigned char bytes[MAX_FILE_BYTES];
    snprintf(arguments, sizeof arguments, "run %s in.safetensors -o right",
             call);
    CHECK_INT(command_run(arguments, output, sizeof output), 0);
    snprintf(path, sizeof path, "%s/right", command_folder);
    FILE *file = fopen(path, "rb");
    size_t n = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    if (file)
        fclose(file);
    CHECK(file_read(out, bytes, n, NULL, NULL));
}

/* verify against a server that answers with these tensors. */
static void expect_of_answer(const struct tensor_file *answer, const char *call,
                             int code, const char *part)
{
    static char bytes[MAX_FILE_BYTES];
    char arguments[256];
    size_t n;
    unsigned char *body = file_write(answer, &n);
    int header = snprintf(bytes, sizeof bytes,
                          "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", n);
    memcpy(bytes + header, body, n);
    free(body);
    snprintf(arguments, sizeof arguments, "verify %s in.safetensors", call);
    command_expect_of_bytes(bytes, (size_t)header + n, arguments, code, part);
}

TEST(wrong_numbers_are_found)
{
    struct tensor_file answer;
    write_inputs("x F32 2,8");
    take_answer("rmsnorm", &answer);
    float *y = answer.tensor[0].data, right = y[11], largest = 0;
    for (int i = 8; i < 16; i++)
        largest = fmaxf(largest, fabsf(y[i]));
    expect_of_answer(&answer, "rmsnorm", 0, "within  yes");
    y[11] = right + 1e-6f * largest;
    expect_of_answer(&answer, "rmsnorm", 0, "[1,3]"); /* and within */
    y[11] = right + 3e-6f * largest;
    expect_of_answer(&answer, "rmsnorm", 7, "[1,3]");
    expect_of_answer(&answer, "rmsnorm", 7, "\nwithin  no\n");
    y[11] = NAN;
    expect_of_answer(&answer, "rmsnorm", 7, "nan");
    y[11] = right;
    answer.tensor[0].dims[0] = 4;
    answer.tensor[0].dims[1] = 4;
    expect_of_answer(&answer, "rmsnorm", 7,
                     "output 'y': the server's is F32 [4, 4], expected F32 "
                     "[2, 8]");
    snprintf(answer.name[0], sizeof answer.name[0], "z");
    expect_of_answer(&answer, "rmsnorm", 5, "output 'y': the server sent none");
    file_free(&answer);
}

TEST(wrong_codes_are_counted)
{
    struct tensor_file answer;
    write_inputs("x F32 2,8");
    take_answer("rmsnorm_quantize", &answer);
    unsigned char *y = answer.tensor[0].data;
    y[3] ^= 1;
    expect_of_answer(
        &answer, "rmsnorm_quantize", 0,
        "\n  y     F8_E4M3  [2,8]          1           1          1");
    y[4] ^= 1;
    expect_of_answer(&answer, "rmsnorm_quantize", 7, "within  no");
    y[4] ^= 1;
    y[3] ^= 4;
    expect_of_answer(&answer, "rmsnorm_quantize", 7, "[0,3]");
    file_free(&answer);
}

int main(void)
{
    command_start();
    check_run();
    command_end();
    return check_done();
}
