/* Memory for packed experts: pieces of one size, cut from slabs of huge pages.
 *
 * Why here: experts come and go while a model serves. Equal pieces never fragment, and memory that
 * was given back serves the next one. A slab costs address space at once and memory only where it
 * is written. It must not know experts. One thread at a time; nothing here waits. */
#ifndef EXPERT_SLOTS_H
#define EXPERT_SLOTS_H

#include "ferry/status.h"

#include <stddef.h>

struct slab {
    unsigned char *memory;
    size_t n_slots, n_used; /* handed out at least once: the first n_used */
};

struct slots {
    size_t slot_bytes; /* 64-byte multiple */
    struct slab *slabs;
    size_t n_slabs, slabs_bytes; /* bytes of the array */
    unsigned char **returned;    /* [n_slots] given back, the last first */
    size_t n_returned, n_slots, n_taken;
};

/* No slots yet. slot_bytes > 0 is rounded up to 64. */
void slots_init(struct slots *slots, size_t slot_bytes);
void slots_fini(struct slots *slots);

/* Makes at least n slots free, by one slab more if need be. FERRY_ERR_NOMEM (err has the sizes);
 * nothing has changed then. */
enum ferry_status slots_reserve(struct slots *slots, size_t n,
                                struct ferry_error *err) FERRY_MUST_CHECK;

/* A free slot, 64-byte aligned, undefined contents; NULL: none is free. */
unsigned char *slots_take(struct slots *slots);
void slots_give(struct slots *slots, unsigned char *slot);

/* Bytes of all slabs. */
size_t slots_bytes(const struct slots *slots);

#endif
