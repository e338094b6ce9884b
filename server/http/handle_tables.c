/*
 * handle_tables.c - named rotary tables: list, read, make, forget.
 */
#include "http/handlers.h"
#include "http/request.h"
#include "wire/angles_json.h"
#include "wire/v1.h"

#include <string.h>

static struct tables *tables_of(const struct request *request)
{
    return exec_tables(request->service->exec);
}

struct listing {
    struct buffer *buffer;
    const struct tenant *sees;
    const char *name; /* only this one, or NULL: all */
    int n;
};

/* Everyone is told whose it is. */
static void list_table(void *context, const struct table_info *info)
{
    struct listing *listing = context;
    bool is_told = listing->sees == &tenant_everyone;
    if (listing->name && strcmp(listing->name, info->set->name) != 0)
        return;
    buffer_text(listing->buffer, listing->n++ ? "," : "");
    angles_json_write(listing->buffer, info->set,
                      is_told ? info->tenant->name : "", info->resident_bytes);
}

struct reply handle_tables(struct request *request)
{
    struct buffer buffer;
    struct listing listing = {&buffer, request->caller.sees, NULL, 0};
    reply_begin_text(&request->answer, &buffer);
    buffer_text(&buffer, "{\"tables\":[");
    tables_each(tables_of(request), listing.sees, list_table, &listing);
    buffer_text(&buffer, "]}");
    return reply_json(&buffer);
}

struct reply handle_table_get(struct request *request)
{
    struct buffer buffer;
    struct listing listing = {&buffer, request->caller.tenant,
                              request->match.capture, 0};
    reply_begin_text(&request->answer, &buffer);
    tables_each(tables_of(request), listing.sees, list_table, &listing);
    if (listing.n > 0)
        return reply_json(&buffer);
    struct roped_error err;
    if (!lost_check(tables_lost(tables_of(request)), listing.sees, listing.name,
                    &err))
        roped_fail(&err, ROPED_NO_TABLE, "table '%s' does not exist",
                   listing.name);
    return reply_status(&request->answer, &err);
}

/* What the query says beside the body: style, or NULL. */
static enum roped_status read_query(const struct head *head, bool is_guarded,
                                    const char **style, struct roped_error *err)
{
    *style = NULL;
    for (int i = 0; i < head->n_parameters; i++) {
        const struct head_parameter *parameter = &head->parameter[i];
        if (strcmp(parameter->name, "tenant") == 0 && is_guarded)
            continue; /* the caller's, see gate.h */
        if (parameter->has_nul || *style ||
            strcmp(parameter->name, "style") != 0)
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "parameter '%.32s' of a table's PUT: expected "
                              "style=neox or style=gptj, once",
                              parameter->name);
        *style = parameter->value;
    }
    return ROPED_OK;
}

/* Stores every set of a body, or none; answers with what was stored. */
static enum roped_status put_sets(struct tables *tables, struct tenant *tenant,
                                  const struct angles_json_set *sets, int n,
                                  struct buffer *buffer, bool *replaced,
                                  struct roped_error *err)
{
    const struct roped_angle_set *set[ANGLES_JSON_MAX_SETS];
    for (int i = 0; i < n; i++)
        set[i] = &sets[i].set;
    enum roped_status status =
        tables_put(tables, tenant, set, n, replaced, err);
    buffer_text(buffer, "{\"tables\":[");
    for (int i = 0; i < n; i++) {
        buffer_text(buffer, i ? "," : "");
        angles_json_write(buffer, set[i], "", 0);
    }
    buffer_text(buffer, "]}");
    return status;
}

struct reply handle_table_put(struct request *request)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct buffer buffer;
    struct roped_error err;
    bool replaced = false;
    int n = 0;
    const char *style = NULL;
    enum roped_status status =
        v1_is_name(request->match.capture)
            ? read_query(&request->head,
                         gate_is_guarded(&request->service->gate), &style, &err)
            : roped_fail(&err, ROPED_INVALID,
                         "table names are letters, digits, '.', '_' and "
                         "'-', and not '.' or '..'");
    if (!status)
        status = angles_json_read(
            request->match.capture, style, body_text(&request->body),
            (size_t)request->body.received, sets, &n, &err);
    if (status)
        return reply_status(&request->answer, &err);
    reply_begin_text(&request->answer, &buffer);
    status = put_sets(tables_of(request), request->caller.tenant, sets, n,
                      &buffer, &replaced, &err);
    for (int i = 0; i < n; i++)
        angles_json_fini(&sets[i]);
    if (status)
        return reply_status(&request->answer, &err);
    return reply_text(replaced ? 200 : 201, "application/json", &buffer);
}

struct reply handle_table_delete(struct request *request)
{
    struct buffer buffer;
    struct roped_error err;
    if (tables_delete(tables_of(request), request->caller.tenant,
                      request->match.capture, &err))
        return reply_status(&request->answer, &err);
    reply_begin_text(&request->answer, &buffer);
    buffer_text(&buffer, "{}");
    return reply_json(&buffer);
}
