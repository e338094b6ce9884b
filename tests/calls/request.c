/*
 * request.c - see request.h.
 */
#include "calls/request.h"

#include "check.h"

#include <math.h>

enum { ALIGNMENT = 16, JSON_ELEMENTS = 64 };

/* ------------------------------------------------------------------ places */

static bool is_strided(const struct roped_port *port,
                       const struct roped_tensor *tensor)
{
    return port->flags & ROPED_STRIDED && roped_tensor_tokens(tensor) > 0 &&
           roped_tensor_bytes(tensor) > 0;
}

/* A place of its own behind what is in the region already. */
static void take_place(struct manner *manner, struct place *place,
                       const struct roped_port *port,
                       const struct roped_tensor *tensor,
                       struct random_source *source)
{
    size_t element = roped_dtype_bytes(tensor->dtype);
    place->is_in_region = true;
    place->span = (size_t)roped_tensor_bytes(tensor);
    if (is_strided(port, tensor) && random_once_in(source, 2)) {
        place->stride = roped_tensor_token(tensor) + random_int(source, 0, 9);
        place->span =
            (size_t)((roped_tensor_tokens(tensor) - 1) * place->stride +
                     roped_tensor_token(tensor)) *
            element;
    }
    place->at = (manner->region_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT +
                element * (size_t)random_int(source, 0, 3);
    manner->region_bytes = place->at + place->span + 1;
}

static void place_outputs(const struct random_call *made, struct manner *manner,
                          struct random_source *source)
{
    for (int i = 0; i < made->call.n_out; i++) {
        int input = roped_op_shared(made->op, i);
        const struct roped_tensor *tensor = &made->call.out[i];
        bool is_below = input >= 0 && manner->in[input].is_in_region;
        bool is_updated = random_call_updates(made->op, i);
        if (!roped_tensor_given(tensor))
            continue;
        if (is_below && (is_updated || random_once_in(source, 2)))
            manner->out[i] = manner->in[input];
        else if (!is_updated && manner->region_bytes &&
                 random_once_in(source, 2))
            take_place(manner, &manner->out[i], &made->op->out[i], tensor,
                       source);
    }
}

/* A region holds no tensor without dims: nothing could name its shape. v2 has
 * no name for FP8, JSON no numbers of 16 bits. */
struct manner request_manner(const struct random_call *made, const char *region,
                             struct random_source *source)
{
    struct manner manner = {.region = region,
                            .is_v2 = random_once_in(source, 2),
                            .is_json = random_once_in(source, 3)};
    bool has_region = !made->status && random_once_in(source, 3);
    for (int i = 0; i < made->call.n_in; i++) {
        const struct roped_tensor *tensor = &made->in[i];
        if (!roped_tensor_given(tensor))
            continue;
        manner.is_json &= roped_tensor_elements(tensor) <= JSON_ELEMENTS &&
                          roped_dtype_bytes(tensor->dtype) >= 4;
        manner.is_v2 &= !(ROPED_SET(tensor->dtype) & ROPED_FP8S);
        if (has_region && tensor->rank > 0 && random_once_in(source, 2))
            take_place(&manner, &manner.in[i], &made->op->in[i],
                       &made->call.in[i], source);
    }
    if (has_region)
        place_outputs(made, &manner, source);
    return manner;
}

/* ------------------------------------------------------------------ region */

void request_put_region(const struct random_call *made,
                        const struct manner *manner, const struct server *to)
{
    int64_t n_bytes = (int64_t)manner->region_bytes;
    struct tensor_file file = {.n = 0};
    unsigned char *content = malloc(manner->region_bytes);
    memset(content, BETWEEN, manner->region_bytes);
    for (int i = 0; i < made->call.n_in; i++) {
        const struct place *place = &manner->in[i];
        const struct roped_tensor *tensor = &made->call.in[i];
        if (!place->is_in_region)
            continue;
        size_t bytes = (size_t)roped_tensor_bytes(tensor);
        size_t n = place->stride ? (size_t)roped_tensor_tokens(tensor) : 1;
        size_t stride =
            (size_t)place->stride * roped_dtype_bytes(tensor->dtype);
        for (size_t j = 0; j < n && bytes; j++)
            memcpy(content + place->at + j * stride,
                   (char *)made->in[i].data + j * (bytes / n), bytes / n);
    }
    file_add(&file, "t", ROPED_U8, 1, &n_bytes, content);
    char path[64];
    snprintf(path, sizeof path, "/v1/regions/%s", manner->region);
    size_t bytes;
    unsigned char *body = file_write(&file, &bytes);
    struct answer answer = ask(to, "PUT", path, body, bytes, NULL);
    if (answer.code != 200 && answer.code != 201)
        CHECK_FAIL("PUT of %zu bytes: %d %s", bytes, answer.code, answer.body);
    answer_free(&answer);
    free(body);
    free(content);
}

/* ---------------------------------------------------------------- requests */

static void write_shape(struct buffer *to, const struct roped_tensor *tensor)
{
    for (int i = 0; i < tensor->rank; i++)
        buffer_printf(to, "%s%lld", i ? "," : "", (long long)tensor->dims[i]);
}

static void write_v1_places(const struct random_call *made,
                            const struct manner *manner, struct buffer *path)
{
    for (int i = 0; i < made->call.n_in; i++) {
        const struct place *place = &manner->in[i];
        const char *name = made->op->in[i].name;
        if (!place->is_in_region)
            continue;
        buffer_printf(path, "from.%s=%s:%zu&dtype.%s=%s&shape.%s=", name,
                      manner->region, place->at, name,
                      roped_dtype_name(made->in[i].dtype), name);
        write_shape(path, &made->in[i]);
        if (place->stride)
            buffer_printf(path, "&stride.%s=%lld", name,
                          (long long)place->stride);
        buffer_text(path, "&");
    }
    for (int i = 0; i < made->call.n_out; i++) {
        const struct place *place = &manner->out[i];
        const char *name = made->op->out[i].name;
        if (!place->is_in_region || random_call_updates(made->op, i))
            continue;
        buffer_printf(path, "into.%s=%s:%zu&", name, manner->region, place->at);
        if (place->stride)
            buffer_printf(path, "into_stride.%s=%lld&", name,
                          (long long)place->stride);
    }
}

static void write_v1(const struct random_call *made,
                     const struct manner *manner, struct request *request)
{
    struct tensor_file file = {.n = 0};
    size_t bytes = 0;
    buffer_printf(&request->path, "/v1/%s?", made->op->name);
    for (int i = 0; i < roped_op_params(made->op); i++)
        if (made->has_param[i])
            buffer_printf(&request->path, "%s=%s&", made->op->param[i].name,
                          made->param[i]);
    write_v1_places(made, manner, &request->path);
    for (int i = 0; i < roped_op_inputs(made->op); i++) {
        const struct roped_tensor *tensor = &made->in[i];
        if (roped_tensor_given(tensor) && !manner->in[i].is_in_region)
            file_add(&file, made->op->in[i].name, tensor->dtype, tensor->rank,
                     tensor->dims, tensor->data);
    }
    unsigned char *body = file.n ? file_write(&file, &bytes) : NULL;
    buffer_append(&request->body, body ? (char *)body : "", bytes);
    free(body);
}

static void write_v2_param(struct buffer *body, const char *name,
                           const char *text)
{
    char *end;
    bool is_word = strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
    double number = strtod(text, &end);
    buffer_printf(body, ",\"%s\":", name);
    if (is_word || (*end == '\0' && isfinite(number)))
        buffer_text(body, text);
    else
        buffer_json_string(body, text);
}

static void write_v2_place(struct buffer *body, const struct manner *manner,
                           const struct place *place)
{
    buffer_printf(body,
                  "\"shared_memory_region\":\"%s\","
                  "\"shared_memory_byte_size\":%zu,"
                  "\"shared_memory_offset\":%zu",
                  manner->region, place->span, place->at);
    if (place->stride)
        buffer_printf(body, ",\"stride\":%lld", (long long)place->stride);
}

static void write_json_data(struct buffer *body,
                            const struct roped_tensor *tensor)
{
    int64_t n = roped_tensor_elements(tensor);
    for (int64_t i = 0; i < n; i++) {
        double value = tensor->dtype == ROPED_F32
                           ? (double)((const float *)tensor->data)[i]
                           : (double)random_call_value(tensor, i);
        buffer_printf(body, "%s%.17g", i ? "," : "",
                      isfinite(value) ? value : 1);
    }
}

static void write_v2_input(const struct random_call *made,
                           const struct manner *manner, int i,
                           struct buffer *body)
{
    const struct roped_tensor *tensor = &made->in[i];
    const struct place *place = &manner->in[i];
    buffer_printf(body, "{\"name\":\"%s\",\"datatype\":\"%s\",\"shape\":",
                  made->op->in[i].name, roped_dtype_v2_name(tensor->dtype));
    buffer_dims(body, tensor->dims, tensor->rank);
    if (manner->is_json && !place->is_in_region) {
        buffer_text(body, ",\"data\":[");
        write_json_data(body, tensor);
        buffer_text(body, "]}");
        return;
    }
    buffer_text(body, ",\"parameters\":{");
    if (place->is_in_region)
        write_v2_place(body, manner, place);
    else
        buffer_printf(body, "\"binary_data_size\":%lld",
                      (long long)roped_tensor_bytes(tensor));
    buffer_text(body, "}}");
}

static void write_v2_outputs(const struct random_call *made,
                             const struct manner *manner, struct buffer *body)
{
    const char *comma = "";
    buffer_text(body, ",\"outputs\":[");
    for (int i = 0; i < made->call.n_out; i++) {
        bool is_updated = random_call_updates(made->op, i);
        if (!roped_tensor_given(&made->call.out[i]) ||
            (is_updated && manner->out[i].is_in_region))
            continue;
        buffer_printf(body, "%s{\"name\":\"%s\"", comma, made->op->out[i].name);
        comma = ",";
        buffer_text(body, ",\"parameters\":{");
        if (manner->out[i].is_in_region)
            write_v2_place(body, manner, &manner->out[i]);
        else
            buffer_text(body, "\"binary_data\":true");
        buffer_text(body, "}}");
    }
    buffer_text(body, "]");
}

static void write_v2(const struct random_call *made,
                     const struct manner *manner, struct request *request)
{
    struct buffer *body = &request->body;
    const char *comma = "";
    buffer_printf(&request->path, "/v2/models/%s/infer", made->op->name);
    buffer_text(body, "{\"parameters\":{\"binary_data_output\":true");
    for (int i = 0; i < roped_op_params(made->op); i++)
        if (made->has_param[i])
            write_v2_param(body, made->op->param[i].name, made->param[i]);
    buffer_text(body, "},\"inputs\":[");
    for (int i = 0; i < roped_op_inputs(made->op); i++) {
        if (!roped_tensor_given(&made->in[i]))
            continue;
        buffer_text(body, comma);
        write_v2_input(made, manner, i, body);
        comma = ",";
    }
    buffer_text(body, "]");
    if (manner->region_bytes)
        write_v2_outputs(made, manner, body);
    buffer_text(body, "}");
    snprintf(request->header, sizeof request->header,
             "Inference-Header-Content-Length: %zu", body->bytes);
    for (int i = 0; i < roped_op_inputs(made->op); i++)
        if (roped_tensor_given(&made->in[i]) && !manner->is_json &&
            !manner->in[i].is_in_region)
            buffer_append(body, made->in[i].data,
                          (size_t)roped_tensor_bytes(&made->in[i]));
}

bool request_is_whole(const struct random_call *made)
{
    for (int i = 0; i < roped_op_inputs(made->op); i++)
        if (roped_tensor_given(&made->in[i]) && !made->in[i].data)
            return false;
    return true;
}

void request_write(const struct random_call *made, const struct manner *manner,
                   struct request *out)
{
    *out = (struct request){.headers = {manner->is_v2 ? out->header : NULL}};
    buffer_init(&out->path);
    buffer_init(&out->body);
    if (manner->is_v2)
        write_v2(made, manner, out);
    else
        write_v1(made, manner, out);
}

bool request_is_answered(const struct random_call *made,
                         const struct answer *answer)
{
    if (made->status)
        return answer->code == (made->status == ROPED_TOO_LARGE ? 413 : 400);
    return answer->code == 200 ||
           (answer->code == 413 && strstr(answer->body, "table_bytes"));
}

void request_end(struct request *request)
{
    buffer_fini(&request->path);
    buffer_fini(&request->body);
}
