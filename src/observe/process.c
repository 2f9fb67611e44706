/* The process as the kernel sees it. See process.h. Source: proc(5); names: "Prometheus, Writing
 * client libraries, Process metrics". */
#include "observe/process.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { FILE_MAX = 8 << 10, STAT_THREADS = 20, STAT_STARTTIME = 22, STAT_VSIZE = 23, STAT_RSS = 24 };

/* "" when the file cannot be read; what is longer than size is cut. */
static void read_file(const char *path, char *text, size_t size)
{
    size_t used = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && used < size - 1) {
        ssize_t n = read(fd, text + used, size - 1 - used);
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    if (fd >= 0)
        (void)close(fd);
    text[used] = 0;
}

static double number_at(const char *text)
{
    char *end = NULL;

    while (*text == ' ' || *text == '\t')
        text++;
    if (!isdigit((unsigned char)*text))
        return (double)NAN;
    double value = (double)strtoull(text, &end, 10);
    return *end == ' ' || *end == '\n' || *end == 0 ? value : (double)NAN;
}

double process_status_bytes(const char *text, const char *name)
{
    size_t n = strlen(name);

    while (text != NULL && *text != 0) {
        if (strncmp(text, name, n) == 0 && text[n] == ':')
            return number_at(text + n + 1) * 1024;
        text = strchr(text, '\n');
        text = text != NULL ? text + 1 : NULL;
    }
    return (double)NAN;
}

double process_stat_field(const char *text, size_t number)
{
    const char *at = strrchr(text, ')'); /* the end of field 2 */

    for (size_t i = 2; at != NULL && i < number; i++) {
        at = strchr(at, ' ');
        at = at != NULL ? at + 1 : NULL;
    }
    return at != NULL && number > 2 ? number_at(at) : (double)NAN;
}

/* When the machine was started, in seconds since 1970: one number for its whole life, whatever is
 * done to the clock later. */
static double boot_time(void)
{
    char line[FILE_MAX];

    /* The line stands behind one of each processor and one of all interrupts: long. */
    int fd = open("/proc/stat", O_RDONLY | O_CLOEXEC);
    double value = (double)NAN;
    size_t kept = 0;
    while (fd >= 0 && isnan(value)) {
        ssize_t n = read(fd, line + kept, sizeof line - 1 - kept);
        if (n <= 0)
            break;
        kept += (size_t)n;
        line[kept] = 0;
        const char *at = strstr(line, "\nbtime ");
        if (at != NULL && strchr(at + 1, '\n') != NULL) {
            value = number_at(at + 7);
        } else if (kept > sizeof line / 2) {
            memmove(line, line + kept - 64, 64); /* enough for a line that was cut */
            kept = 64;
        }
    }
    if (fd >= 0)
        (void)close(fd);
    return value;
}

static double n_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    double n = 0;

    if (dir == NULL)
        return (double)NAN;
    for (const struct dirent *d = readdir(dir); d != NULL; d = readdir(dir))
        n += d->d_name[0] != '.';
    (void)closedir(dir);
    return n - 1; /* the folder's own */
}

static double now_s(clockid_t clock)
{
    struct timespec t;

    return clock_gettime(clock, &t) == 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec
                                         : (double)NAN;
}

static void show(struct exposition *e, const char *name, enum metric_type type, const char *help,
                 double value)
{
    if (isnan(value))
        return;
    exposition_family(e, name, type, help);
    exposition_value(e, name, NULL, 0, value);
}

void process_expose(struct exposition *e)
{
    char stat[FILE_MAX], status[FILE_MAX];
    struct rlimit fds = {0};
    double ticks = (double)sysconf(_SC_CLK_TCK), page = (double)sysconf(_SC_PAGESIZE);

    read_file("/proc/self/stat", stat, sizeof stat);
    read_file("/proc/self/status", status, sizeof status);
    double started = process_stat_field(stat, STAT_STARTTIME) / ticks; /* since the boot */
    double max_fds = getrlimit(RLIMIT_NOFILE, &fds) != 0 ? (double)NAN
                     : fds.rlim_cur == RLIM_INFINITY     ? (double)INFINITY
                                                         : (double)fds.rlim_cur;
    const enum metric_type gauge = METRIC_TYPE_GAUGE;

    show(e, "process_cpu_seconds_total", METRIC_TYPE_COUNTER, "Processor time, user and system.",
         now_s(CLOCK_PROCESS_CPUTIME_ID));
    show(e, "process_resident_memory_bytes", gauge,
         "Memory in use, pages of mapped files included.",
         process_stat_field(stat, STAT_RSS) * page);
    show(e, "process_virtual_memory_bytes", gauge, "Address space in use.",
         process_stat_field(stat, STAT_VSIZE));
    show(e, "ferry_memory_anonymous_bytes", gauge,
         "Memory in use that is no file's: packed weights, KV cache, buffers, heap.",
         process_status_bytes(status, "RssAnon"));
    show(e, "ferry_memory_swapped_bytes", gauge, "Memory that was moved to swap.",
         process_status_bytes(status, "VmSwap"));
    show(e, "process_open_fds", gauge, "Open descriptors.", n_descriptors());
    show(e, "process_max_fds", gauge, "Descriptors that may be open.", max_fds);
    show(e, "process_threads", gauge, "Threads.", process_stat_field(stat, STAT_THREADS));
    show(e, "process_start_time_seconds", gauge, "When the process was started, since 1970.",
         boot_time() + started);
    show(e, "ferry_uptime_seconds", gauge, "Age of the process.", now_s(CLOCK_BOOTTIME) - started);
}
