/*
 * progress.c - a progress bar that stays out of the way of short work.
 */
#include "progress.h"

#include "ropectl.h"

#include <time.h>

enum { BAR_CELLS = 32 };
static const double patience_seconds = 0.5, refresh_seconds = 0.1;

static struct progress {
    double start_seconds, shown_seconds;
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

void progress_show(const char *what, double done, double total)
{
    char bar[BAR_CELLS + 1];
    double now = progress_now_seconds();
    if (!progress.is_terminal || total <= 0 ||
        now - progress.start_seconds < patience_seconds ||
        now - progress.shown_seconds < refresh_seconds)
        return;
    progress.shown_seconds = now;
    progress.is_shown = true;
    int cells = (int)(BAR_CELLS * done / total);
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i < cells ? '=' : i == cells ? '>' : ' ';
    bar[BAR_CELLS] = '\0';
    fprintf(stderr, "\r%-9s [%s] %3.0f%%", what, bar, 100 * done / total);
    fflush(stderr);
}

void progress_transfer(void *context, uint64_t sent, uint64_t to_send,
                       uint64_t received, uint64_t to_receive)
{
    (void)context;
    if (received)
        progress_show("receiving", (double)received, (double)to_receive);
    else
        progress_show("sending", (double)sent, (double)to_send);
}

void progress_end(void)
{
    if (progress.is_shown)
        fprintf(stderr, "\r%*s\r", BAR_CELLS + 20, "");
    progress.is_shown = false;
}
