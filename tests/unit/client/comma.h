/*
 * comma.h - a locale in which half is 0,5.
 */
#ifndef ROPED_TESTS_UNIT_CLIENT_COMMA_H
#define ROPED_TESTS_UNIT_CLIENT_COMMA_H

#include "check.h"

#include <locale.h>
#include <stdlib.h>

/* A locale with a decimal comma, made where the machine has none. */
static inline bool comma_found(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR",
                                        "fr_FR.UTF-8", "de_DE"};
    char path[] = "/tmp/roped_test_XXXXXX", command[256];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (setlocale(LC_ALL, names[i]) &&
            localeconv()->decimal_point[0] == ',')
            return true;
    if (!mkdtemp(path))
        return false;
    snprintf(command, sizeof command,
             "localedef -c -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/log 2>&1", path,
             path);
    setenv("LOCPATH", path, 1);
    bool is_made = system(command) >= 0 && setlocale(LC_ALL, "de_DE.UTF-8") &&
                   localeconv()->decimal_point[0] == ',';
    snprintf(command, sizeof command, "rm -r %s", path);
    return system(command) == 0 && is_made;
}

/* From now on; says so where this machine has none and cannot make one. */
static inline void comma_use(void)
{
    if (!comma_found())
        printf("no locale with a decimal comma: numbers as in C\n");
    else
        CHECK(strtod("0.5", NULL) == 0);
}

#endif
