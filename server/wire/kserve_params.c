/*
 * kserve_params.c - 'parameters' of v2 requests, inputs and outputs by name.
 */
#include "wire/kserve_params.h"

#include <roped/nearest.h>

#include <string.h>

enum { NAME_BYTES = 80 }; /* of names for messages: longer than any known */

static bool is_present(const struct json_reader *member)
{
    return json_kind(member) != JSON_NOTHING;
}

bool kserve_is_of_another_server(const char *name)
{
    static const char *const names[] = {"content_type",
                                        "headers"}; /* MLServer */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

enum roped_status kserve_check_params(const struct json_reader *params,
                                      struct roped_error *err)
{
    char found[64];
    if (!is_present(params) || json_kind(params) == JSON_OBJECT)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "Unable to parse 'parameters': %s, expected an object",
                      json_describe(params, found, sizeof found));
}

static enum roped_status check_name(const char *name, const char *const *known,
                                    int n, struct roped_error *err)
{
    char near[96];
    struct roped_nearest nearest = {.word = name};
    for (int i = 0; i < n; i++)
        if (strcmp(known[i], name) == 0)
            return ROPED_OK;
    if (kserve_is_of_another_server(name))
        return ROPED_OK;
    for (int i = 0; i < n; i++)
        roped_nearest_offer(&nearest, known[i]);
    return roped_fail(err, ROPED_UNKNOWN_NAME,
                      "unknown parameter '%.64s' of an input or output%s", name,
                      roped_nearest_text(&nearest, near, sizeof near));
}

enum roped_status kserve_find_params(struct json_reader *params,
                                     const char *const *known, int n,
                                     struct json_reader *param,
                                     struct roped_error *err)
{
    char name[NAME_BYTES];
    struct json_reader at = *params;
    struct json_string string;
    enum roped_status status = kserve_check_params(params, err);
    json_find(params, known, n, param);
    if (status || !is_present(&at))
        return status;
    json_open(&at);
    while (!status && json_next_name(&at, &string)) {
        json_copy(&string, name, sizeof name);
        status = check_name(name, known, n, err);
        json_skip(&at);
    }
    return status;
}
