/*
 * restart.c - from a device that is lost to the next process.
 */
#include "restart.h"

#include "log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_SECONDS = 300, /* HANDOVER_TIMES restarts in so many, and no more */
    ANSWER_MS = 1000,   /* for the answers of calls that were under way */
    QUIET_MS = 20,      /* that long nobody waits for one any more */
    PAUSE_MS = 5
};

/* Counts from the machine's start, whatever its clock is set to. */
static uint64_t now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec;
}

/* Notes one more restart; false: that is one too many. */
static bool count_restart(struct handover *next)
{
    uint64_t now = now_seconds();
    bool is_full = next->n_times == HANDOVER_TIMES;
    if (is_full && now - next->time_seconds[0] < MOST_SECONDS)
        return false;
    if (is_full)
        memmove(next->time_seconds, next->time_seconds + 1,
                (size_t)--next->n_times * sizeof *next->time_seconds);
    next->time_seconds[next->n_times++] = now;
    next->n_restarts++;
    return true;
}

/* ------------------------------------------------------------------- names */

/* The names of the process that ends. */
struct leaving {
    struct handover_writer writer;
    const char *why;
};

static void leave_name(struct leaving *leaving, const char *kind,
                       const struct tenant *tenant, const char *name,
                       const char *why)
{
    struct handover_name line = {kind, tenant->name, name, why};
    handover_write_name(&leaving->writer, &line);
}

static const char table_kind[] = "table", program_kind[] = "program";

static void leave_region(void *context, const struct region_info *info)
{
    struct leaving *leaving = context;
    leave_name(leaving, region_kind_name(info->kind), info->tenant, info->name,
               leaving->why);
}

static void leave_table(void *context, const struct table_info *info)
{
    struct leaving *leaving = context;
    leave_name(leaving, table_kind, info->tenant, info->set->name,
               leaving->why);
}

static void leave_program(void *context, struct program *program)
{
    struct leaving *leaving = context;
    leave_name(leaving, program_kind, program->tenant, program->name,
               leaving->why);
}

/* What was lost before, and nobody has made anew. */
static void leave_lost_region(void *context, const struct lost_name *name)
{
    leave_name(context, region_kind_name((enum region_kind)name->kind),
               name->tenant, name->name, name->why);
}

static void leave_lost_table(void *context, const struct lost_name *name)
{
    leave_name(context, table_kind, name->tenant, name->name, name->why);
}

static void leave_lost_program(void *context, const struct lost_name *name)
{
    leave_name(context, program_kind, name->tenant, name->name, name->why);
}

static void leave_names(struct executor *exec, struct leaving *leaving)
{
    struct regions *regions = exec_regions(exec);
    struct tables *tables = exec_tables(exec);
    struct programs *programs = exec_programs(exec);
    regions_each(regions, &tenant_everyone, leave_region, leaving);
    tables_each(tables, &tenant_everyone, leave_table, leaving);
    programs_each(programs, &tenant_everyone, leave_program, leaving);
    lost_each(regions_lost(regions), leave_lost_region, leaving);
    lost_each(tables_lost(tables), leave_lost_table, leaving);
    lost_each(programs_lost(programs), leave_lost_program, leaving);
}

static int region_kind(const char *name)
{
    int kind = 0;
    while (kind < REGION_KINDS &&
           strcmp(region_kind_name((enum region_kind)kind), name) != 0)
        kind++;
    return kind;
}

static bool note_lost(struct executor *exec, const struct handover_name *line)
{
    struct tenant *tenant;
    struct roped_error err;
    struct lost_name lost = {.kind = region_kind(line->kind), .why = line->why};
    if (tenants_get(exec_tenants(exec), line->tenant, &tenant, &err))
        return false;
    lost.tenant = tenant;
    snprintf(lost.name, sizeof lost.name, "%s", line->name);
    return strcmp(line->kind, table_kind) == 0
               ? lost_add(tables_lost(exec_tables(exec)), &lost)
           : strcmp(line->kind, program_kind) == 0
               ? lost_add(programs_lost(exec_programs(exec)), &lost)
           : lost.kind < REGION_KINDS
               ? lost_add(regions_lost(exec_regions(exec)), &lost)
               : false;
}

void restart_note_lost(struct executor *exec, const struct handover *before)
{
    int n = 0;
    if (!before->backend[0])
        return;
    for (int i = 0; i < before->n_names; i++)
        n += note_lost(exec, &before->name[i]);
    log_line(n < before->n_names ? LOG_WARN : LOG_INFO, "restarted",
             "restarts=%llu lost=%d forgotten=%d",
             (unsigned long long)before->n_restarts, n, before->n_names - n);
}

/* ----------------------------------------------------------------- the end */

/* New calls and those that wait are refused; those on the device end by
 * themselves, because it fails. */
static void end_calls(const struct restart *restart, const char *why)
{
    daemon_set_draining(restart->daemon);
    exec_refuse(restart->exec, why);
    daemon_leave_listener(restart->daemon);
    int quiet_ms = 0;
    for (int ms = 0; ms < ANSWER_MS && quiet_ms < QUIET_MS; ms += PAUSE_MS) {
        quiet_ms = daemon_is_busy(restart->daemon) ? 0 : quiet_ms + PAUSE_MS;
        usleep(PAUSE_MS * 1000);
    }
}

static enum roped_status write_handover(const struct restart *restart,
                                        struct handover *next,
                                        struct leaving *leaving,
                                        struct roped_error *err)
{
    /* but for the sockets and the handover, which come next */
    (void)close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
    daemon_hand_over(restart->daemon, next);
    snprintf(next->backend, sizeof next->backend, "%s",
             exec_backend(restart->exec)->name);
    enum roped_status status = handover_open(next, &leaving->writer, err);
    if (status)
        return status;
    leave_names(restart->exec, leaving);
    return handover_finish(&leaving->writer, err);
}

/* This environment and one more entry. Not freed: exec is next. */
static char **environment_with(char *entry)
{
    size_t n = 0;
    while (environ[n])
        n++;
    char **copy = calloc(n + 2, sizeof *copy);
    if (!copy)
        return environ;
    memcpy(copy, environ, n * sizeof *copy);
    copy[n] = entry;
    return copy;
}

static void execute(const struct restart *restart, struct handover *next,
                    const char *why)
{
    struct roped_error err;
    struct leaving leaving = {.why = why};
    char quoted[2 * ROPED_ERROR_BYTES];
    if (write_handover(restart, next, &leaving, &err) == ROPED_OK) {
        execve("/proc/self/exe", restart->arguments,
               environment_with(leaving.writer.entry));
        roped_fail(&err, ROPED_INTERNAL, "cannot execute /proc/self/exe: %s",
                   strerror(errno));
    }
    log_line(LOG_ERROR, "restart", "error=\"%s\"",
             log_quote(err.text, quoted, sizeof quoted));
}

void restart_process(const struct restart *restart, int device,
                     const struct roped_error *why)
{
    static char refusal[ROPED_ERROR_BYTES], lost[ROPED_ERROR_BYTES];
    struct handover next = *restart->before;
    char date[32], quoted[2 * ROPED_ERROR_BYTES];
    time_t now = time(NULL);
    struct tm utc;
    bool goes_on = count_restart(&next);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    snprintf(lost, sizeof lost, "lost when device %d was reset at %s: %.400s",
             device, date, why->text);
    snprintf(refusal, sizeof refusal,
             "device %d is lost and the server %s: %.400s", device,
             goes_on ? "starts again" : "ends", why->text);
    log_line(LOG_ERROR, "device_lost", "device=%d restarts=%llu error=\"%s\"",
             device, (unsigned long long)next.n_restarts,
             log_quote(why->text, quoted, sizeof quoted));
    end_calls(restart, refusal);
    if (goes_on)
        execute(restart, &next, lost);
    else
        log_line(LOG_ERROR, "restart",
                 "error=\"%d restarts within %d s, the most there may be\"",
                 HANDOVER_TIMES, MOST_SECONDS);
}
