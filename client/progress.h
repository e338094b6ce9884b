/*
 * progress.h - a bar on standard error for transfers that take a while, on a
 * terminal only. A program has one, of one thread.
 */
#ifndef ROPED_CLIENT_PROGRESS_H
#define ROPED_CLIENT_PROGRESS_H

#include <stdint.h>

/* Work begins; it is not long enough for a bar yet. */
void progress_start(void);

/* A roped_client progress function, without a context. */
void progress_transfer(void *context, uint64_t sent, uint64_t to_send,
                       uint64_t received, uint64_t to_receive);

/* A bar of done out of total with a word of what. */
void progress_show(const char *what, double done, double total);

/* Takes the bar away. */
void progress_end(void);

double progress_now_seconds(void);

#endif
