/*
 * program_folder.c - the documents of a folder, in the order of their names.
 */
#include "http/program_folder.h"

#include "http/body.h"
#include "io.h"
#include "wire/program_check.h"
#include "wire/program_json.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 512 };
static const char suffix[] = ".json";

/* A document that is read; puts NULL: it is only checked. */
struct loading {
    struct programs *puts;
    struct tenants *tenants;
};

static int is_document(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name), end = sizeof suffix - 1;
    return entry->d_name[0] != '.' && length >= end &&
           strcmp(entry->d_name + length - end, suffix) == 0;
}

/* What is wrong with a document, behind the name of its file. */
static enum roped_status blame(const char *path, enum roped_status status,
                               struct roped_error *err)
{
    const struct roped_error was = *err;
    return status ? roped_fail(err, status, "programs: '%.255s': %s", path,
                               was.text)
                  : ROPED_OK;
}

static enum roped_status define(const struct program_text *text,
                                struct roped_program **out,
                                struct roped_error *err)
{
    enum roped_status status = program_json_check_name(text->name, err);
    if (!status && text->document_bytes > JSON_BODY_BYTES)
        status =
            roped_fail(err, ROPED_TOO_LARGE, "%zu bytes, expected at most %d",
                       text->document_bytes, JSON_BODY_BYTES);
    if (!status)
        status =
            program_json_read(text->document, text->document_bytes, out, err);
    if (status || !program_check_is_sized(*out))
        return status;
    void *memory = malloc(roped_chain_bytes(*out));
    status = memory ? program_check(*out, memory, err)
                    : roped_fail(err, ROPED_NO_MEMORY, "no memory for it");
    free(memory);
    return status;
}

/* A definition has one owner, so each tenant gets its own. */
static enum roped_status put(const struct loading *loading,
                             struct tenant *tenant,
                             const struct program_text *text,
                             struct roped_error *err)
{
    struct roped_program *definition = NULL;
    bool replaced;
    enum roped_status status = define(text, &definition, err);
    if (!status && loading->puts)
        return programs_put(loading->puts, tenant, text, definition, &replaced,
                            err);
    roped_program_free(definition);
    return status;
}

/* The nameless tenant is always there, and is nobody's unless there is no other
 * or a token has no name. */
static bool is_for(struct tenants *tenants, int i)
{
    const struct tenant *tenant = tenants_at(tenants, i);
    bool is_somebody = tenant->has_token || tenants_count(tenants) == 1;
    return is_somebody && !tenant->has_folder;
}

static enum roped_status put_for_all(const struct loading *loading,
                                     const struct program_text *text,
                                     struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    if (!loading->puts)
        return put(loading, NULL, text, err);
    for (int i = 0; i < tenants_count(loading->tenants) && !status; i++)
        if (is_for(loading->tenants, i))
            status = put(loading, tenants_at(loading->tenants, i), text, err);
    return status;
}

static enum roped_status read_one(const struct loading *loading,
                                  const char *folder, const char *file,
                                  struct roped_error *err)
{
    char path[PATH_BYTES], name[PATH_BYTES];
    struct io_file read;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, file) >=
        sizeof path)
        return roped_fail(err, ROPED_INVALID,
                          "programs: '%.255s': a path of %d bytes or more",
                          folder, PATH_BYTES);
    enum roped_status status = io_read_file("programs", path, &read, err);
    if (!status) {
        snprintf(name, sizeof name, "%.*s",
                 (int)(strlen(file) - (sizeof suffix - 1)), file);
        const struct program_text text = {
            .name = name, .document = read.text, .document_bytes = read.bytes};
        status = blame(path, put_for_all(loading, &text, err), err);
    }
    io_free_file(&read);
    return status;
}

static enum roped_status read_all(const struct loading *loading,
                                  const char *path, struct roped_error *err)
{
    struct dirent **entries = NULL;
    enum roped_status status = ROPED_OK;
    if (!path[0])
        return ROPED_OK;
    int n = scandir(path, &entries, is_document, alphasort);
    if (n < 0)
        return roped_fail(err, ROPED_INVALID,
                          "cannot read programs '%.255s': %s", path,
                          strerror(errno));
    for (int i = 0; i < n; i++) {
        if (!status)
            status = read_one(loading, path, entries[i]->d_name, err);
        free(entries[i]);
    }
    free(entries);
    return status;
}

enum roped_status program_folder_check(const char *path,
                                       struct roped_error *err)
{
    return read_all(&(struct loading){NULL, NULL}, path, err);
}

enum roped_status program_folder_load(const char *path, struct executor *exec,
                                      struct roped_error *err)
{
    const struct loading loading = {exec_programs(exec), exec_tenants(exec)};
    int n = tenants_count(loading.tenants), i = 0;
    while (i < n && !is_for(loading.tenants, i))
        i++;
    if (i == n)
        return ROPED_OK;
    enum roped_status status = read_all(&loading, path, err);
    for (i = 0; i < n && !status; i++)
        tenants_at(loading.tenants, i)->has_folder |=
            is_for(loading.tenants, i);
    return status;
}
