/*
 * rows_file.c - rows of bench_ops as lines of JSON.
 */
#include "bench/rows_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void rows_file_write_row(FILE *file, const struct bench_row *row)
{
    fprintf(file,
            "{\"row\":\"%s\",\"op\":\"%s\",\"dtype\":\"%s\",\"sizes\":\"%s\","
            "\"inputs\":\"%s\",\"params\":\"%s\",\"of\":%lld",
            row->name, row->op, roped_dtype_name(row->dtype), row->sizes,
            row->inputs ? row->inputs : "", row->params ? row->params : "",
            (long long)row->of);
    if (row->cache != ROPED_NO_DTYPE)
        fprintf(file, ",\"cache\":\"%s\"", roped_dtype_name(row->cache));
}

/* The text of a member, or NULL where it is none or empty. */
static const char *text_of(const cJSON *line, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(line, name));
    return text && *text ? text : NULL;
}

static enum roped_dtype dtype_of(const cJSON *line, const char *name)
{
    const char *text = text_of(line, name);
    return text ? roped_dtype_from_name(text, strlen(text)) : ROPED_NO_DTYPE;
}

/* What is missing, or NULL. The row points into the line. */
static const char *read_row(const cJSON *line, struct bench_row *row)
{
    const cJSON *of = cJSON_GetObjectItem(line, "of");
    *row = (struct bench_row){.name = text_of(line, "row"),
                              .op = text_of(line, "op"),
                              .dtype = dtype_of(line, "dtype"),
                              .sizes = text_of(line, "sizes"),
                              .inputs = text_of(line, "inputs"),
                              .params = text_of(line, "params"),
                              .of = of ? (int64_t)cJSON_GetNumberValue(of) : 0,
                              .cache = dtype_of(line, "cache")};
    return !row->name                     ? "\"row\", a name"
           : !row->op                     ? "\"op\", an operator"
           : row->dtype == ROPED_NO_DTYPE ? "\"dtype\", such as \"BF16\""
           : !row->sizes                  ? "\"sizes\", such as \"rows=1 h=64\""
           : dtype_of(line, "cache") == ROPED_NO_DTYPE &&
                   cJSON_HasObjectItem(line, "cache")
               ? "\"cache\", such as \"U8\""
               : NULL;
}

bool rows_file_read(const char *path, rows_file_fn *visit, void *context,
                    FILE *errors)
{
    char *text = NULL;
    size_t text_bytes = 0;
    const char *missing = NULL;
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(errors, "bench_ops: %s: %s\n", path, strerror(errno));
        return false;
    }
    for (int number = 1; !missing && getline(&text, &text_bytes, file) >= 0;
         number++) {
        cJSON *line = cJSON_Parse(text);
        struct bench_row row;
        missing = read_row(line, &row);
        if (missing)
            fprintf(errors, "bench_ops: %s: line %d: expected %s\n", path,
                    number, missing);
        else
            visit(context, &row);
        cJSON_Delete(line);
    }
    free(text);
    fclose(file);
    return !missing;
}
