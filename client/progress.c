/*
 * progress.c - a progress bar that stays out of the way of short work.
 */
#include "progress.h"

#include "ropectl.h"

#include <time.h>

enum { BAR_CELLS = 24, LINE_CELLS = 79 };
static const double patience_seconds = 0.5, refresh_seconds = 0.1;

static struct progress {
    double start_seconds, shown_seconds;
    const char *what;     /* is being transferred, sent or received, */
    double since_seconds; /* and since when */
    bool is_terminal, is_shown;
} progress;

double progress_now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void progress_start(void)
{
    progress = (struct progress){.start_seconds = progress_now_seconds(),
                                 .is_terminal = is_terminal(stderr)};
}

/* Is it time to show something? */
static bool is_due(double now)
{
    if (!progress.is_terminal ||
        now - progress.start_seconds < patience_seconds ||
        now - progress.shown_seconds < refresh_seconds)
        return false;
    progress.shown_seconds = now;
    progress.is_shown = true;
    return true;
}

static void show_bar(const char *what, double done, double total)
{
    char bar[BAR_CELLS + 1];
    int cells = (int)(BAR_CELLS * done / total);
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i < cells ? '=' : i == cells ? '>' : ' ';
    bar[BAR_CELLS] = '\0';
    fprintf(stderr, "\r%-9s [%s] %3.0f%%", what, bar, 100 * done / total);
}

void progress_show(const char *what, double done, double total)
{
    if (total <= 0 || !is_due(progress_now_seconds()))
        return;
    show_bar(what, done, total);
    fflush(stderr);
}

/* Bytes in the unit of the largest of them. */
static double unit_of(double bytes, const char **name)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int i = 0;
    double unit = 1;
    for (; i < 4 && bytes >= 1024 * unit; i++)
        unit *= 1024;
    *name = names[i];
    return unit;
}

/* A bar where the end is known; bytes, and how many a second. The line is at
 * most 79 cells long. */
static void show_transfer(const char *what, double done, double total)
{
    double now = progress_now_seconds();
    const char *name, *rate_name;
    if (progress.what != what) {
        progress.what = what;
        progress.since_seconds = now;
    }
    double seconds = now - progress.since_seconds;
    if (!is_due(now))
        return;
    double rate = seconds > 0 ? done / seconds : 0,
           unit = unit_of(total > done ? total : done, &name),
           rate_unit = unit_of(rate, &rate_name);
    if (total > 0) {
        show_bar(what, done, total);
        fprintf(stderr, " %.1f of %.1f %s", done / unit, total / unit, name);
    } else {
        fprintf(stderr, "\r%-9s %.1f %s", what, done / unit, name);
    }
    fprintf(stderr, ", %.1f %s/s\033[K", rate / rate_unit, rate_name);
    fflush(stderr);
}

void progress_transfer(void *context, uint64_t sent, uint64_t to_send,
                       uint64_t received, uint64_t to_receive)
{
    static const char receiving[] = "receiving", sending[] = "sending";
    (void)context;
    if (received)
        show_transfer(receiving, (double)received, (double)to_receive);
    else if (to_send)
        show_transfer(sending, (double)sent, (double)to_send);
}

void progress_end(void)
{
    if (progress.is_shown)
        fprintf(stderr, "\r%*s\r", LINE_CELLS, "");
    progress.is_shown = false;
}
