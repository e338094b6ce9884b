/*
 * test_kserve_meta.c - documents about models: strict JSON, with what clients
 * insist on, for every operator of the table.
 */
#include "wire/kserve_meta.h"
#include "wire/models.h"

#include "check.h"
#include "wire/json.h"

#include <cjson/cJSON.h>

/* The tree of what was written; frees the buffer. */
static const struct cJSON *tree_of(struct buffer *buffer)
{
    const struct cJSON *tree = NULL;
    struct roped_error err;
    CHECK(!buffer->has_failed);
    if (json_parse(buffer->text, buffer->bytes, &tree, &err))
        CHECK_FAIL("%s in %s", err.text, buffer->text);
    buffer_fini(buffer);
    return tree;
}

static const char *text_of(const struct cJSON *object, const char *name)
{
    const struct cJSON *node = json_member(object, name);
    return cJSON_IsString(node) ? node->valuestring : NULL;
}

static const struct cJSON *item_named(const struct cJSON *array,
                                      const char *name)
{
    const struct cJSON *item;
    cJSON_ArrayForEach(item, array)
    {
        const char *found = text_of(item, "name");
        if (found && strcmp(found, name) == 0)
            return item;
    }
    return NULL;
}

static bool has_text(const struct cJSON *array, const char *text)
{
    const struct cJSON *item;
    cJSON_ArrayForEach(item, array)
    {
        if (cJSON_IsString(item) && strcmp(item->valuestring, text) == 0)
            return true;
    }
    return false;
}

static struct model find(const char *name)
{
    static struct models models;
    struct model model = {0};
    models_init(&models, true);
    CHECK(models_find(&models, name, &model));
    return model;
}

static const struct cJSON *config_of(const char *name)
{
    struct buffer buffer;
    struct model model = find(name);
    buffer_init(&buffer);
    kserve_write_config(&buffer, &model, "cpu");
    return tree_of(&buffer);
}

static const struct cJSON *model_of(const char *name)
{
    struct buffer buffer;
    struct model model = find(name);
    buffer_init(&buffer);
    kserve_write_model(&buffer, &model, "cuda");
    return tree_of(&buffer);
}

TEST(the_server_lists_its_extensions)
{
    struct buffer buffer;
    buffer_init(&buffer);
    kserve_write_server(&buffer, "triton", "1.2.3", false);
    const struct cJSON *tree = tree_of(&buffer);
    const struct cJSON *extensions = json_member(tree, "extensions");
    CHECK_TEXT(text_of(tree, "name"), "triton");
    CHECK_TEXT(text_of(tree, "version"), "1.2.3");
    /* without this perf_analyzer shows no server side */
    CHECK(has_text(extensions, "statistics"));
    CHECK(has_text(extensions, "binary_tensor_data"));
    CHECK(!has_text(extensions, "system_shared_memory"));
    json_free(tree);
    buffer_init(&buffer);
    kserve_write_server(&buffer, "triton", "1.2.3", true);
    tree = tree_of(&buffer);
    CHECK(has_text(json_member(tree, "extensions"), "system_shared_memory"));
    CHECK(has_text(json_member(tree, "extensions"), "cuda_shared_memory"));
    json_free(tree);
}

TEST(descriptions_say_what_shares_memory)
{
    struct roped_op op = *roped_op_find("rmsnorm");
    struct buffer buffer;
    buffer_init(&buffer);
    describe_write_ports(&buffer, &op, false);
    CHECK_CONTAINS(buffer.text, "\"in_place\":\"x\"");
    buffer_fini(&buffer);
    buffer_init(&buffer);
    describe_write_ports(&buffer, &op, true);
    CHECK(!strstr(buffer.text, "updated"));
    buffer_fini(&buffer);
    op.in[0].flags |= ROPED_UPDATED; /* as of a cache */
    buffer_init(&buffer);
    describe_write_ports(&buffer, &op, true);
    CHECK_CONTAINS(buffer.text, "\"updated\":true");
    buffer_fini(&buffer);
}

static bool is_shape(const struct cJSON *array)
{
    const struct cJSON *dim;
    cJSON_ArrayForEach(dim, array)
    {
        if (!cJSON_IsNumber(dim) || dim->valuedouble < -1)
            return false;
    }
    return cJSON_IsArray(array) && cJSON_GetArraySize(array) > 0;
}

/* Every tensor of every operator has the members that clients read. */
static void check_tensors(const struct cJSON *array,
                          const struct roped_port *ports, int n,
                          const char *type, const char *shape)
{
    CHECK_INT(cJSON_GetArraySize(array), n);
    for (int i = 0; i < n; i++) {
        const struct cJSON *tensor = cJSON_GetArrayItem(array, i);
        CHECK_TEXT(text_of(tensor, "name"), ports[i].name);
        CHECK(text_of(tensor, type) != NULL);
        CHECK(is_shape(json_member(tensor, shape)));
    }
}

TEST(metadata_and_config_name_the_same_tensors)
{
    for (int i = 0; i < roped_op_count(); i++) {
        const struct roped_op *op = roped_op_at(i);
        const struct cJSON *model = model_of(op->name);
        CHECK_TEXT(text_of(model, "name"), op->name);
        CHECK_TEXT(text_of(model, "platform"), "roped_cuda");
        CHECK(has_text(json_member(model, "versions"), "1"));
        check_tensors(json_member(model, "inputs"), op->in, roped_op_inputs(op),
                      "datatype", "shape");
        check_tensors(json_member(model, "outputs"), op->out,
                      roped_op_outputs(op), "datatype", "shape");
        json_free(model);
        const struct cJSON *config = config_of(op->name);
        CHECK_TEXT(text_of(config, "name"), op->name);
        CHECK_TEXT(text_of(config, "backend"), "roped");
        CHECK_INT(json_member(config, "max_batch_size")->valuedouble, 0);
        check_tensors(json_member(config, "input"), op->in, roped_op_inputs(op),
                      "data_type", "dims");
        check_tensors(json_member(config, "output"), op->out,
                      roped_op_outputs(op), "data_type", "dims");
        json_free(config);
    }
}

TEST(a_port_of_many_types_states_the_widest)
{
    const struct cJSON *model = model_of("rope");
    const struct cJSON *q = item_named(json_member(model, "inputs"), "q");
    const struct cJSON *params = json_member(q, "parameters");
    CHECK_TEXT(text_of(q, "datatype"), "FP32");
    CHECK_INT(cJSON_GetArraySize(json_member(q, "shape")), 3);
    CHECK_INT(json_member(q, "shape")->child->valuedouble, -1);
    CHECK_TEXT(text_of(params, "datatypes"), "FP32,BF16,FP16");
    CHECK_TEXT(text_of(params, "shape"), "n hq d|n hq*d|bs s d");
    CHECK(!json_member(params, "content_datatype"));
    const struct cJSON *positions =
        item_named(json_member(model, "inputs"), "positions");
    CHECK_TEXT(text_of(positions, "datatype"), "INT64");
    json_free(model);
}

TEST(fp8_is_uint8_with_the_default_format)
{
    const struct cJSON *model = model_of("rope_quantize");
    const struct cJSON *q = item_named(json_member(model, "outputs"), "q_rope");
    const struct cJSON *params = json_member(q, "parameters");
    CHECK_TEXT(text_of(q, "datatype"), "UINT8");
    CHECK_TEXT(text_of(params, "datatypes"), "UINT8");
    CHECK_TEXT(text_of(params, "content_datatype"), "F8_E4M3");
    CHECK_TEXT(text_of(params, "content_datatypes"), "F8_E4M3,F8_E5M2");
    json_free(model);
    const struct cJSON *config = config_of("rope_quantize");
    q = item_named(json_member(config, "output"), "q_rope");
    CHECK_TEXT(text_of(q, "data_type"), "TYPE_UINT8");
    CHECK_TEXT(text_of(json_member(q, "parameters"), "content_datatype"),
               "F8_E4M3");
    json_free(config);
}

TEST(optional_inputs_are_marked)
{
    const struct cJSON *config = config_of("rope");
    const struct cJSON *inputs = json_member(config, "input");
    CHECK(cJSON_IsFalse(json_member(item_named(inputs, "q"), "optional")));
    CHECK(cJSON_IsTrue(json_member(item_named(inputs, "k"), "optional")));
    json_free(config);
}

static void check_duration(const struct cJSON *stats, const char *name,
                           double count, double ns)
{
    const struct cJSON *duration = json_member(stats, name);
    if (!duration) {
        CHECK_FAIL("no '%s'", name);
        return;
    }
    CHECK_DOUBLE(json_member(duration, "count")->valuedouble, count, 0);
    CHECK_DOUBLE(json_member(duration, "ns")->valuedouble, ns, 0);
}

TEST(statistics_have_all_eight_members)
{
    const char *name = "rmsnorm:x";
    const struct kserve_statistics statistics = {.last_inference_ms = 5,
                                                 .success_count = 3,
                                                 .success_ns = 300,
                                                 .fail_count = 1,
                                                 .fail_ns = 10,
                                                 .execution_count = 2,
                                                 .queue_ns = 4,
                                                 .compute_input_ns = 6,
                                                 .compute_infer_ns = 7,
                                                 .compute_output_ns = 8};
    struct buffer buffer;
    buffer_init(&buffer);
    kserve_write_statistics(&buffer, name, &statistics);
    const struct cJSON *model = tree_of(&buffer);
    const struct cJSON *stats = json_member(model, "inference_stats");
    CHECK_TEXT(text_of(model, "name"), name);
    CHECK_TEXT(text_of(model, "version"), "1"); /* perf_analyzer runs stoll */
    CHECK_INT(json_member(model, "inference_count")->valuedouble, 3);
    CHECK_INT(json_member(model, "execution_count")->valuedouble, 2);
    CHECK_INT(json_member(model, "last_inference")->valuedouble, 5);
    check_duration(stats, "success", 3, 300);
    check_duration(stats, "fail", 1, 10);
    check_duration(stats, "queue", 3, 4);
    check_duration(stats, "compute_input", 3, 6);
    check_duration(stats, "compute_infer", 3, 7);
    check_duration(stats, "compute_output", 3, 8);
    check_duration(stats, "cache_hit", 0, 0);
    check_duration(stats, "cache_miss", 0, 0);
    const struct cJSON *batch = json_member(model, "batch_stats")->child;
    CHECK_INT(json_member(batch, "batch_size")->valuedouble, 1);
    check_duration(batch, "compute_infer", 3, 7);
    CHECK(cJSON_IsObject(json_member(model, "response_stats")));
    CHECK(cJSON_IsArray(json_member(model, "memory_usage")));
    json_free(model);
}

TEST(a_batch_is_not_among_the_dims_of_the_config)
{
    const struct cJSON *config = config_of("simple"),
                       *model = model_of("simple");
    const struct cJSON *dims =
        json_member(json_member(config, "input")->child, "dims");
    CHECK_INT(json_member(config, "max_batch_size")->valueint, 8);
    CHECK_INT(cJSON_GetArraySize(dims), 1);
    CHECK_INT(dims->child->valueint, 16);
    dims = json_member(json_member(model, "inputs")->child, "shape");
    CHECK_INT(cJSON_GetArraySize(dims), 2);
    CHECK_INT(dims->child->valueint, -1);
    json_free(config);
    json_free(model);
}

TEST(a_part_of_an_operator_has_the_tensors_it_names)
{
    const struct cJSON *config = config_of("rope:k,q"),
                       *model = model_of("rope:q");
    CHECK_TEXT(text_of(config, "name"), "rope:k,q");
    CHECK_INT(cJSON_GetArraySize(json_member(config, "input")), 2);
    CHECK_INT(cJSON_GetArraySize(json_member(config, "output")), 2);
    CHECK_TEXT(text_of(model, "name"), "rope:q");
    CHECK_INT(cJSON_GetArraySize(json_member(model, "inputs")), 1);
    CHECK_INT(cJSON_GetArraySize(json_member(model, "outputs")), 1);
    CHECK_TEXT(text_of(json_member(model, "outputs")->child, "name"), "q");
    json_free(config);
    json_free(model);
}

TEST(an_entry_of_the_index)
{
    struct buffer buffer;
    buffer_init(&buffer);
    kserve_write_index_entry(&buffer, "rope");
    const struct cJSON *rope = tree_of(&buffer);
    CHECK_TEXT(text_of(rope, "name"), "rope");
    CHECK_TEXT(text_of(rope, "version"), "1");
    CHECK_TEXT(text_of(rope, "state"), "READY");
    CHECK_TEXT(text_of(rope, "reason"), "");
    json_free(rope);
}

/* ------------------------------------------------- the operator, described */

TEST(a_description_says_all_of_the_descriptor)
{
    for (int i = 0; i < roped_op_count(); i++) {
        const struct roped_op *op = roped_op_at(i);
        struct buffer buffer;
        buffer_init(&buffer);
        describe_write_op(&buffer, op);
        const struct cJSON *tree = tree_of(&buffer);
        const struct cJSON *params = json_member(tree, "parameters");
        CHECK_TEXT(text_of(tree, "name"), op->name);
        CHECK_TEXT(text_of(tree, "summary"), op->summary);
        CHECK_TEXT(text_of(tree, "since"), op->since);
        CHECK_INT(cJSON_GetArraySize(json_member(tree, "inputs")),
                  roped_op_inputs(op));
        CHECK_INT(cJSON_GetArraySize(json_member(tree, "outputs")),
                  roped_op_outputs(op));
        CHECK_INT(cJSON_GetArraySize(params), roped_op_params(op));
        for (int p = 0; p < roped_op_params(op); p++)
            CHECK_TEXT(text_of(item_named(params, op->param[p].name), "doc"),
                       op->param[p].doc);
        char rule[ROPED_RULE_BYTES];
        if (roped_op_rule_text(op, rule, sizeof rule)[0])
            CHECK_TEXT(text_of(tree, "rule"), rule);
        else
            CHECK(text_of(tree, "rule") == NULL);
        json_free(tree);
    }
}

TEST(parameters_have_defaults_bounds_and_choices)
{
    struct buffer buffer;
    buffer_init(&buffer);
    describe_write_op(&buffer, roped_op_find("rope"));
    const struct cJSON *tree = tree_of(&buffer);
    const struct cJSON *params = json_member(tree, "parameters");
    const struct cJSON *theta = item_named(params, "theta");
    CHECK_TEXT(text_of(theta, "kind"), "float");
    CHECK_DOUBLE(json_member(theta, "default")->valuedouble, 10000, 0);
    CHECK_DOUBLE(json_member(theta, "above")->valuedouble, 0, 0);
    CHECK(!json_member(theta, "max")); /* DBL_MAX is no bound */
    const struct cJSON *factor = item_named(params, "factor");
    CHECK(!json_member(factor, "default"));
    const struct cJSON *style = item_named(params, "style");
    CHECK_TEXT(text_of(style, "default"), "neox");
    CHECK_INT(cJSON_GetArraySize(json_member(style, "choices")), 2);
    CHECK(has_text(json_member(style, "choices"), "gptj"));
    const struct cJSON *offset = item_named(params, "offset");
    CHECK_DOUBLE(json_member(offset, "min")->valuedouble, 0, 0);
    CHECK_DOUBLE(json_member(offset, "max")->valuedouble, (1 << 24) - 1, 0);
    CHECK(cJSON_IsFalse(json_member(item_named(params, "inverse"), "default")));
    json_free(tree);
}

TEST(the_list_of_operators)
{
    struct buffer buffer;
    buffer_init(&buffer);
    describe_write_ops(&buffer);
    const struct cJSON *tree = tree_of(&buffer);
    const struct cJSON *ops = json_member(tree, "operators");
    CHECK_INT(cJSON_GetArraySize(ops), roped_op_count());
    CHECK(item_named(ops, "rmsnorm") != NULL);
    json_free(tree);
}
