/*
 * test_golden.c - every golden file through the daemon: as /v1 safetensors;
 * again as /v2 with binary tensors, and from regions into regions through
 * both, packed and as slices of fused rows, whose answers must be the same
 * bits.
 */
#include "check.h"
#include "http/golden.h"
#include "kernel/reference.h"

#include <roped/numeric.h>
#include <roped/op.h>

#include <cjson/cJSON.h>
#include <dirent.h>
#include <math.h>

static struct server server;

struct metadata {
    char op[32];
    int n;
    char name[24][48];
    char value[24][2048];
};

static void note_metadata(void *context, const char *name, const char *value)
{
    struct metadata *metadata = context;
    if (strcmp(name, "op") == 0) {
        snprintf(metadata->op, sizeof metadata->op, "%s", value);
    } else if (metadata->n < 24) {
        snprintf(metadata->name[metadata->n], sizeof metadata->name[0], "%s",
                 name);
        snprintf(metadata->value[metadata->n++], sizeof metadata->value[0],
                 "%s", value);
    }
}

/* A parameter for both wires. JSON numbers stay numbers. */
static void add_param(struct run *run, const char *name, const char *value)
{
    char *end;
    buffer_printf(&run->query, "%s%s=%s", run->query.bytes ? "&" : "?", name,
                  value);
    strtod(value, &end);
    buffer_printf(&run->json, "%s\"%s\":", run->json.bytes ? "," : "", name);
    if (*end == '\0')
        buffer_text(&run->json, value);
    else
        buffer_json_string(&run->json, value);
}

static void add_list(struct run *run, const char *name, const cJSON *list)
{
    static float values[2][256];
    float *to = values[strcmp(name, "long_factor") == 0];
    int64_t n = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (n < 256)
            to[n++] = (float)item->valuedouble;
    }
    file_add(&run->inputs, name, ROPED_F32, 1, &n, to);
}

/* Hugging Face's rope_scaling to parameters and factor lists. */
static void add_scaling(struct run *run, const char *text)
{
    cJSON *tree = cJSON_Parse(text), *node;
    char number[40];
    cJSON_ArrayForEach(node, tree)
    {
        const char *name = node->string;
        if (strcmp(name, "original_max_position_embeddings") == 0)
            name = "original_max_position";
        if (strcmp(name, "rope_type") == 0) {
            add_param(run, "scaling", node->valuestring);
        } else if (cJSON_IsArray(node)) {
            add_list(run, name, node);
        } else {
            snprintf(number, sizeof number, "%.17g", node->valuedouble);
            add_param(run, name, number);
        }
    }
    cJSON_Delete(tree);
}

/* Parameters that say where angles come from. */
static bool is_angle(const char *name)
{
    return strcmp(name, "theta") == 0 || strcmp(name, "scaling") == 0 ||
           strcmp(name, "max_position") == 0;
}

static void add_params(struct run *run, const struct metadata *metadata,
                       bool has_own_angles)
{
    for (int i = 0; i < metadata->n; i++) {
        const char *name = metadata->name[i];
        if (strcmp(name, "theta") == 0)
            run->theta = strtod(metadata->value[i], NULL);
        if (strcmp(name, "rotary_dim") == 0)
            run->rotary_dim = strtoll(metadata->value[i], NULL, 10);
        if (strcmp(name, "function") == 0)
            run->function = metadata->value[i];
        if (strcmp(name, "style") == 0)
            run->is_gptj = strcmp(metadata->value[i], "gptj") == 0;
        if (strcmp(name, "source") == 0 || (has_own_angles && is_angle(name)))
            continue;
        if (strcmp(name, "scaling") == 0)
            add_scaling(run, metadata->value[i]);
        else
            add_param(run, name, metadata->value[i]);
    }
}

static void add_tensor(struct tensor_file *to, const char *name,
                       const struct roped_tensor *tensor)
{
    file_add(to, name, tensor->dtype, tensor->rank, tensor->dims, tensor->data);
}

/* Sorts a file's tensors into inputs and expectations. */
static void split(struct run *run, const struct tensor_file *file,
                  bool use_positions, bool use_cos)
{
    for (int i = 0; i < file->n; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s", file->name[i]);
        char *dot = strstr(name, ".expected");
        bool is_cos = strcmp(name, "cos") == 0 || strcmp(name, "sin") == 0;
        if (dot) {
            *dot = '\0';
            add_tensor(&run->expected, name, &file->tensor[i]);
        } else if ((is_cos && !use_cos) ||
                   (!use_positions && strcmp(name, "positions") == 0)) {
            continue;
        } else {
            add_tensor(&run->inputs, name, &file->tensor[i]);
        }
    }
}

/* -------------------------------------------------------------- comparing */

static double value_of(const struct roped_tensor *tensor, int64_t i)
{
    if (tensor->dtype == ROPED_F32)
        return (double)((const float *)tensor->data)[i];
    uint16_t code = ((const uint16_t *)tensor->data)[i];
    return (double)(tensor->dtype == ROPED_F16 ? roped_f16_to_float(code)
                                               : roped_bf16_to_float(code));
}

/* One unit in the last place of a type at x. */
static double unit_at(enum roped_dtype dtype, double x)
{
    int exponent, mantissa = dtype == ROPED_F16 ? 10 : 7;
    int smallest = dtype == ROPED_F16 ? -14 : -126;
    if (dtype == ROPED_F32)
        return 0;
    frexp(x, &exponent);
    exponent = exponent - 1 < smallest || x == 0 ? smallest : exponent - 1;
    return ldexp(1, exponent - mantissa);
}

/*
 * PyTorch's power is one unit in the last place off for a few widths and
 * bases, up to 2^-23 of it: there the angles differ by position * 2^-23 *
 * frequency at most.
 */
static double angle_slack(const struct run *run,
                          const struct roped_tensor *expected, int64_t row,
                          int64_t j)
{
    if (!run->positions || expected->rank != 3)
        return 0;
    int64_t n_pairs = run->rotary_dim / 2;
    int64_t token = row / (expected->dims[1] * expected->dims[2]);
    int64_t pair = run->is_gptj ? j / 2 : j % n_pairs;
    double position =
        run->positions->dtype == ROPED_I32
            ? (double)((const int32_t *)run->positions->data)[token]
            : (double)((const int64_t *)run->positions->data)[token];
    return j < run->rotary_dim
               ? position * 0x1p-23 *
                     pow(run->theta,
                         -2 * (double)pair / (double)run->rotary_dim)
               : 0;
}

/* Of a gradient that is a sum: the magnitudes of its terms, summed; NULL of
 * others. Free it. */
static double *magnitudes(const struct run *run, const char *output)
{
    static struct roped_call call;
    struct roped_error err;
    const struct roped_op *op = roped_op_find(run->op);
    if (strcmp(run->op, "binary_backward") != 0)
        return NULL;
    roped_call_init(&call, op);
    for (int i = 0; i < run->inputs.n; i++)
        CHECK_OK(roped_call_bind(&call, run->inputs.name[i],
                                 &run->inputs.tensor[i], &err),
                 &err);
    CHECK_OK(roped_call_set_text(&call, "function", run->function, &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    return reference_binary_magnitudes(&call, roped_op_output(op, output));
}

static void compare_floats(const struct run *run, const char *name,
                           const struct roped_tensor *found,
                           const struct roped_tensor *expected,
                           const double *magnitude)
{
    int64_t width = expected->rank ? expected->dims[expected->rank - 1] : 1;
    int64_t n = roped_tensor_elements(expected);
    const struct roped_tensor *before = file_find(&run->inputs, name);
    for (int64_t row = 0; row < n; row += width) {
        double largest = 0;
        for (int64_t j = 0; j < width; j++) {
            double x = fabs(value_of(expected, row + j));
            /* GCC 12 for aarch64 fails at fmax of what is widened */
            largest = x > largest ? x : largest;
        }
        for (int64_t j = 0; j < width; j++) {
            double x = value_of(expected, row + j);
            double off = fabs(value_of(found, row + j) - x);
            double slack = 1e-6 + angle_slack(run, expected, row, j);
            double scale = magnitude ? magnitude[row + j] : largest;
            double allowed = unit_at(found->dtype, x) + slack * scale;
            if (before && value_of(before, row + j) == x)
                allowed = 0; /* what is not written, or not rotated */
            if (off <= allowed)
                continue;
            CHECK_FAIL("%s %s[%lld] is %.9g, expected %.9g within %.3g",
                       run->file_name, name, (long long)(row + j),
                       value_of(found, row + j), x, allowed);
            return;
        }
    }
}

/* Outputs have the type of the input of their name, or of the first one, where
 * they may have it: scales are F32. Expectations are wider. */
static enum roped_dtype output_type(const struct run *run, const char *name)
{
    const struct roped_op *op = roped_op_find(run->op);
    const struct roped_tensor *same = file_find(&run->inputs, name);
    const int input = roped_op_input(op, name);
    if (same && input >= 0 &&
        strcmp(op->in[input].type, op->out[roped_op_output(op, name)].type) ==
            0)
        return same->dtype;
    uint32_t types = roped_op_types(op, &op->out[roped_op_output(op, name)]);
    return types & ROPED_SET(run->inputs_dtype) ? run->inputs_dtype : ROPED_F32;
}

static void compare_tensor(const struct run *run, const char *name,
                           const struct roped_tensor *found,
                           const struct roped_tensor *expected)
{
    if (!found || found->rank != expected->rank ||
        memcmp(found->dims, expected->dims,
               (size_t)expected->rank * sizeof *expected->dims) != 0) {
        CHECK_FAIL("%s: no %s of the expected shape", run->file_name, name);
        return;
    }
    if (expected->dtype == ROPED_F32) {
        CHECK_INT(found->dtype, output_type(run, name));
        double *magnitude = magnitudes(run, name);
        compare_floats(run, name, found, expected, magnitude);
        free(magnitude);
        return;
    }
    CHECK_INT(found->dtype, expected->dtype);
    if (memcmp(found->data, expected->data,
               (size_t)roped_tensor_bytes(expected)) != 0)
        CHECK_FAIL("%s %s: other FP8 codes", run->file_name, name);
}

static void compare(const struct run *run)
{
    CHECK_INT(run->answer.n, run->expected.n);
    for (int i = 0; i < run->expected.n; i++)
        compare_tensor(run, run->expected.name[i],
                       file_find(&run->answer, run->expected.name[i]),
                       &run->expected.tensor[i]);
}

/* ------------------------------------------------------------------- wire */

static void post_v1(struct run *run)
{
    size_t bytes;
    char path[8192];
    unsigned char *body = file_write(&run->inputs, &bytes);
    snprintf(path, sizeof path, "/v1/%s%s", run->op,
             run->query.text ? run->query.text : "");
    struct answer answer = ask(&server, "POST", path, body, bytes, NULL);
    if (answer.code != 200 ||
        !file_read(&run->answer, answer.body, answer.bytes, NULL, NULL))
        CHECK_FAIL("%s: %d %.300s", run->file_name, answer.code, answer.body);
    answer_free(&answer);
    free(body);
}

void golden_write_v2_input(struct buffer *body, const struct run *run, int i)
{
    const struct roped_tensor *tensor = &run->inputs.tensor[i];
    buffer_printf(
        body, "%s{\"name\":\"%s\",\"datatype\":\"%s\",\"shape\":", i ? "," : "",
        run->inputs.name[i], roped_dtype_v2_name(tensor->dtype));
    buffer_dims(body, tensor->dims, tensor->rank);
    buffer_text(body, ",\"parameters\":{");
}

static unsigned char *v2_body(const struct run *run, size_t *json_bytes,
                              size_t *bytes)
{
    struct buffer body;
    buffer_init(&body);
    buffer_printf(&body,
                  "{\"parameters\":{\"binary_data_output\":true%s%s},"
                  "\"inputs\":[",
                  run->json.bytes ? "," : "",
                  run->json.text ? run->json.text : "");
    for (int i = 0; i < run->inputs.n; i++) {
        golden_write_v2_input(&body, run, i);
        buffer_printf(&body, "\"binary_data_size\":%lld}}",
                      (long long)roped_tensor_bytes(&run->inputs.tensor[i]));
    }
    buffer_text(&body, "]}");
    *json_bytes = body.bytes;
    for (int i = 0; i < run->inputs.n; i++)
        buffer_append(&body, run->inputs.tensor[i].data,
                      (size_t)roped_tensor_bytes(&run->inputs.tensor[i]));
    *bytes = body.bytes;
    return (unsigned char *)body.text;
}

/* The binary parts follow in the operator's output order, as in /v1. */
static void post_v2(const struct run *run)
{
    size_t json_bytes, bytes;
    char path[64], header[64];
    unsigned char *body = v2_body(run, &json_bytes, &bytes);
    snprintf(path, sizeof path, "/v2/models/%s/infer", run->op);
    snprintf(header, sizeof header, "Inference-Header-Content-Length: %zu",
             json_bytes);
    const char *headers[] = {header, NULL};
    struct answer answer = ask(&server, "POST", path, body, bytes, headers);
    const char *length =
        answer_header(&answer, "Inference-Header-Content-Length");
    size_t at = length ? strtoul(length, NULL, 10) : answer.bytes;
    if (answer.code != 200)
        CHECK_FAIL("%s: v2 %d %.300s", run->file_name, answer.code,
                   answer.body);
    const struct roped_op *op = roped_op_find(run->op);
    for (int i = 0; i < roped_op_outputs(op) && answer.code == 200; i++) {
        const struct roped_tensor *out =
            file_find(&run->answer, op->out[i].name);
        if (!out)
            continue;
        size_t n = (size_t)roped_tensor_bytes(out);
        if (at + n > answer.bytes ||
            memcmp(answer.body + at, out->data, n) != 0)
            CHECK_FAIL("%s: v2 and v1 differ in %s", run->file_name,
                       op->out[i].name);
        at += n;
    }
    answer_free(&answer);
    free(body);
}

/* ------------------------------------------------------------------- runs */

static void run_once(const char *name, const struct tensor_file *file,
                     const struct metadata *metadata, bool use_positions,
                     bool use_cos)
{
    static struct run run;
    bool has_cache = file_find(file, "cos_sin_cache") != NULL;
    memset(&run, 0, sizeof run);
    run.server = &server;
    run.file_name = name;
    run.op = metadata->op;
    if (use_positions && strcmp(run.op, "rope") == 0)
        run.positions = file_find(file, "positions");
    buffer_init(&run.query);
    buffer_init(&run.json);
    add_params(&run, metadata, use_cos || has_cache);
    split(&run, file, use_positions, use_cos);
    const struct roped_op *op = roped_op_find(run.op);
    const struct roped_tensor *first =
        op ? file_find(&run.inputs, op->in[0].name) : NULL;
    run.inputs_dtype = first ? first->dtype : ROPED_NO_DTYPE;
    post_v1(&run);
    if (run.answer.n) {
        compare(&run);
        post_v2(&run);
        golden_post_in_regions(&run, false);
        if (op->in[0].flags & ROPED_STRIDED)
            golden_post_in_regions(&run, true);
    }
    file_free(&run.answer);
    buffer_fini(&run.query);
    buffer_fini(&run.json);
}

static unsigned char *read_whole(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    unsigned char *all = NULL;
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    all = malloc(*bytes + 1);
    if (all && fread(all, 1, *bytes, file) != *bytes) {
        free(all);
        all = NULL;
    }
    fclose(file);
    return all;
}

static void run_file(const char *folder, const char *name)
{
    static struct metadata metadata;
    char path[512];
    struct tensor_file file;
    size_t bytes = 0;
    memset(&metadata, 0, sizeof metadata);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unsigned char *all = read_whole(path, &bytes);
    check_failures = 0;
    if (all && file_read(&file, all, bytes, note_metadata, &metadata)) {
        run_once(name, &file, &metadata, true, false);
        if (file_find(&file, "cos"))
            run_once(name, &file, &metadata, false, true);
        file_free(&file);
    } else {
        CHECK_FAIL("%s cannot be read", path);
    }
    free(all);
    if (check_failures)
        check_n_failed++;
    else
        check_n_passed++;
}

/* Under a sanitizer one in ROPED_TEST_QUICK, elsewhere all: an emulated
 * processor, for which that is set too, has loops of its own. */
static bool takes_file(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return check_takes_case();
#else
    return true;
#endif
}

int main(void)
{
    const char *folder = getenv("ROPED_TEST_GOLDEN");
    struct dirent *entry;
    if (!folder)
        folder = ROPED_TEST_GOLDEN;
    DIR *all = opendir(folder);
    if (!all) {
        fprintf(stderr, "no golden files in %s\n", folder);
        return EXIT_FAILURE;
    }
    server_start(&server, NULL);
    int n_found = 0;
    while ((entry = readdir(all)) != NULL) {
        if (!strstr(entry->d_name, ".safetensors"))
            continue;
        n_found++;
        if (takes_file())
            run_file(folder, entry->d_name);
    }
    closedir(all);
    CHECK(server_stop(&server));
    if (n_found < 100) {
        fprintf(stderr, "only %d golden files found\n", n_found);
        check_n_failed++;
    }
    return check_done();
}
