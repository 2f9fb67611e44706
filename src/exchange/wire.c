/* Requests and replies. See wire.h. */
#include "exchange/wire.h"

#include "base/error.h"
#include "base/size.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

size_t wire_row_bytes(const struct wire_shape *shape, unsigned flags)
{
    return ((flags & WIRE_A32) != 0 ? shape->a32_bytes : 0) +
           ((flags & WIRE_F32) != 0 ? shape->f32_floats * sizeof(float) : 0);
}

/* Groups: one row, experts ascending, at most LIMIT_TOP_K pairs. */
static enum ferry_status check_pairs(struct wire_request *request,
                                     const struct exchange_pair *pairs,
                                     const struct wire_shape *shape, struct ferry_error *err)
{
    size_t in_group = 0;

    request->n_groups = 0;
    for (size_t i = 0; i < request->n_pairs; i++) {
        const struct exchange_pair *p = &pairs[i];
        if (p->row >= request->n_rows || p->expert >= shape->n_experts || p->begins > 1)
            return FERRY_FAIL(err, FERRY_ERR_FORMAT, "pair %zu: row %u of %zu, expert %u of %zu", i,
                              p->row, request->n_rows, p->expert, shape->n_experts);
        if (p->begins != 0) {
            request->n_groups++;
            in_group = 1;
        } else if (in_group == 0 || in_group == LIMIT_TOP_K || p->row != pairs[i - 1].row ||
                   p->expert <= pairs[i - 1].expert) {
            return FERRY_FAIL(err, FERRY_ERR_FORMAT, "pair %zu: not a member of its group", i);
        } else {
            in_group++;
        }
    }
    return FERRY_OK;
}

/* The rows at the beginning of a payload; returns where they end. */
static const unsigned char *rows_at(const unsigned char *data, const struct wire_shape *shape,
                                    unsigned flags, size_t n_rows, struct exchange_rows *ret)
{
    *ret = (struct exchange_rows){0};
    if ((flags & WIRE_A32) != 0) {
        ret->a32 = data;
        ret->a32_bytes = shape->a32_bytes;
        data += n_rows * shape->a32_bytes;
    }
    if ((flags & WIRE_F32) != 0) {
        ret->f32 = (const float *)(const void *)data;
        ret->f32_stride = shape->f32_floats;
        data += n_rows * shape->f32_floats * sizeof(float);
    }
    return data;
}

enum ferry_status wire_request_read(struct wire_request *ret, struct exchange_pair *pairs,
                                    const struct wire_shape *shape,
                                    const struct fabric_message *message, struct ferry_error *err)
{
    const struct lane_header *h = &message->header;
    unsigned flags = h->kind;
    size_t row_bytes = wire_row_bytes(shape, flags);

    if ((flags & WIRE_KIND_MASK) != WIRE_ROWS || row_bytes == 0 || h->layer >= shape->n_layers)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "kind %x at layer %u of %zu", flags, h->layer,
                          shape->n_layers);
    if (h->n_pairs > shape->max_slots || h->n_rows > h->n_pairs || h->n_pairs == 0 ||
        h->n_bytes != h->n_rows * row_bytes + h->n_pairs * sizeof *pairs)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "%u bytes for %u rows of %zu bytes and %u pairs",
                          h->n_bytes, h->n_rows, row_bytes, h->n_pairs);
    *ret = (struct wire_request){.n_rows = h->n_rows, .n_pairs = h->n_pairs};
    const unsigned char *data = rows_at(message->data, shape, flags, ret->n_rows, &ret->rows);
    memcpy(pairs, data, ret->n_pairs * sizeof *pairs);
    return check_pairs(ret, pairs, shape, err);
}

/* ---- bundles ---- */

static size_t member_bytes(const struct wire_member *m)
{
    return m->n_rows * sizeof(uint32_t) + m->n_pairs * sizeof(struct exchange_pair);
}

size_t wire_bundle_bytes(const struct wire_shape *shape, unsigned flags, size_t n_rows,
                         const struct wire_member *members, size_t n_members)
{
    size_t n = n_rows * wire_row_bytes(shape, flags) + n_members * sizeof *members;

    for (size_t i = 0; i < n_members; i++)
        n += member_bytes(&members[i]);
    return n;
}

enum ferry_status wire_bundle_read(struct wire_bundle *ret, const struct wire_shape *shape,
                                   const struct fabric_message *message, struct ferry_error *err)
{
    const struct lane_header *h = &message->header;
    unsigned flags = h->kind;
    size_t row_bytes = wire_row_bytes(shape, flags), n_members = h->n_groups;

    if ((flags & WIRE_KIND_MASK) != WIRE_BUNDLE || row_bytes == 0 || h->layer >= shape->n_layers)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "kind %x at layer %u of %zu", flags, h->layer,
                          shape->n_layers);
    if (n_members == 0 || n_members > LIMIT_SEATS || h->n_rows > h->n_bytes / row_bytes ||
        h->n_bytes < h->n_rows * row_bytes + n_members * sizeof *ret->members)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "%u bytes for %u rows of %zu bytes, %zu members",
                          h->n_bytes, h->n_rows, row_bytes, n_members);
    if (h->n_rows > shape->max_slots)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "%u rows, more than any round has", h->n_rows);
    ret->n_rows = h->n_rows;
    ret->n_members = n_members;
    const unsigned char *data = rows_at(message->data, shape, flags, h->n_rows, &ret->rows);
    memcpy(ret->members, data, n_members * sizeof *ret->members);
    data += n_members * sizeof *ret->members;
    size_t left = (size_t)(message->data + h->n_bytes - data), n_pairs = 0;
    for (size_t i = 0; i < n_members; i++) {
        const struct wire_member *m = &ret->members[i];
        if (m->n_pairs == 0 || m->n_pairs > shape->max_slots || m->n_rows > m->n_pairs ||
            m->more > 1 || member_bytes(m) > left)
            return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                              "member %zu: %u rows and %u pairs in %zu bytes", i, m->n_rows,
                              m->n_pairs, left);
        ret->data[i] = data;
        data += member_bytes(m);
        left -= member_bytes(m);
        n_pairs += m->n_pairs;
    }
    /* The header is a copy; by its number the receiver reckons what fits. */
    if (left != 0 || n_pairs != h->n_pairs)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "%zu bytes too many; %zu pairs instead of %u",
                          left, n_pairs, h->n_pairs);
    return FERRY_OK;
}

enum ferry_status wire_member_rows(const struct wire_bundle *bundle, size_t m, uint32_t *ret_rows,
                                   struct ferry_error *err)
{
    size_t n = bundle->members[m].n_rows;

    memcpy(ret_rows, bundle->data[m], n * sizeof *ret_rows);
    for (size_t i = 0; i < n; i++) {
        if (ret_rows[i] >= bundle->n_rows)
            return FERRY_FAIL(err, FERRY_ERR_FORMAT, "member %zu: row %u of %zu", m, ret_rows[i],
                              bundle->n_rows);
    }
    return FERRY_OK;
}

enum ferry_status wire_member_read(struct wire_request *ret, struct exchange_pair *pairs,
                                   const struct wire_bundle *bundle, size_t m,
                                   const uint32_t *row_numbers, const struct wire_shape *shape,
                                   struct ferry_error *err)
{
    const struct wire_member *member = &bundle->members[m];

    *ret = (struct wire_request){
        .rows = bundle->rows, .n_rows = member->n_rows, .n_pairs = member->n_pairs};
    memcpy(pairs, bundle->data[m] + member->n_rows * sizeof *row_numbers,
           member->n_pairs * sizeof *pairs);
    enum ferry_status st = check_pairs(ret, pairs, shape, err);
    for (size_t i = 0; i < ret->n_pairs && st == FERRY_OK; i++)
        pairs[i].row = row_numbers[pairs[i].row];
    ret->n_rows = bundle->n_rows;
    return st;
}

void wire_ask_for(const void *data, size_t n_bytes)
{
    enum { LINE = 64, MOST = 4096 };

    for (size_t i = 0; i < n_bytes && i < MOST; i += LINE)
        __builtin_prefetch((const char *)data + i);
}

/* Copies n bytes to 16-byte aligned memory that another rank reads next: past the own caches where
 * the machine can. */
static void copy_out(void *dst, const void *src, size_t n)
{
    size_t i = 0;

#if defined(__SSE2__)
    for (; i + 64 <= n; i += 64) { /* whole lines, so that none is written twice */
        const __m128i *from = (const __m128i *)(const void *)((const char *)src + i);
        __m128i *to = (__m128i *)(void *)((char *)dst + i);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
#endif
    memcpy((char *)dst + i, (const char *)src + i, n - i);
}

struct write_arg {
    unsigned char *a32, *f32;
    size_t a32_bytes, f32_bytes, f32_used;
    const struct exchange_rows *rows;
    const uint32_t *row_token;
    bool stream;
};

/* n bytes of a row, which is whole lines but for its end. */
static void put_row(const struct write_arg *a, void *dst, const void *src, size_t n)
{
    if (a->stream)
        copy_out(dst, src, n);
    else
        memcpy(dst, src, n);
}

static void write_rows(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct write_arg *a = arg;

    (void)thread_index;
    for (size_t i = begin; i < end; i++) {
        size_t t = a->row_token[i];
        if (a->a32 != NULL)
            put_row(a, a->a32 + i * a->a32_bytes, a->rows->a32 + t * a->rows->a32_bytes,
                    a->a32_bytes);
        if (a->f32 != NULL)
            put_row(a, a->f32 + i * a->f32_bytes, a->rows->f32 + t * a->rows->f32_stride,
                    a->f32_used);
    }
#if defined(__SSE2__)
    _mm_sfence(); /* each thread's own stores, before the pool's join */
#endif
}

void wire_request_write(void *payload, struct device *device, const struct wire_shape *shape,
                        unsigned flags, const struct exchange_rows *rows, const uint32_t *row_token,
                        size_t n_rows, const struct exchange_pair *pairs, size_t n_pairs,
                        bool stream)
{
    unsigned char *data = payload;
    struct write_arg arg = {.a32_bytes = shape->a32_bytes,
                            .f32_bytes = shape->f32_floats * sizeof(float),
                            .f32_used = shape->hidden * sizeof(float),
                            .rows = rows,
                            .row_token = row_token,
                            .stream = stream};

    if ((flags & WIRE_A32) != 0) {
        arg.a32 = data;
        data += n_rows * shape->a32_bytes;
    }
    if ((flags & WIRE_F32) != 0) {
        arg.f32 = data;
        data += n_rows * arg.f32_bytes;
    }
    device_for(device, n_rows, 16, write_rows, &arg);
    if (n_pairs > 0)
        memcpy(data, pairs, n_pairs * sizeof *pairs);
}
