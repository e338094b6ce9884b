/*
 * number.c - the one reader and the one writer of numbers.
 */
#include "number.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain; /* never freed; 0 where there is no memory for it */

static void make_plain(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* This thread's locale until now. With (locale_t)0 nothing changes. */
static locale_t use_plain(void)
{
    pthread_once(&once, make_plain);
    return uselocale(plain);
}

double number_read(const char *text, char **end)
{
    locale_t before = use_plain();
    double number = strtod(text, end);
    uselocale(before);
    return number;
}

int number_write(char *to, size_t room, const char *format, double number)
{
    locale_t before = use_plain();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int bytes = snprintf(to, room, format, number);
#pragma GCC diagnostic pop
    uselocale(before);
    return bytes;
}
