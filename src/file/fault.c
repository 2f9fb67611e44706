/* SIGBUS handler and its registry of mappings. See fault.h. */
#include "file/fault.h"

#include "base/limits.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = LIMIT_SHARDS + 64, NAME_BYTES = 128 };

/* `size` is written last and cleared first (release), and read first by the handler (acquire): a
 * slot with a size is complete. Writers hold `lock`; the handler takes no lock. */
static struct {
    atomic_size_t size;
    uintptr_t begin;
    char name[NAME_BYTES];
} slots[SLOTS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int fault_register(const void *data, size_t size, const char *name)
{
    int slot = -1;

    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < SLOTS && slot < 0; i++) {
        if (atomic_load_explicit(&slots[i].size, memory_order_relaxed) == 0)
            slot = i;
    }
    if (slot >= 0) {
        size_t n = strlen(name);
        size_t skip = n < NAME_BYTES ? 0 : n - (NAME_BYTES - 1);
        char *to = slots[slot].name;
        memcpy(to, name + skip, n - skip + 1);
        for (; *to != 0; to++) {
            if ((unsigned char)*to < 0x20 || *to == 0x7F)
                *to = '?';
        }
        slots[slot].begin = (uintptr_t)data;
        atomic_store_explicit(&slots[slot].size, size, memory_order_release);
    }
    (void)pthread_mutex_unlock(&lock);
    return slot;
}

void fault_unregister(int slot)
{
    if (slot < 0)
        return;
    (void)pthread_mutex_lock(&lock);
    atomic_store_explicit(&slots[slot].size, 0, memory_order_release);
    (void)pthread_mutex_unlock(&lock);
}

static void put(char *line, size_t *used, size_t size, const char *text)
{
    while (*text != 0 && *used < size)
        line[(*used)++] = *text++;
}

/* Async-signal-safe: reads the table, writes one line, exits. */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;

    (void)context;
    for (int i = 0; i < SLOTS; i++) {
        size_t size = atomic_load_explicit(&slots[i].size, memory_order_acquire);
        if (size == 0 || at < slots[i].begin || at - slots[i].begin >= size)
            continue;
        char line[NAME_BYTES + 160];
        size_t used = 0;
        put(line, &used, sizeof line, "ferry: error: file shrank while in use: ");
        put(line, &used, sizeof line, slots[i].name);
        put(line, &used, sizeof line, " (or its disk failed); restore the file and start again\n");
        ssize_t n = write(STDERR_FILENO, line, used);
        (void)n;
        _exit(1);
    }
    /* Not ours: the default action when the instruction runs again. */
    (void)signal(sig, SIG_DFL);
}

int fault_install(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO;
    (void)sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, NULL);
}
