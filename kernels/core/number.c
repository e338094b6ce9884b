/*
 * number.c - strtod and printf in the C locale.
 */
#include <roped/number.h>

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* Of this thread alone. Returns the locale to go back to. There is one "C" in
 * glibc and in musl, which newlocale neither makes nor wants freed. */
static locale_t use_plain(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

double roped_read_number(const char *text, char **end)
{
    locale_t before = use_plain();
    double value = strtod(text, end);
    uselocale(before);
    return value;
}

int roped_vprint(char *text, size_t bytes, const char *format,
                 va_list arguments)
{
    locale_t before = use_plain();
    int length = vsnprintf(text, bytes, format, arguments);
    uselocale(before);
    return length;
}

int roped_print(char *text, size_t bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = roped_vprint(text, bytes, format, arguments);
    va_end(arguments);
    return length;
}

bool roped_read_size(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        uint64_t digit = (uint64_t)(*text - '0');
        if (*text < '0' || *text > '9' ||
            value > ((uint64_t)INT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    return true;
}
