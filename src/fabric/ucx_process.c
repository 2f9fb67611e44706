/* Who a process is, beyond the life of its number, and whether it still runs.
 *
 * Why here: memory that a stopped or dying peer may still write can be freed only when the peer is
 * gone, and a number alone may by then name somebody else. It must not know connections. */
#include "base/clock.h"
#include "fabric/ucx_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bytes of a small file of /proc, ended by 0; 0: not there. */
static size_t read_file(const char *path, char *ret_text, size_t size)
{
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    while (n < size - 1) {
        ssize_t got = read(fd, ret_text + n, size - 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    (void)close(fd);
    ret_text[n] = 0;
    return n;
}

static uint64_t namespace_id(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* Start time in clock ticks (field 22 of /proc/PID/stat) and state; false: no such process. */
static bool read_start(uint32_t pid, uint64_t *ret_start, char *ret_state)
{
    enum { STATE_FIELD = 3, START_FIELD = 22 };
    char path[64], text[1024];

    (void)snprintf(path, sizeof path, "/proc/%u/stat", pid);
    if (read_file(path, text, sizeof text) == 0)
        return false;
    const char *at = strrchr(text, ')'); /* the name before it may hold anything */
    if (at == NULL || at[1] != ' ')
        return false;
    at += 2;
    *ret_state = *at;
    for (int field = STATE_FIELD; field < START_FIELD; field++) {
        at = strchr(at, ' ');
        if (at == NULL)
            return false;
        at++;
    }
    uint64_t start = 0;
    for (; *at >= '0' && *at <= '9'; at++)
        start = 10 * start + (uint64_t)(*at - '0');
    *ret_start = start;
    return true;
}

void ucx_process_self(struct ucx_process *ret)
{
    char state;

    *ret = (struct ucx_process){.pid = (uint32_t)getpid(),
                                .pid_ns = namespace_id("/proc/self/ns/pid")};
    if (!read_start(ret->pid, &ret->start, &state))
        ret->start = 0;
}

void ucx_watch_open(struct ucx_watch *ret, const struct ucx_process *process)
{
    uint64_t start;
    char state;

    *ret = (struct ucx_watch){.process = *process, .fd = -1};
    if (process->pid == 0 || process->pid > INT32_MAX || process->start == 0 ||
        process->pid_ns == 0 || process->pid_ns != namespace_id("/proc/self/ns/pid"))
        return;
    ret->can_judge = true;
    ret->fd = (int)syscall(SYS_pidfd_open, (pid_t)process->pid, 0);
    /* The number may have gone to somebody else before this: then the descriptor is not the peer's,
     * and the comparison of start times in ucx_watch_is_gone says that the peer is gone. */
    if (ret->fd >= 0 && (!read_start(process->pid, &start, &state) || start != process->start)) {
        (void)close(ret->fd);
        ret->fd = -1;
    }
}

void ucx_watch_close(struct ucx_watch *watch)
{
    if (watch->can_judge && watch->fd >= 0)
        (void)close(watch->fd);
    *watch = (struct ucx_watch){.fd = -1};
}

bool ucx_watch_is_gone(const struct ucx_watch *watch)
{
    uint64_t start;
    char state;

    if (!watch->can_judge)
        return false;
    if (watch->fd >= 0) {
        struct pollfd ended = {.fd = watch->fd, .events = POLLIN};
        return poll(&ended, 1, 0) == 1 && (ended.revents & POLLIN) != 0;
    }
    if (!read_start(watch->process.pid, &start, &state))
        return true;
    return start != watch->process.start || state == 'Z' || state == 'X';
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u; /* FNV-1a */
    return hash;
}

uint64_t ucx_host_id(void)
{
    char boot[64];
    size_t n = read_file("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    /* What UCX compares, too: its shared memory goes by the IPC and the PID namespace. */
    uint64_t spaces[] = {namespace_id("/proc/self/ns/ipc"), namespace_id("/proc/self/ns/pid")};
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, boot, n);

    hash = hash_bytes(hash, spaces, sizeof spaces);
    return hash == 0 ? 1 : hash;
}
