/*
 * number.h - numbers as text, in digits with a point whatever the program's
 * locale: what servers and files write, and what they read.
 */
#ifndef ROPED_CLIENT_NUMBER_H
#define ROPED_CLIENT_NUMBER_H

#include <stddef.h>

/* strtod, and snprintf of one double, in the locale "C". */
double number_read(const char *text, char **end);
int number_write(char *to, size_t room, const char *format, double number);

#endif
