/*
 * golden_regions.c - a golden file's call in regions: what is put there, called
 * and found there afterwards, byte by byte. Where there are several devices,
 * what is only read is on all of them in turn.
 */
#include "check.h"
#include "http/golden.h"

#include <roped/op.h>

enum {
    OUT_STEP = 256, /* outputs start at multiples of it */
    TAIL = 8,       /* elements of a wider row that no tensor has */
    UNTOUCHED = 0x5A
};

struct region {
    char name[80];
    struct roped_tensor tensor; /* and what has to be there */
};

/* Where a tensor of a call is: packed, or a slice of each of its rows. */
struct place {
    int region;
    size_t at;
    int64_t stride; /* elements; 0: packed */
};

/*
 * Every tensor of a run: inputs packed each by itself, or those that may be
 * slices fused side by side into the rows of one. Outputs are where their input
 * is if that is updated or a slice, else in a region of theirs.
 */
struct scene {
    const struct run *run;
    const struct roped_op *op;
    int n;
    struct region region[FILE_TENSORS + 2];
    struct place in[FILE_TENSORS], out[FILE_TENSORS];
};

static int add_region(struct scene *scene, const char *name,
                      const struct roped_tensor *shape)
{
    struct region *region = &scene->region[scene->n];
    snprintf(region->name, sizeof region->name, "golden.%s", name);
    region->tensor = *shape;
    region->tensor.data = malloc((size_t)roped_tensor_bytes(shape) + 1);
    return scene->n++;
}

/* Elements of a token, which the first dim numbers. */
static int64_t token_of(const struct roped_tensor *tensor)
{
    return roped_tensor_elements(tensor) / tensor->dims[0];
}

static unsigned input_flags(const struct scene *scene, int i)
{
    const char *name = scene->run->inputs.name[i];
    return scene->op->in[roped_op_input(scene->op, name)].flags;
}

static void place_packed(struct scene *scene)
{
    const struct tensor_file *inputs = &scene->run->inputs;
    for (int i = 0; i < inputs->n; i++)
        if (!scene->in[i].stride)
            scene->in[i].region =
                add_region(scene, inputs->name[i], &inputs->tensor[i]);
}

static void place_slices(struct scene *scene)
{
    const struct tensor_file *inputs = &scene->run->inputs;
    struct roped_tensor rows = {.rank = 2};
    for (int i = 0; i < inputs->n; i++) {
        const struct roped_tensor *tensor = &inputs->tensor[i];
        const bool is_other = rows.dims[1] > 0 && tensor->dtype != rows.dtype;
        if (!(input_flags(scene, i) & ROPED_STRIDED) || is_other)
            continue; /* a row has elements of one type */
        rows.dtype = tensor->dtype;
        rows.dims[0] = tensor->dims[0];
        scene->in[i].at = (size_t)rows.dims[1] * roped_dtype_bytes(rows.dtype);
        scene->in[i].stride = 1;
        rows.dims[1] += token_of(tensor);
    }
    rows.dims[1] += TAIL;
    for (int i = 0; i < inputs->n; i++)
        scene->in[i].stride *= rows.dims[1];
    add_region(scene, "fused", &rows); /* region 0, as the places say */
}

/* The input in whose place an output is, or -1. */
static int input_below(const struct scene *scene, const struct roped_port *port)
{
    for (int i = 0; i < scene->run->inputs.n && port->in_place; i++)
        if (strcmp(scene->run->inputs.name[i], port->in_place) == 0 &&
            (scene->in[i].stride || input_flags(scene, i) & ROPED_UPDATED))
            return i;
    return -1;
}

static void place_outputs(struct scene *scene, bool is_fused)
{
    const struct tensor_file *answer = &scene->run->answer;
    struct roped_tensor out = {.dtype = ROPED_U8, .rank = 1};
    for (int i = 0; i < answer->n; i++) {
        const struct roped_tensor *tensor = &answer->tensor[i];
        const struct roped_port *port =
            &scene->op->out[roped_op_output(scene->op, answer->name[i])];
        int64_t bytes = roped_tensor_bytes(tensor);
        int below = input_below(scene, port);
        if (below >= 0) {
            scene->out[i] = scene->in[below];
            continue;
        }
        scene->out[i] = (struct place){scene->n, (size_t)out.dims[0], 0};
        if (is_fused && port->flags & ROPED_STRIDED) {
            scene->out[i].stride = token_of(tensor) + TAIL;
            bytes = tensor->dims[0] * scene->out[i].stride *
                    (int64_t)roped_dtype_bytes(tensor->dtype);
        }
        out.dims[0] += (bytes + OUT_STEP - 1) / OUT_STEP * OUT_STEP;
    }
    if (out.dims[0])
        add_region(scene, "out", &out);
}

/* ------------------------------------------------------------------- calls */

/* Tensors at their places in what the regions hold. */
static void lay(const struct scene *scene, const struct place *places,
                const struct tensor_file *file)
{
    for (int i = 0; i < file->n; i++) {
        const struct roped_tensor *tensor = &file->tensor[i];
        const struct place *place = &places[i];
        unsigned char *to = scene->region[place->region].tensor.data;
        size_t n = place->stride ? (size_t)tensor->dims[0] : 1;
        size_t stride =
            (size_t)place->stride * roped_dtype_bytes(tensor->dtype);
        size_t bytes = (size_t)roped_tensor_bytes(tensor) / n;
        for (size_t j = 0; j < n && bytes; j++)
            memcpy(to + place->at + j * stride,
                   (const unsigned char *)tensor->data + j * bytes, bytes);
    }
}

/* Where a region is to be: all that the call writes on the first. */
static int device_of(const struct scene *scene, int region)
{
    for (int i = 0; i < scene->run->answer.n; i++)
        if (scene->out[i].region == region)
            return 0;
    return region % server_n_devices();
}

static struct answer ask_region(const struct scene *scene, const char *method,
                                int number, const struct tensor_file *file)
{
    const struct region *region = &scene->region[number];
    char path[128];
    size_t bytes = 0;
    unsigned char *body = file ? file_write(file, &bytes) : NULL;
    int n = snprintf(path, sizeof path, "/v1/regions/%s", region->name);
    if (file)
        snprintf(path + n, sizeof path - (size_t)n, "?device=%d",
                 device_of(scene, number));
    struct answer answer =
        ask(scene->run->server, method, path, body, bytes, NULL);
    if (answer.code != 200 && answer.code != 201)
        CHECK_FAIL("%s: %s %s: %d %.300s", scene->run->file_name, method, path,
                   answer.code, answer.body);
    free(body);
    return answer;
}

static void put_regions(const struct scene *scene)
{
    for (int i = 0; i < scene->n; i++)
        memset(scene->region[i].tensor.data, UNTOUCHED,
               (size_t)roped_tensor_bytes(&scene->region[i].tensor));
    lay(scene, scene->in, &scene->run->inputs);
    for (int i = 0; i < scene->n; i++) {
        const struct region *region = &scene->region[i];
        struct tensor_file file = {.n = 1, .name = {"t"}};
        file.tensor[0] = region->tensor;
        struct answer answer = ask_region(scene, "PUT", i, &file);
        answer_free(&answer);
    }
}

/* The answer's bits are where they belong, and nothing else has changed. */
static void check_regions(const struct scene *scene, const char *wire)
{
    lay(scene, scene->out, &scene->run->answer);
    for (int i = 0; i < scene->n; i++) {
        const struct region *region = &scene->region[i];
        size_t bytes = (size_t)roped_tensor_bytes(&region->tensor);
        struct tensor_file file = {0};
        struct answer answer = ask_region(scene, "GET", i, NULL);
        if (!file_read(&file, answer.body, answer.bytes, NULL, NULL) ||
            (size_t)roped_tensor_bytes(&file.tensor[0]) != bytes ||
            memcmp(file.tensor[0].data, region->tensor.data, bytes) != 0)
            CHECK_FAIL("%s: region '%s' differs through %s",
                       scene->run->file_name, region->name, wire);
        file_free(&file);
        answer_free(&answer);
    }
}

static void post(const struct scene *scene, const char *path,
                 const struct buffer *body)
{
    const struct run *run = scene->run;
    struct answer answer =
        ask(run->server, "POST", path, body ? body->text : "",
            body ? body->bytes : 0, NULL);
    if (answer.code != 200)
        CHECK_FAIL("%s: POST %s: %d %.300s", run->file_name, path, answer.code,
                   answer.body);
    answer_free(&answer);
}

static void call_v1(const struct scene *scene)
{
    const struct run *run = scene->run;
    struct buffer path;
    buffer_init(&path);
    buffer_printf(&path, "/v1/%s%s", run->op,
                  run->query.text ? run->query.text : "?");
    for (int i = 0; i < run->inputs.n; i++) {
        const struct roped_tensor *tensor = &run->inputs.tensor[i];
        const struct place *at = &scene->in[i];
        const char *name = run->inputs.name[i];
        buffer_printf(&path, "&from.%s=%s:%zu", name,
                      scene->region[at->region].name, at->at);
        if (!at->stride)
            continue; /* the region knows type and shape */
        buffer_printf(&path, "&stride.%s=%lld&shape.%s=", name,
                      (long long)at->stride, name);
        for (int j = 0; j < tensor->rank; j++)
            buffer_printf(&path, "%s%lld", j ? "," : "",
                          (long long)tensor->dims[j]);
    }
    for (int i = 0; i < run->answer.n; i++) {
        const struct place *at = &scene->out[i];
        const char *name = run->answer.name[i];
        buffer_printf(&path, "&into.%s=%s:%zu", name,
                      scene->region[at->region].name, at->at);
        if (at->stride)
            buffer_printf(&path, "&into_stride.%s=%lld", name,
                          (long long)at->stride);
    }
    post(scene, path.text, NULL);
    buffer_fini(&path);
}

/* The parameters that say where a tensor is, and the end of its object. */
static void write_v2_place(struct buffer *body, const struct scene *scene,
                           const struct place *at,
                           const struct roped_tensor *tensor)
{
    const struct region *region = &scene->region[at->region];
    int64_t bytes = roped_tensor_bytes(tensor);
    if (at->stride) /* to the end of the region: not less than it needs */
        bytes = roped_tensor_bytes(&region->tensor) - (int64_t)at->at;
    buffer_printf(body,
                  "\"shared_memory_region\":\"%s\","
                  "\"shared_memory_byte_size\":%lld,"
                  "\"shared_memory_offset\":%zu",
                  region->name, (long long)bytes, at->at);
    if (at->stride)
        buffer_printf(body, ",\"stride\":%lld", (long long)at->stride);
    buffer_text(body, "}}");
}

static void call_v2(const struct scene *scene)
{
    const struct run *run = scene->run;
    struct buffer body;
    char path[64];
    buffer_init(&body);
    buffer_printf(&body, "{\"parameters\":{%s},\"inputs\":[",
                  run->json.text ? run->json.text : "");
    for (int i = 0; i < run->inputs.n; i++) {
        golden_write_v2_input(&body, run, i);
        write_v2_place(&body, scene, &scene->in[i], &run->inputs.tensor[i]);
    }
    buffer_text(&body, "],\"outputs\":[");
    for (int i = 0; i < run->answer.n; i++) {
        buffer_printf(&body, "%s{\"name\":\"%s\",\"parameters\":{",
                      i ? "," : "", run->answer.name[i]);
        write_v2_place(&body, scene, &scene->out[i], &run->answer.tensor[i]);
    }
    buffer_text(&body, "]}");
    snprintf(path, sizeof path, "/v2/models/%s/infer", run->op);
    post(scene, path, &body);
    buffer_fini(&body);
}

void golden_post_in_regions(const struct run *run, bool is_fused)
{
    static struct scene scene;
    memset(&scene, 0, sizeof scene);
    scene.run = run;
    scene.op = roped_op_find(run->op);
    if (is_fused)
        place_slices(&scene);
    place_packed(&scene);
    place_outputs(&scene, is_fused);
    put_regions(&scene);
    call_v1(&scene);
    check_regions(&scene, is_fused ? "v1, fused" : "v1");
    put_regions(&scene);
    call_v2(&scene);
    check_regions(&scene, is_fused ? "v2, fused" : "v2");
    for (int i = 0; i < scene.n; i++)
        free(scene.region[i].tensor.data);
}
