/* Slots of equal size. See slots.h. */
#include "expert/slots.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"

#include <stdbool.h>

enum { ALIGNMENT = 64 };

void slots_init(struct slots *slots, size_t slot_bytes)
{
    bool fits = round_up_size(slot_bytes, ALIGNMENT, &slot_bytes);

    FERRY_ASSERT(fits && slot_bytes > 0); /* the size of matrices that lie in a file */
    *slots = (struct slots){.slot_bytes = slot_bytes};
}

void slots_fini(struct slots *slots)
{
    for (size_t i = 0; i < slots->n_slabs; i++)
        map_free(slots->slabs[i].memory, slots->slabs[i].n_slots * slots->slot_bytes);
    mem_free(slots->slabs);
    mem_free(slots->returned);
    *slots = (struct slots){0};
}

static enum ferry_status no_memory(const struct slots *slots, size_t n, struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                      "experts: no memory for %zu more of %zu bytes each, beside %zu slots of that "
                      "size (%zu in use)",
                      n, slots->slot_bytes, slots->n_slots, slots->n_taken);
}

enum ferry_status slots_reserve(struct slots *slots, size_t n, struct ferry_error *err)
{
    size_t n_free = slots->n_slots - slots->n_taken, n_bytes = 0;

    if (n <= n_free)
        return FERRY_OK;
    n -= n_free;
    if (!mul_size(n, slots->slot_bytes, &n_bytes))
        return no_memory(slots, n, err);
    size_t array_bytes = (slots->n_slabs + 1) * sizeof *slots->slabs;
    unsigned char *memory = map_alloc(n_bytes, 1);
    struct slab *slabs = mem_resize(slots->slabs, slots->slabs_bytes, array_bytes);
    if (slabs != NULL) {
        slots->slabs = slabs;
        slots->slabs_bytes = array_bytes;
    }
    unsigned char **returned = mem_resize(slots->returned, slots->n_returned * sizeof *returned,
                                          (slots->n_slots + n) * sizeof *returned);
    if (returned != NULL)
        slots->returned = returned;
    if (memory == NULL || slabs == NULL || returned == NULL) {
        map_free(memory, n_bytes);
        return no_memory(slots, n, err);
    }
    slots->slabs[slots->n_slabs++] = (struct slab){memory, n, 0};
    slots->n_slots += n;
    return FERRY_OK;
}

unsigned char *slots_take(struct slots *slots)
{
    if (slots->n_taken == slots->n_slots)
        return NULL;
    slots->n_taken++;
    if (slots->n_returned > 0) /* written before: its pages are there */
        return slots->returned[--slots->n_returned];
    size_t i = 0;
    while (slots->slabs[i].n_used == slots->slabs[i].n_slots) {
        i++;
        FERRY_ASSERT(i < slots->n_slabs); /* not all are taken */
    }
    struct slab *slab = &slots->slabs[i];
    return slab->memory + slab->n_used++ * slots->slot_bytes;
}

void slots_give(struct slots *slots, unsigned char *slot)
{
    FERRY_ASSERT(slots->n_taken > 0 && slots->n_returned < slots->n_slots);
    slots->n_taken--;
    slots->returned[slots->n_returned++] = slot;
}

size_t slots_bytes(const struct slots *slots)
{
    return slots->n_slots * slots->slot_bytes;
}
