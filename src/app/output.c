/* A file that a verb writes: it appears whole or not at all. See app.h.
 *
 * Why here: --out takes a path from a user, who may name a device, a pipe, a link, or by mistake a
 * file of the model that is being read. */
#include "app/app.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const int ENDING[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_ENDING = sizeof ENDING / sizeof ENDING[0] };

/* What a signal leaves behind otherwise; empty: nothing. One output at a time. */
static char unfinished[PATH_MAX];

static void on_end(int sig)
{
    (void)unlink(unfinished);
    (void)signal(sig, SIG_DFL);
    (void)raise(sig);
}

static void catch_ending(void (*handler)(int))
{
    for (int i = 0; i < N_ENDING; i++) {
        if (signal(ENDING[i], handler) == SIG_IGN) /* nohup, say: stays ignored */
            (void)signal(ENDING[i], SIG_IGN);
    }
}

static enum ferry_status cannot_write(const char *path, struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_IO, "cannot write '%s': %s", path, strerror(errno));
}

/* Nothing is unfinished any more. */
static void forget_part(void)
{
    catch_ending(SIG_DFL);
    unfinished[0] = 0;
}

/* place: where the finished file goes; a link stays and what it points to is replaced. */
static enum ferry_status open_part(struct output *o, const char *path, bool exists,
                                   struct ferry_error *err)
{
    char *real = exists ? realpath(path, NULL) : NULL;
    int n = snprintf(o->place, sizeof o->place, "%s", real != NULL ? real : path);
    int n_part = snprintf(unfinished, sizeof unfinished, "%s.part", o->place);

    free(real); /* realpath's own */
    if (n < 0 || (size_t)n >= sizeof o->place || n_part < 0 ||
        (size_t)n_part >= sizeof unfinished) {
        unfinished[0] = 0;
        return FERRY_FAIL(err, FERRY_ERR_ARG, "'%.60s...': the path is too long", path);
    }
    catch_ending(on_end);
    int fd = open(unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    o->f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (o->f != NULL)
        return FERRY_OK;
    enum ferry_status st = cannot_write(unfinished, err);
    if (fd >= 0) {
        (void)close(fd);
        (void)unlink(unfinished);
    }
    forget_part(); /* what could not be opened is somebody else's and stays */
    return st;
}

enum ferry_status output_open(struct output *o, const char *path, const struct checkpoint *source,
                              struct ferry_error *err)
{
    struct stat info;
    bool exists = stat(path, &info) == 0;

    *o = (struct output){0};
    if (exists && S_ISDIR(info.st_mode))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "cannot write '%s': it is a folder", path);
    if (exists && checkpoint_reads(source, info.st_dev, info.st_ino))
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "'%s' is a file of the model that is being read; choose another name",
                          path);
    if (!exists || S_ISREG(info.st_mode))
        return open_part(o, path, exists, err);
    o->f = fopen(path, "we"); /* a device or a pipe takes bytes as they come */
    return o->f != NULL ? FERRY_OK : cannot_write(path, err);
}

enum ferry_status output_close(struct output *o, const char *path, enum ferry_status st,
                               struct ferry_error *err)
{
    bool written = o->f == NULL || fclose(o->f) == 0;

    if (st == FERRY_OK && !written)
        st = cannot_write(path, err);
    if (unfinished[0] != 0) {
        if (st == FERRY_OK && rename(unfinished, o->place) != 0)
            st = cannot_write(path, err);
        if (st != FERRY_OK)
            (void)unlink(unfinished);
        forget_part();
    }
    return st;
}
