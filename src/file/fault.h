/* What happens when a mapped file shrinks under a reader: one line that names the file, exit 1.
 *
 * Why here: reading a mapping beyond the new end raises SIGBUS at any load instruction of any room;
 * there is no status to return. The application installs the handler; map.c keeps the registry. A
 * process that embeds Ferry and handles SIGBUS itself leaves the handler out and calls
 * checkpoint_recheck() before it reads. It must not know formats. */
#ifndef FILE_FAULT_H
#define FILE_FAULT_H

#include <stddef.h>

/* Remembers a mapping; `name` is copied (its end, made printable). Returns the slot, -1 when the
 * registry is full: the handler then cannot name the file. Any thread. */
int fault_register(const void *data, size_t size, const char *name);

/* Forgets it, before the mapping goes away. Slot -1 is allowed. */
void fault_unregister(int slot);

/* Installs the SIGBUS handler for the whole process: a fault inside a registered mapping prints
 * "ferry: error: file shrank while in use: NAME ..." on stderr and calls _exit(1); any other SIGBUS
 * takes the default action. 0, or -1 with errno. Once, before threads start. */
int fault_install(void);

#endif
