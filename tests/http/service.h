/*
 * service.h - calls that several service tests make: rmsnorm of ones is ones,
 * easy to check at any size. Include it after check.h.
 */
#ifndef ROPED_TESTS_HTTP_SERVICE_H
#define ROPED_TESTS_HTTP_SERVICE_H

#include "check.h"
#include "clock.h"
#include "http/harness.h"

#include <math.h>

static inline struct answer get(const struct server *server, const char *path)
{
    return ask(server, "GET", path, NULL, 0, NULL);
}

static inline void expect_code(struct answer answer, int code, const char *part,
                               const char *what)
{
    if (answer.code != code || !strstr(answer.body, part))
        CHECK_FAIL("%s: answered %d %.200s, expected %d with '%s'", what,
                   answer.code, answer.body, code, part);
    answer_free(&answer);
}

/* The body of rmsnorm of rows x h ones; free it. */
static inline unsigned char *ones(int64_t rows, int64_t h, size_t *bytes)
{
    int64_t dims[2] = {rows, h};
    float *x = malloc((size_t)(rows * h) * sizeof *x);
    struct tensor_file file = {0};
    for (int64_t i = 0; i < rows * h; i++)
        x[i] = 1;
    file_add(&file, "x", ROPED_F32, 2, dims, x);
    unsigned char *body = file_write(&file, bytes);
    free(x);
    return body;
}

static inline bool are_ones(const struct answer *answer, int64_t n)
{
    struct tensor_file file;
    if (answer->code != 200 ||
        !file_read(&file, answer->body, answer->bytes, NULL, NULL))
        return false;
    const float *y = file.tensor[0].data;
    bool is_right = file.n == 1 && roped_tensor_elements(&file.tensor[0]) == n;
    for (int64_t i = 0; i < n && is_right; i++)
        is_right = fabsf(y[i] - 1) < 1e-5f;
    file_free(&file);
    return is_right;
}

static inline bool call_ones(const struct server *server, int64_t rows,
                             int64_t h)
{
    size_t bytes;
    unsigned char *body = ones(rows, h, &bytes);
    struct answer answer =
        ask(server, "POST", "/v1/rmsnorm?eps=0", body, bytes, NULL);
    bool is_right = are_ones(&answer, rows * h);
    if (!is_right)
        fprintf(stderr, "rmsnorm of ones answered %d %.200s\n", answer.code,
                answer.code == 200 ? "" : answer.body);
    answer_free(&answer);
    free(body);
    return is_right;
}

/* PUTs a tensor as a region. */
static inline void store_region(const struct server *server, const char *name,
                                enum roped_dtype dtype, int rank,
                                const int64_t *dims, void *data)
{
    char path[128];
    struct tensor_file file = {0};
    snprintf(path, sizeof path, "/v1/regions/%s", name);
    file_add(&file, name, dtype, rank, dims, data);
    struct answer answer = ask_file(server, "PUT", path, &file);
    CHECK(answer.code == 200 || answer.code == 201);
    answer_free(&answer);
}

/* The value behind name on the metrics page, or -1. */
static inline double metric(const struct server *server, const char *name)
{
    struct answer answer = get(server, "/metrics");
    const char *at = strstr(answer.body, name);
    while (at && at > answer.body && at[-1] != '\n')
        at = strstr(at + 1, name); /* that was in its HELP line */
    double value = at ? strtod(at + strlen(name), NULL) : -1;
    answer_free(&answer);
    return value;
}

/* Of all lines of one page that begin with start. Two pages may differ: a lane
 * is counted as idle by one and as busy by the other, or by neither. */
static inline double metric_sum(const struct server *server, const char *start)
{
    struct answer answer = get(server, "/metrics");
    double sum = 0;
    for (const char *line = answer.body; line;) {
        const char *end = strchr(line, '\n');
        const char *value =
            end ? memrchr(line, ' ', (size_t)(end - line)) : NULL;
        if (value && strncmp(line, start, strlen(start)) == 0)
            sum += strtod(value, NULL);
        line = end ? end + 1 : NULL;
    }
    answer_free(&answer);
    return sum;
}

/* Waits until it is so: the server lets go of an answer's memory a moment after
 * the client has read its last byte. */
static inline void expect_metric(const struct server *server, const char *name,
                                 double expected)
{
    for (int i = 0; i < 500 && metric(server, name) != expected; i++)
        pause_seconds(0.01);
    CHECK_DOUBLE(metric(server, name), expected, 0);
}

#endif
