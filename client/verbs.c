/*
 * verbs.c - the verbs of a command, as in "regions get NAME FILE": finds the
 * one that is asked for, and says what it lacks.
 */
#include "ropectl.h"

#include <stdlib.h>
#include <string.h>

static const struct verb *find_verb(const struct verb *verbs, const char *name)
{
    for (; verbs->name; verbs++)
        if (strcmp(verbs->name, name) == 0)
            return verbs;
    return NULL;
}

static int unknown_verb(const char *command, const struct verb *verbs,
                        const char *name)
{
    char text[128];
    struct roped_nearest nearest = {.word = name};
    for (; verbs->name; verbs++)
        roped_nearest_offer(&nearest, verbs->name);
    return usage(command, "no verb '%s'%s", name,
                 roped_nearest_text(&nearest, text, sizeof text));
}

/* Exit code, after saying which of the words that the verb needs is not there.
 * An option is none of them. */
static int check_words(const char *command, const struct verb *verb, int argc,
                       char **argv)
{
    const char *need = verb->needs, *space = need[0] ? " " : "";
    int n = 0;
    for (; *need; need += strspn(need, " "), n++) {
        int bytes = (int)strcspn(need, " ");
        if (n >= argc || (strncmp(argv[n], "--", 2) == 0 && argv[n][2]))
            return usage(command, "'%s' has no %.*s, expected '%s %s'",
                         verb->name, bytes, need, verb->name, verb->needs);
        need += bytes;
    }
    if (n < argc && !verb->takes_more)
        return usage(command, "'%s' is a word too many, expected '%s%s%s'",
                     argv[n], verb->name, space, verb->needs);
    return EXIT_SUCCESS;
}

int run_verb(const struct ropectl *ctl, const char *command, const char *folder,
             const struct verb *verbs, int argc, char **argv)
{
    bool may_be_left_out = !verbs[0].needs[0];
    if (argc < 2 && !may_be_left_out)
        return usage(command, "no verb, expected '%s %s'", verbs[0].name,
                     verbs[0].needs);
    const char *name = argc < 2 ? verbs[0].name : argv[1];
    const struct verb *verb = find_verb(verbs, name);
    if (!verb)
        return unknown_verb(command, verbs, name);
    argc = argc < 2 ? 0 : argc - 2;
    argv += 2;
    int code = check_words(command, verb, argc, argv);
    if (code)
        return code;
    char *path = argc > 0 && folder ? path_to(folder, argv[0]) : NULL;
    if (argc > 0 && folder && !path)
        return EXIT_USAGE;
    code = verb->run(ctl, path, argc, argv);
    free(path);
    return code;
}

int verb_get(const struct ropectl *ctl, const char *path, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return print_answer(ctl, &(struct request){"GET", path});
}

int verb_delete(const struct ropectl *ctl, const char *path, int argc,
                char **argv)
{
    (void)argc;
    (void)argv;
    return print_answer(ctl, &(struct request){"DELETE", path});
}
