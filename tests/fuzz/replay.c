/* Runs a fuzzer's entry point over every file of the folders that are given: what a fuzzer once
 * found stays found. Fails when a folder is missing or empty. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file's bytes at the end of a heap block, so that a sanitizer sees reads past it. */
static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        perror(path);
        return 0;
    }
    (void)fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    int ok = size >= 0 && data != NULL && fread(data, 1, (size_t)size, f) == (size_t)size;
    (void)fclose(f);
    if (ok)
        (void)LLVMFuzzerTestOneInput(data, (size_t)size);
    else
        (void)fprintf(stderr, "%s: cannot read\n", path);
    free(data);
    return ok;
}

static int replay_folder(const char *folder, int *n_files)
{
    DIR *d = opendir(folder);
    int ok = 1;

    if (d == NULL) {
        perror(folder);
        return 0;
    }
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char path[4096];
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ok = replay_file(path) && ok;
        (*n_files)++;
    }
    (void)closedir(d);
    return ok;
}

int main(int argc, char **argv)
{
    int n_files = 0;
    int ok = 1;

    for (int i = 1; i < argc; i++)
        ok = replay_folder(argv[i], &n_files) && ok;
    (void)printf("%d inputs\n", n_files);
    return ok && n_files > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
