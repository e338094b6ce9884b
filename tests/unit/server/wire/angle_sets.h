/*
 * angle_sets.h - sets of angles as a table's PUT reads them, and refusals.
 */
#ifndef ROPED_TESTS_ANGLE_SETS_H
#define ROPED_TESTS_ANGLE_SETS_H

#include "wire/angles_json.h"

#include "check.h"

static inline int read_sets(const char *name, const char *json,
                            struct angles_json_set *sets)
{
    struct roped_error err;
    int n = 0;
    CHECK_OK(angles_json_read(name, NULL, json, strlen(json), sets, &n, &err),
             &err);
    return n;
}

static inline void free_sets(struct angles_json_set *sets, int n)
{
    for (int i = 0; i < n; i++)
        angles_json_fini(&sets[i]);
}

static inline void refuse(const char *json, const char *why)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct roped_error err = {0};
    int n;
    enum roped_status status =
        angles_json_read("t", NULL, json, strlen(json), sets, &n, &err);
    CHECK_INT(status, strncmp(err.text, "config: ", 8) == 0
                          ? ROPED_BAD_CONFIG
                          : ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, why);
}

#endif
