/*
 * replay.c - runs a fuzz target on every file of a folder, without libFuzzer:
 * what was once found stays fixed.
 */
#include "fuzz.h"

#include <dirent.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 20 };

static void replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *space = malloc(MAX_FILE_BYTES);
    if (!file || !space) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    size_t bytes = fread(space, 1, MAX_FILE_BYTES, file);
    fclose(file);
    /* exactly as long as the input: reading past it is seen */
    uint8_t *input = malloc(bytes ? bytes : 1);
    FUZZ_PROMISE(input != NULL);
    memcpy(input, space, bytes);
    free(space);
    LLVMFuzzerTestOneInput(input, bytes);
    free(input);
}

int main(int n_arguments, char **arguments)
{
    int n_files = 0;
    DIR *folder = n_arguments == 2 ? opendir(arguments[1]) : NULL;
    const struct dirent *entry;
    if (!folder) {
        fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
        return EXIT_FAILURE;
    }
    while ((entry = readdir(folder))) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", arguments[1], entry->d_name);
        replay(path);
        n_files++;
    }
    closedir(folder);
    printf("%d inputs\n", n_files);
    return n_files ? EXIT_SUCCESS : EXIT_FAILURE;
}
