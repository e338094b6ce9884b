/*
 * kserve_meta.c - documents about models, from their signatures.
 *
 * A v2 tensor has one datatype and one shape, an operator's port may have
 * several. The metadata states the widest type, or the default where a
 * parameter chooses it, and the first form's shape; all of them are under
 * "parameters", which clients ignore: "datatypes": "FP32,FP16,BF16", "shape":
 * "n hq d|n hqd|bs s d", and for FP8, which is UINT8 in v2,
 * "content_datatype" and "content_datatypes". A program's tensor is what it
 * declares, and beyond that what the port of the step says.
 */
#include "wire/kserve_meta.h"

#include <float.h>
#include <string.h>

void kserve_write_server(struct buffer *buffer, const char *server_name,
                         const char *version, bool has_shared_memory)
{
    buffer_text(buffer, "{\"name\":");
    buffer_json_string(buffer, server_name);
    buffer_text(buffer, ",\"version\":");
    buffer_json_string(buffer, version);
    buffer_text(buffer,
                ",\"extensions\":[\"binary_tensor_data\",\"parameters\","
                "\"statistics\",\"model_configuration\",\"model_repository\","
                "\"logging\",\"roped_safetensors\"");
    if (has_shared_memory)
        buffer_text(buffer, ",\"system_shared_memory\",\"cuda_shared_memory\"");
    buffer_text(buffer, "]}");
}

/* [-1, -1, 128] */
static void write_dims(struct buffer *buffer,
                       const struct signature_tensor *tensor, int first)
{
    buffer_text(buffer, "[");
    for (int i = first; i < tensor->rank; i++)
        buffer_printf(buffer, "%s%lld", i > first ? "," : "",
                      (long long)tensor->dims[i]);
    buffer_text(buffer, "]");
}

typedef const char *dtype_name_fn(enum roped_dtype dtype);

/* "FP32,FP16,BF16": the names of a set, each once. */
static void write_names(struct buffer *buffer, uint32_t set,
                        dtype_name_fn *name_of)
{
    const char *last = "";
    buffer_append(buffer, "\"", 1);
    for (int i = ROPED_DTYPE_COUNT - 1; i > 0; i--) {
        const char *name = name_of((enum roped_dtype)i);
        if (!(set & ROPED_SET(i)) || strcmp(name, last) == 0)
            continue; /* the FP8s are neighbours and both UINT8 */
        buffer_printf(buffer, "%s%s", last[0] ? "," : "", name);
        last = name;
    }
    buffer_append(buffer, "\"", 1);
}

static void write_tensor(struct buffer *buffer, const struct model *model,
                         const struct signature_tensor *tensor)
{
    (void)model;
    buffer_text(buffer, "{\"name\":");
    buffer_json_string(buffer, tensor->name);
    buffer_printf(buffer, ",\"datatype\":\"%s\",\"shape\":",
                  roped_dtype_v2_name(tensor->dtype));
    write_dims(buffer, tensor, 0);
    buffer_text(buffer, ",\"parameters\":{\"datatypes\":");
    write_names(buffer, tensor->types, roped_dtype_v2_name);
    buffer_text(buffer, ",\"shape\":");
    buffer_json_string(buffer, tensor->shape);
    if (ROPED_SET(tensor->dtype) & ROPED_FP8S) {
        buffer_printf(buffer,
                      ",\"content_datatype\":\"%s\",\"content_datatypes\":",
                      roped_dtype_name(tensor->dtype));
        write_names(buffer, tensor->types, roped_dtype_name);
    }
    if (tensor->is_strided)
        buffer_text(buffer, ",\"strided\":\"true\"");
    buffer_text(buffer, "}}");
}

/* Writes one tensor of a model. */
typedef void tensor_fn(struct buffer *buffer, const struct model *model,
                       const struct signature_tensor *tensor);

static int max_batch(const struct model *model)
{
    return model->signature.op ? demo_max_batch(model->signature.op) : 0;
}

/* The model's tensors, separated by commas. */
static void write_tensors(struct buffer *buffer, const struct model *model,
                          bool is_input, tensor_fn *write)
{
    struct signature_tensor tensor;
    bool has_any = false;
    for (int i = 0; i < signature_count(&model->signature, !is_input); i++) {
        if (!(is_input ? model_has_input(model, i)
                       : model_has_output(model, i)))
            continue;
        buffer_text(buffer, has_any ? "," : "");
        signature_describe(&model->signature, !is_input, i, &tensor);
        write(buffer, model, &tensor);
        has_any = true;
    }
}

void kserve_write_model(struct buffer *buffer, const struct model *model,
                        const char *backend)
{
    buffer_printf(buffer,
                  "{\"name\":\"%s\",\"versions\":[\"1\"],\"platform\":"
                  "\"roped_%s\",\"inputs\":[",
                  model->name, backend);
    write_tensors(buffer, model, true, write_tensor);
    buffer_text(buffer, "],\"outputs\":[");
    write_tensors(buffer, model, false, write_tensor);
    buffer_text(buffer, "]}");
}

static void write_config_tensor(struct buffer *buffer,
                                const struct model *model,
                                const struct signature_tensor *tensor)
{
    buffer_text(buffer, "{\"name\":");
    buffer_json_string(buffer, tensor->name);
    buffer_printf(buffer, ",\"data_type\":\"%s\",\"dims\":",
                  roped_dtype_config_name(tensor->dtype));
    /* a batch is not among the dims of a config */
    write_dims(buffer, tensor, max_batch(model) > 0);
    if (ROPED_SET(tensor->dtype) & ROPED_FP8S)
        buffer_printf(buffer, ",\"parameters\":{\"content_datatype\":\"%s\"}",
                      roped_dtype_name(tensor->dtype));
    if (!tensor->is_output)
        buffer_printf(buffer, ",\"optional\":%s",
                      tensor->is_optional ? "true" : "false");
    buffer_text(buffer, "}");
}

void kserve_write_config(struct buffer *buffer, const struct model *model,
                         const char *backend)
{
    buffer_printf(buffer,
                  "{\"name\":\"%s\",\"platform\":\"roped_%s\",\"backend\":"
                  "\"roped\",\"max_batch_size\":%d,\"input\":[",
                  model->name, backend, max_batch(model));
    write_tensors(buffer, model, true, write_config_tensor);
    buffer_text(buffer, "],\"output\":[");
    write_tensors(buffer, model, false, write_config_tensor);
    buffer_text(buffer, "]}");
}

void kserve_write_index_entry(struct buffer *buffer, const char *name)
{
    buffer_text(buffer, "{\"name\":");
    buffer_json_string(buffer, name);
    buffer_text(buffer,
                ",\"version\":\"1\",\"state\":\"READY\",\"reason\":\"\"}");
}

static void write_duration(struct buffer *buffer, const char *name,
                           uint64_t count, uint64_t ns)
{
    buffer_printf(buffer, "\"%s\":{\"count\":%llu,\"ns\":%llu}", name,
                  (unsigned long long)count, (unsigned long long)ns);
}

/* Their counts must be equal, or perf_analyzer refuses the statistics. */
static void write_compute(struct buffer *buffer,
                          const struct kserve_statistics *s)
{
    write_duration(buffer, "compute_input", s->success_count,
                   s->compute_input_ns);
    buffer_append(buffer, ",", 1);
    write_duration(buffer, "compute_infer", s->success_count,
                   s->compute_infer_ns);
    buffer_append(buffer, ",", 1);
    write_duration(buffer, "compute_output", s->success_count,
                   s->compute_output_ns);
}

void kserve_write_statistics(struct buffer *buffer, const char *name,
                             const struct kserve_statistics *s)
{
    buffer_printf(buffer,
                  "{\"name\":\"%s\",\"version\":\"1\",\"last_inference\":%llu,"
                  "\"inference_count\":%llu,\"execution_count\":%llu,"
                  "\"inference_stats\":{",
                  name, (unsigned long long)s->last_inference_ms,
                  (unsigned long long)s->success_count,
                  (unsigned long long)s->execution_count);
    write_duration(buffer, "success", s->success_count, s->success_ns);
    buffer_append(buffer, ",", 1);
    write_duration(buffer, "fail", s->fail_count, s->fail_ns);
    buffer_append(buffer, ",", 1);
    write_duration(buffer, "queue", s->success_count, s->queue_ns);
    buffer_append(buffer, ",", 1);
    write_compute(buffer, s);
    buffer_append(buffer, ",", 1);
    write_duration(buffer, "cache_hit", 0, 0);
    buffer_append(buffer, ",", 1);
    write_duration(buffer, "cache_miss", 0, 0);
    buffer_text(buffer, "},\"response_stats\":{},\"batch_stats\":[{"
                        "\"batch_size\":1,");
    write_compute(buffer, s);
    buffer_text(buffer, "}],\"memory_usage\":[]}");
}

/* ------------------------------------------------- the operator, described */

static const char *kind_name(enum roped_param_kind kind)
{
    switch (kind) {
    case ROPED_PARAM_FLOAT:
        return "float";
    case ROPED_PARAM_INT:
        return "int";
    case ROPED_PARAM_BOOL:
        return "bool";
    case ROPED_PARAM_CHOICE:
        return "choice";
    case ROPED_PARAM_DTYPE:
        return "dtype";
    case ROPED_PARAM_INTS:
        return "ints";
    }
    return "";
}

static void describe_port(struct buffer *buffer, const struct roped_op *op,
                          const struct roped_port *port, bool is_input)
{
    buffer_printf(buffer, "{\"name\":\"%s\",\"datatypes\":", port->name);
    write_names(buffer, roped_op_types(op, port), roped_dtype_name);
    buffer_printf(buffer, ",\"type\":\"%s\",\"shape\":", port->type);
    buffer_json_string(buffer, port->shape);
    if (is_input)
        buffer_printf(buffer, ",\"optional\":%s",
                      port->flags & ROPED_OPTIONAL ? "true" : "false");
    if (port->requires_)
        buffer_printf(buffer, ",\"requires\":\"%s\"", port->requires_);
    if (port->in_place)
        buffer_printf(buffer, ",\"in_place\":\"%s\"", port->in_place);
    if (port->flags & ROPED_UPDATED)
        buffer_text(buffer, ",\"updated\":true");
    if (port->holds) {
        buffer_text(buffer, ",\"holds\":");
        buffer_json_string(buffer, port->holds);
    }
    buffer_text(buffer, ",\"doc\":");
    buffer_json_string(buffer, port->doc);
    buffer_append(buffer, "}", 1);
}

void describe_write_ports(struct buffer *buffer, const struct roped_op *op,
                          bool is_input)
{
    int n = is_input ? roped_op_inputs(op) : roped_op_outputs(op);
    buffer_append(buffer, "[", 1);
    for (int i = 0; i < n; i++) {
        buffer_text(buffer, i ? "," : "");
        describe_port(buffer, op, is_input ? &op->in[i] : &op->out[i],
                      is_input);
    }
    buffer_append(buffer, "]", 1);
}

void describe_write_default(struct buffer *buffer,
                            const struct roped_param *param)
{
    char choice[32];
    if (param->flags & ROPED_NO_DEFAULT || param->kind == ROPED_PARAM_INTS)
        return;
    buffer_text(buffer, ",\"default\":");
    if (param->choices)
        buffer_json_string(buffer, roped_param_choice(param, (int)param->init,
                                                      choice, sizeof choice));
    else if (param->kind == ROPED_PARAM_BOOL)
        buffer_text(buffer, param->init != 0 ? "true" : "false");
    else
        buffer_double(buffer, param->init);
}

void describe_write_bounds(struct buffer *buffer,
                           const struct roped_param *param,
                           const char *least_name, const char *above_name,
                           const char *most_name)
{
    bool is_number =
        param->kind == ROPED_PARAM_FLOAT || param->kind == ROPED_PARAM_INT;
    bool is_above = param->flags & ROPED_ABOVE_MIN;
    bool has_range = param->min != 0 || param->max != 0;
    if (is_number && (is_above || (has_range && param->min > -FLT_MAX))) {
        buffer_printf(buffer, ",\"%s\":", is_above ? above_name : least_name);
        buffer_double(buffer, param->min);
    }
    if (is_number && has_range && param->max < FLT_MAX) {
        buffer_printf(buffer, ",\"%s\":", most_name);
        buffer_double(buffer, param->max);
    }
}

void describe_write_choices(struct buffer *buffer,
                            const struct roped_param *param)
{
    char choice[32];
    buffer_append(buffer, "[", 1);
    for (int i = 0; i < roped_param_choices(param); i++)
        buffer_printf(buffer, "%s\"%s\"", i ? "," : "",
                      roped_param_choice(param, i, choice, sizeof choice));
    buffer_append(buffer, "]", 1);
}

static void describe_param(struct buffer *buffer,
                           const struct roped_param *param)
{
    buffer_printf(buffer, "{\"name\":\"%s\",\"kind\":\"%s\"", param->name,
                  kind_name(param->kind));
    describe_write_default(buffer, param);
    describe_write_bounds(buffer, param, "min", "above", "max");
    if (param->choices) {
        buffer_text(buffer, ",\"choices\":");
        describe_write_choices(buffer, param);
    }
    buffer_text(buffer, ",\"doc\":");
    buffer_json_string(buffer, param->doc);
    buffer_append(buffer, "}", 1);
}

void describe_write_rule(struct buffer *buffer, const struct roped_op *op,
                         const char *before)
{
    char text[ROPED_RULE_BYTES];
    if (!roped_op_rule_text(op, text, sizeof text)[0])
        return;
    buffer_text(buffer, before);
    buffer_json_string(buffer, text);
}

void describe_write_op(struct buffer *buffer, const struct roped_op *op)
{
    buffer_printf(buffer,
                  "{\"name\":\"%s\",\"since\":\"%s\",\"summary\":", op->name,
                  op->since);
    buffer_json_string(buffer, op->summary);
    buffer_text(buffer, ",\"forms\":[");
    for (int i = 0; i < ROPED_MAX_FORMS && op->form[i].name; i++) {
        buffer_printf(buffer, "%s{\"name\":\"%s\",\"doc\":", i ? "," : "",
                      op->form[i].name);
        buffer_json_string(buffer, op->form[i].doc);
        buffer_text(buffer, "}");
    }
    buffer_text(buffer, "],\"inputs\":");
    describe_write_ports(buffer, op, true);
    buffer_text(buffer, ",\"outputs\":");
    describe_write_ports(buffer, op, false);
    buffer_text(buffer, ",\"parameters\":[");
    for (int i = 0; i < roped_op_params(op); i++) {
        buffer_text(buffer, i ? "," : "");
        describe_param(buffer, &op->param[i]);
    }
    buffer_text(buffer, "]");
    describe_write_rule(buffer, op, ",\"rule\":");
    buffer_text(buffer, "}");
}

void describe_write_ops(struct buffer *buffer)
{
    buffer_text(buffer, "{\"operators\":[");
    for (int i = 0; i < roped_op_count(); i++) {
        buffer_printf(buffer, "%s{\"name\":\"%s\",\"summary\":", i ? "," : "",
                      roped_op_at(i)->name);
        buffer_json_string(buffer, roped_op_at(i)->summary);
        buffer_text(buffer, "}");
    }
    buffer_text(buffer, "]}");
}
