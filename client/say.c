/*
 * say.c - what ropectl says, in one line on standard error, and texts as a
 * terminal may show them.
 */
#include "ropectl.h"

#include "printable.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void *must_have(void *memory)
{
    if (!memory) {
        fputs("ropectl: no memory\n", stderr);
        exit(EXIT_FAILURE);
    }
    return memory;
}

char *made_printable(const char *text)
{
    size_t bytes = printable_copy(text, NULL, 0);
    if (bytes == strlen(text)) /* an escape is longer than what it stands for */
        return NULL;
    char *made = must_have(malloc(bytes + 1));
    printable_copy(text, made, bytes + 1);
    return made;
}

void write_text(FILE *out, const char *text)
{
    char *made = made_printable(text);
    fputs(made ? made : text, out);
    free(made);
}

int fail(const struct roped_error *err)
{
    return fail_text("%s", err->text);
}

/* Text with what stands before it, as one line on standard error. */
static void say(const char *start, const char *command, const char *format,
                va_list arguments)
{
    char *text;
    must_have(vasprintf(&text, format, arguments) < 0 ? NULL : text);
    fprintf(stderr, "ropectl%s%s: ", start, command);
    write_text(stderr, text);
    fputc('\n', stderr);
    free(text);
}

int fail_text(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say("", "", format, arguments);
    va_end(arguments);
    return EXIT_FAILURE;
}

static const struct command *runs; /* NULL: none yet */

void command_is(const struct command *command)
{
    runs = command;
}

int usage(const char *command, const char *format, ...)
{
    bool has_usage = command && runs;
    va_list arguments;
    va_start(arguments, format);
    say(has_usage ? " " : "", has_usage ? command : "", format, arguments);
    va_end(arguments);
    if (has_usage)
        fprintf(stderr, "usage: ropectl %s %s\n", command, runs->arguments);
    return EXIT_USAGE;
}
