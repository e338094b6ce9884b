/*
 * progress.h - a bar on standard error for transfers that take a while, on a
 * terminal only.
 */
#ifndef ROPED_CLIENT_PROGRESS_H
#define ROPED_CLIENT_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    double start_seconds, shown_seconds;
    bool is_terminal, is_shown;
};

void progress_start(struct progress *progress);

/* A roped_client progress function; context is a struct progress. */
void progress_transfer(void *context, uint64_t sent, uint64_t to_send,
                       uint64_t received, uint64_t to_receive);

/* A bar of done out of total with a word of what. */
void progress_show(struct progress *progress, const char *what, double done,
                   double total);

/* Takes the bar away. */
void progress_end(struct progress *progress);

double progress_now_seconds(void);

#endif
