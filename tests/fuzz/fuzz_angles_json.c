/*
 * fuzz_angles_json.c - any bytes as the body of PUT /v1/tables/t. Promises:
 * what is accepted has frequencies, and is written as strict JSON.
 */
#include "fuzz.h"

#include "wire/angles_json.h"
#include "wire/json.h"

#include <string.h>

static void check(const struct angles_json_set *table)
{
    const struct roped_angle_set *set = &table->set;
    struct roped_error err;
    struct buffer buffer;
    const struct cJSON *tree;
    FUZZ_PROMISE(set->name == table->name);
    FUZZ_PROMISE(strncmp(set->name, "t", 1) == 0);
    FUZZ_PROMISE(set->rotary_dim % 2 == 0 && set->rotary_dim >= 0);
    FUZZ_PROMISE(!set->head_dim || set->rotary_dim <= set->head_dim);
    FUZZ_PROMISE(set->rows >= 0 && set->rows <= 1 << 24);
    buffer_init(&buffer);
    angles_json_write(&buffer, set, "", 0);
    FUZZ_PROMISE(!buffer.has_failed);
    FUZZ_PROMISE(!json_parse(buffer.text, buffer.bytes, &tree, &err));
    json_free(tree);
    buffer_fini(&buffer);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct roped_error err;
    int n = 0;
    enum roped_status status =
        angles_json_read("t", NULL, (const char *)input, bytes, sets, &n, &err);
    FUZZ_PROMISE(!status || is_refusal(status));
    for (int i = 0; i < n && !status; i++) {
        check(&sets[i]);
        angles_json_fini(&sets[i]);
    }
    return 0;
}
