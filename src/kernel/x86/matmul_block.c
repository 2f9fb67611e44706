/* AVX2 matmuls of the block formats. Order of operations: ref/matmul.c, bit for bit.
 *
 * Lanes are the 8 columns of a group. A tile is 1 to 4 rows by 2 groups: 4 k of every row are
 * broadcast once and multiplied with the codes of both groups, so that loads do not limit. Integer
 * sums stay in int16 as long as that is exact (matmul_codes.h). Few rows take codes straight from
 * the packed weights; many rows take them from a scratch that is unpacked once per pair of groups.
 * Activations are first laid out in the order in which tiles read them: rows in blocks of 64, k in
 * chunks, so that all of it fits on the stack. Between chunks accumulators rest in the output. */
#include "kernel/init.h"
#include "kernel/x86/matmul_codes.h"

#include <string.h>

enum {
    TILE_ROWS = 4,
    TILE_GROUPS = 2,
    ROWS_MAX = 64,         /* rows that are prepared at a time */
    CHUNK_BLOCKS = 32,     /* blocks of k that fit for so many rows; more for fewer. Whole panels */
    NEAR_BLOCKS = 16,      /* blocks of k that all tiles use in turn. Whole panels */
    ACT_BYTES = 40,        /* of one row and block: 32 codes, scale, aux */
    PREFETCH_BYTES = 8192, /* ahead in each group */
};

/* A statement for every row r < n, or group g, of a tile; n is a constant. Not a loop: gcc keeps an
 * array in registers only if its indices are constants before loops are unrolled. */
#define EACH_ROW(n, statement) \
    do {                       \
        AT(r, 0, n, statement) \
        AT(r, 1, n, statement) \
        AT(r, 2, n, statement) \
        AT(r, 3, n, statement) \
    } while (0)
#define EACH_GROUP(statement)  \
    do {                       \
        AT(g, 0, 2, statement) \
        AT(g, 1, 2, statement) \
    } while (0)
#define AT(name, value, n, statement) \
    {                                 \
        enum { name = value };        \
        if (name < (n)) {             \
            statement;                \
        }                             \
    }

/* Up to 64 rows and a chunk of k, in the order in which the tiles read them: per tile of n rows
 * (4; what is left in the last) and per block int8 q[n][32], f32 scale[n], 32-bit aux[n]. */
struct rows {
    float *out[ROWS_MAX];
    size_t n_rows;
    size_t block_begin, block_end;
    _Alignas(64) uint8_t act[ROWS_MAX * CHUNK_BLOCKS * ACT_BYTES];
};

/* Two column groups of the matrix. */
struct columns {
    const uint8_t *group[TILE_GROUPS];
    uintptr_t next[TILE_GROUPS]; /* address of the panel that is read after the chunk's last; only
                                    to fetch, it may lie anywhere */
    size_t first[TILE_GROUPS];   /* column */
    __m256i mask[TILE_GROUPS];   /* lanes of columns that exist; none: the group is a stand-in */
};

/* ---- preparation ---- */

/* Low int16: sum of the elements 0, 2, ... of v; high: of 1, 3, ... */
INLINE uint32_t sum_even_odd(__m256i v)
{
    __m128i s = _mm_add_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi16(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi16(s, _mm_shuffle_epi32(s, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(s);
}

INLINE uint32_t aux_word(enum dtype t, const int8_t *q, float d, int32_t sum)
{
    enum aux_form form = aux_form_of(dot_form_of(t));
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)q);
    uint32_t word = 0;

    v = _mm256_maddubs_epi16(_mm256_set1_epi8(1), v);
    if (form == AUX_LANES) /* 16 * 127 * offset fits int16 */
        word = sum_even_odd(_mm256_mullo_epi16(v, _mm256_set1_epi16((short)code_offset(t))));
    if (form == AUX_HALVES) {
        v = _mm256_hadd_epi16(v, v);
        v = _mm256_hadd_epi16(v, v);
        v = _mm256_hadd_epi16(v, v);
        uint32_t lo = (uint32_t)_mm256_extract_epi16(v, 0);
        uint32_t hi = (uint32_t)_mm256_extract_epi16(v, 8);
        word = (lo & 0xFFFFu) | hi << 16;
    }
    if (form == AUX_MIN) {
        float f = d * (float)sum;
        memcpy(&word, &f, sizeof word);
    }
    return word;
}

/* Row r of a tile of n rows; dst: the tile. */
INLINE void prepare_row(enum dtype t, uint8_t *dst, size_t n, size_t r, const void *act, size_t k,
                        size_t b0, size_t b1)
{
    const int8_t *q = act;
    const float *scales = act_a32_scales(act, k);
    const int32_t *sums = act_a32_sums(act, k);

    for (size_t b = b0; b < b1; b++, dst += n * ACT_BYTES) {
        uint32_t aux = aux_word(t, q + PACK_BLOCK * b, scales[b], sums[b]);
        memcpy(dst + 32 * r, q + PACK_BLOCK * b, 32);
        memcpy(dst + 32 * n + 4 * r, &scales[b], 4);
        memcpy(dst + 36 * n + 4 * r, &aux, 4);
    }
}

INLINE void prepare(enum dtype t, const struct matmul_job *job, size_t row_begin, size_t b0,
                    size_t chunk, struct rows *s)
{
    size_t n_blocks = job->k / PACK_BLOCK;

    s->n_rows = job->n_rows - row_begin < ROWS_MAX ? job->n_rows - row_begin : ROWS_MAX;
    s->block_begin = b0;
    s->block_end = n_blocks - b0 < chunk ? n_blocks : b0 + chunk;
    for (size_t r = 0; r < s->n_rows; r++) {
        size_t i = row_begin + r;
        size_t first = r / TILE_ROWS * TILE_ROWS;
        size_t n = s->n_rows - first < TILE_ROWS ? s->n_rows - first : TILE_ROWS;
        s->out[r] = job->out + i * job->out_stride;
        prepare_row(t, s->act + first * (s->block_end - b0) * ACT_BYTES, n, r - first,
                    matmul_act_row(job, i), job->k, b0, s->block_end);
    }
}

/* ---- one block ---- */

INLINE __m256i broadcast4(const uint8_t *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
}

INLINE __m256 broadcast_f32(const uint8_t *p)
{
    return _mm256_castsi256_ps(broadcast4(p));
}

/* Codes of one group at one block: in memory (ready), or still packed. */
struct source {
    const struct codes *ready;
    const uint8_t *body;
};

INLINE __m256i code_vector(enum dtype t, const struct source *s, int q)
{
    return s->ready != NULL ? s->ready->w[q] : load_code(t, s->body, q);
}

/* Keeps v in a register here: gcc would otherwise regroup a sum into a tree, with all products of
 * it alive at once, and spill. Emits no instruction. */
#define KEEP(v) __asm__("" : "+x"(v))

/* The order in which code vectors are taken: the two nibbles of a byte one after the other; Q6_K:
 * two of one half at a time. */
INLINE int vector_at(enum dot_form form, int i)
{
    if (form == DOT_U6)
        return i % 2 + i / 2 % 2 * 4 + i / 4 * 2;
    return i / 2 + i % 2 * 4;
}

/* Sum of one row: sum[g] = or += codes * 4 activations, int16. */
INLINE void add16(const __m256i *w, __m256i v, bool first, __m256i *sum)
{
    __m256i p[TILE_GROUPS];

    EACH_GROUP(p[g] = _mm256_maddubs_epi16(w[g], v));
    EACH_GROUP(sum[g] = first ? p[g] : _mm256_add_epi16(sum[g], p[g]));
    EACH_GROUP(KEEP(sum[g]));
}

/* The same with signed codes of any value, int32. */
INLINE void add_signed(const __m256i *w, __m256i v, bool first, __m256i *sum)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i p[TILE_GROUPS];

    EACH_GROUP(p[g] = _mm256_sign_epi8(v, w[g]));
    EACH_GROUP(p[g] = _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), p[g]));
    EACH_GROUP(p[g] = _mm256_madd_epi16(p[g], ones));
    EACH_GROUP(sum[g] = first ? p[g] : _mm256_add_epi32(sum[g], p[g]));
    EACH_GROUP(KEEP(sum[g]));
}

/* Q6_K: two vectors of one half (w: of both groups, first and second), times the half's scale. */
INLINE void add_scaled(const struct codes *c, int half, __m256i w[][TILE_GROUPS], const uint8_t *x,
                       int q, __m256i *sum)
{
    __m256i v[2] = {broadcast4(x + 4 * q), broadcast4(x + 4 * q + 4)};
    __m256i p[TILE_GROUPS];

    EACH_GROUP(p[g] = _mm256_add_epi16(_mm256_maddubs_epi16(w[0][g], v[0]),
                                       _mm256_maddubs_epi16(w[1][g], v[1])));
    EACH_GROUP(p[g] = _mm256_madd_epi16(p[g], c[g].sc[half]));
    EACH_GROUP(sum[g] = q == 0 ? p[g] : _mm256_add_epi32(sum[g], p[g]));
    EACH_GROUP(KEEP(sum[g]));
}

INLINE void dot_scaled(enum dtype t, int n, const struct source *s, const struct codes *c,
                       const uint8_t *x, __m256i isum[][TILE_GROUPS])
{
    UNROLL for (int i = 0; i < 8; i += 2)
    {
        __m256i w[2][TILE_GROUPS];
        int q = vector_at(DOT_U6, i);
        EACH_GROUP(w[0][g] = code_vector(t, &s[g], q));
        EACH_GROUP(w[1][g] = code_vector(t, &s[g], q + 1));
        EACH_ROW(n, add_scaled(c, q / 4, w, x + 32 * r, q, isum[r]));
    }
    EACH_ROW(n, __m256i halves = broadcast4(x + 36 * n + 4 * r); EACH_GROUP(
                 isum[r][g] = _mm256_sub_epi32(isum[r][g], _mm256_madd_epi16(halves, c[g].off))));
}

/* isum[r][g] = or += the dots over the code vectors taken as number first .. first + n_q - 1,
 * widened to int32. */
INLINE void dot_part(enum dtype t, int n, const struct source *s, const uint8_t *x, int first,
                     int n_q, __m256i isum[][TILE_GROUPS])
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[TILE_ROWS][TILE_GROUPS];

    UNROLL for (int i = first; i < first + n_q; i++)
    {
        __m256i w[TILE_GROUPS];
        int q = vector_at(dot_form_of(t), i);
        EACH_GROUP(w[g] = code_vector(t, &s[g], q));
        EACH_ROW(n, add16(w, broadcast4(x + 32 * r + 4 * q), i == first, sum[r]));
    }
    if (dot_form_of(t) == DOT_OFFSET)
        EACH_ROW(n, __m256i lanes = broadcast4(x + 36 * n + 4 * r);
                 EACH_GROUP(sum[r][g] = _mm256_sub_epi16(sum[r][g], lanes)));
    EACH_ROW(n, EACH_GROUP(sum[r][g] = _mm256_madd_epi16(sum[r][g], ones)));
    if (first == 0)
        EACH_ROW(n, EACH_GROUP(isum[r][g] = sum[r][g]));
    else
        EACH_ROW(n, EACH_GROUP(isum[r][g] = _mm256_add_epi32(isum[r][g], sum[r][g])));
}

/* isum[r][g] (int32): the integer dots, offsets folded in. c: scales. */
INLINE void dot(enum dtype t, int n, const struct source *s, const struct codes *c,
                const uint8_t *x, __m256i isum[][TILE_GROUPS])
{
    const enum dot_form form = dot_form_of(t);

    if (form == DOT_SIGNED) {
        UNROLL for (int i = 0; i < 8; i++)
        {
            __m256i w[TILE_GROUPS];
            int q = vector_at(form, i);
            EACH_GROUP(w[g] = code_vector(t, &s[g], q));
            EACH_ROW(n, add_signed(w, broadcast4(x + 32 * r + 4 * q), i == 0, isum[r]));
        }
    } else if (form == DOT_U6) {
        dot_scaled(t, n, s, c, x, isum);
    } else if (form == DOT_U5) {
        dot_part(t, n, s, x, 0, 4, isum);
        dot_part(t, n, s, x, 4, 4, isum);
    } else {
        dot_part(t, n, s, x, 0, 8, isum);
    }
}

/* acc[g] of one row; d, aux: of the row. */
INLINE void add_block(enum dtype t, const struct codes *c, const __m256i *isum, __m256 d,
                      __m256 aux, __m256 *acc)
{
    EACH_GROUP(acc[g] =
                   _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[g]), _mm256_mul_ps(c[g].d, d), acc[g]));
    if (aux_form_of(dot_form_of(t)) == AUX_MIN)
        EACH_GROUP(acc[g] = _mm256_fmadd_ps(c[g].m, aux, acc[g]));
}

INLINE void step(enum dtype t, int n, const struct source *s, const struct codes *c,
                 const uint8_t *x, __m256 acc[][TILE_GROUPS])
{
    __m256i isum[TILE_ROWS][TILE_GROUPS];

    dot(t, n, s, c, x, isum);
    EACH_ROW(n, add_block(t, c, isum[r], broadcast_f32(x + 32 * n + 4 * r),
                          broadcast_f32(x + 36 * n + 4 * r), acc[r]));
}

/* ---- tiles ---- */

INLINE void load_acc(int n, const struct rows *s, size_t r0, const struct columns *c,
                     __m256 acc[][TILE_GROUPS])
{
    EACH_ROW(n, EACH_GROUP(acc[r][g] = _mm256_setzero_ps()));
    if (s->block_begin != 0)
        EACH_ROW(n, EACH_GROUP(acc[r][g] =
                                   _mm256_maskload_ps(s->out[r0 + r] + c->first[g], c->mask[g])));
}

INLINE void store_acc(int n, const struct rows *s, size_t r0, const struct columns *c,
                      __m256 acc[][TILE_GROUPS])
{
    EACH_ROW(n,
             EACH_GROUP(_mm256_maskstore_ps(s->out[r0 + r] + c->first[g], c->mask[g], acc[r][g])));
}

INLINE size_t chunk_panels(struct pack_layout l, const struct rows *s)
{
    return (s->block_end - s->block_begin + l.blocks - 1) / l.blocks;
}

/* Address of panel `at` of group g, counted from the chunk's first; past its last: what is read
 * after it. */
INLINE uintptr_t panel_ahead(struct pack_layout l, const struct rows *s, const struct columns *c,
                             size_t g, size_t at)
{
    size_t n_panels = chunk_panels(l, s);
    uintptr_t first = at < n_panels ? (uintptr_t)pack_header(l, c->group[g], s->block_begin)
                                    : c->next[g] - n_panels * pack_panel_bytes(l);
    return first + at * pack_panel_bytes(l);
}

INLINE void prefetch(uintptr_t at, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i += 64)
        _mm_prefetch((const char *)(at + i), _MM_HINT_T0);
}

/* All n rows of a job, codes straight from the packed groups. */
INLINE void tile_direct(enum dtype t, int n, const struct rows *s, const struct columns *cols)
{
    const struct pack_layout l = pack_layout_of(t);
    size_t n_blocks = s->block_end - s->block_begin;
    size_t n_panels = chunk_panels(l, s);
    size_t distance = PREFETCH_BYTES / pack_panel_bytes(l);
    const uint8_t *panel[TILE_GROUPS];
    const uint8_t *x = s->act;
    __m256 acc[TILE_ROWS][TILE_GROUPS];

    load_acc(n, s, 0, cols, acc);
    EACH_GROUP(panel[g] = pack_header(l, cols->group[g], s->block_begin));
    distance = distance < n_panels ? distance : n_panels;
    for (size_t p = 0; p < n_panels; p++) {
        size_t in_panel = n_blocks - p * l.blocks < l.blocks ? n_blocks - p * l.blocks : l.blocks;
        uintptr_t ahead[TILE_GROUPS];
        EACH_GROUP(ahead[g] = panel_ahead(l, s, cols, g, p + distance));
        EACH_GROUP(prefetch(ahead[g], l.header));
        size_t at = l.header;
        for (size_t i = 0; i < in_panel; i++, at += l.body, x += n * ACT_BYTES) {
            struct source source[TILE_GROUPS];
            struct codes c[TILE_GROUPS];
            EACH_GROUP(prefetch(ahead[g] + at, l.body));
            EACH_GROUP(source[g].ready = NULL);
            EACH_GROUP(source[g].body = panel[g] + at);
            EACH_GROUP(load_scales(t, panel[g], i, &c[g]));
            step(t, n, source, c, x, acc);
        }
        EACH_GROUP(panel[g] += pack_panel_bytes(l));
    }
    store_acc(n, s, 0, cols, acc);
}

/* More rows than one tile share a pair of groups some blocks at a time: these stay in L1 until all
 * tiles have used them, packed (tile_near) or unpacked (tile_ready). Sums rest in memory between.
 */
struct unpacked {
    struct codes c[NEAR_BLOCKS][TILE_GROUPS];
};

/* Blocks [begin, begin + n_blocks) of the chunk. */
INLINE void unpack(enum dtype t, const struct rows *s, const struct columns *cols, size_t begin,
                   size_t n_blocks, struct unpacked *ret)
{
    const struct pack_layout l = pack_layout_of(t);

    for (size_t g = 0; g < TILE_GROUPS; g++) {
        const uint8_t *panel = pack_header(l, cols->group[g], s->block_begin + begin);
        for (size_t b = 0; b < n_blocks; b++) {
            struct codes *c = &ret->c[b][g];
            size_t at = l.header + b % l.blocks * l.body;
            if (b != 0 && b % l.blocks == 0)
                panel += pack_panel_bytes(l);
            UNROLL for (int q = 0; q < 8; q++) c->w[q] = load_code(t, panel + at, q);
            load_scales(t, panel, b % l.blocks, c);
        }
    }
}

/* Up to so many rows codes are not unpacked to memory: unpacking in registers once for every 4 rows
 * costs less. Q8_0 has nothing to unpack and is only copied for the order of access. */
INLINE size_t near_rows(enum dtype t)
{
    if (t == DTYPE_Q8_0)
        return 20;
    return dot_form_of(t) == DOT_U6 ? 4 : 8;
}

/* Packed bytes that all tiles use next. Each tile fetches a share of them, some lines a block: in
 * one go, prefetches would wait for each other and hold up the arithmetic. Small shares of unpacked
 * tiles do go at once, there the looking at every block would cost more. */
struct ahead {
    uintptr_t at[TILE_GROUPS];
    size_t share, step, n_steps; /* bytes of each group that a tile fetches, and at one block */
};

INLINE struct ahead ahead_of(enum dtype t, const struct rows *s, const struct columns *cols,
                             size_t begin)
{
    const struct pack_layout l = pack_layout_of(t);
    size_t n_panels = chunk_panels(l, s);
    size_t n_tiles = (s->n_rows + TILE_ROWS - 1) / TILE_ROWS;
    size_t n_bytes = NEAR_BLOCKS / l.blocks * pack_panel_bytes(l);
    size_t next = (begin + NEAR_BLOCKS) / l.blocks;
    struct ahead ret = {.share = (n_bytes + n_tiles - 1) / n_tiles};

    ret.step = n_tiles > 3 && s->n_rows > near_rows(t) ? ret.share
                                                       : (ret.share / NEAR_BLOCKS + 63) / 64 * 64;
    ret.n_steps = (ret.share + ret.step - 1) / ret.step;
    next = next < n_panels ? next : n_panels;
    EACH_GROUP(ret.at[g] = panel_ahead(l, s, cols, g, next));
    return ret;
}

/* At block b of a tile. */
INLINE void fetch_share(struct ahead *ahead, size_t b)
{
    if (b >= ahead->n_steps)
        return;
    EACH_GROUP(prefetch(ahead->at[g], ahead->step));
    EACH_GROUP(ahead->at[g] += ahead->step);
}

/* n rows, a few blocks that have been unpacked; x: the first of them. */
INLINE void tile_ready(enum dtype t, int n, const struct unpacked *u, size_t n_blocks,
                       const uint8_t *x, struct ahead *ahead, __m256 *kept)
{
    __m256 acc[TILE_ROWS][TILE_GROUPS];

    EACH_ROW(n, EACH_GROUP(acc[r][g] = kept[2 * r + g]));
    for (size_t b = 0; b < n_blocks; b++, x += n * ACT_BYTES) {
        const struct codes *c = u->c[b];
        struct source source[TILE_GROUPS] = {{&c[0], NULL}, {&c[1], NULL}};
        fetch_share(ahead, b);
        step(t, n, source, c, x, acc);
    }
    EACH_ROW(n, EACH_GROUP(kept[2 * r + g] = acc[r][g]));
}

/* The same, codes straight from panels. */
INLINE void tile_near(enum dtype t, int n, const uint8_t *const *panels, size_t n_blocks,
                      const uint8_t *x, struct ahead *ahead, __m256 *kept)
{
    const struct pack_layout l = pack_layout_of(t);
    const uint8_t *panel[TILE_GROUPS];
    __m256 acc[TILE_ROWS][TILE_GROUPS];

    EACH_ROW(n, EACH_GROUP(acc[r][g] = kept[2 * r + g]));
    EACH_GROUP(panel[g] = panels[g]);
    for (size_t b = 0; b < n_blocks;) {
        size_t in_panel = n_blocks - b < l.blocks ? n_blocks - b : l.blocks;
        for (size_t i = 0; i < in_panel; i++, b++, x += n * ACT_BYTES) {
            struct source source[TILE_GROUPS];
            struct codes c[TILE_GROUPS];
            fetch_share(ahead, b);
            EACH_GROUP(source[g].ready = NULL);
            EACH_GROUP(source[g].body = panel[g] + l.header + i * l.body);
            EACH_GROUP(load_scales(t, panel[g], i, &c[g]));
            step(t, n, source, c, x, acc);
        }
        EACH_GROUP(panel[g] += pack_panel_bytes(l));
    }
    EACH_ROW(n, EACH_GROUP(kept[2 * r + g] = acc[r][g]));
}

/* All rows by n_blocks blocks from `block`: tile(n, activations, sums) for 4 rows each, then for
 * the rest. */
#define EACH_TILE(s, block, kept, tile)                                                \
    do {                                                                               \
        size_t chunk = (s)->block_end - (s)->block_begin;                              \
        size_t r = 0;                                                                  \
        for (; r + 4 <= (s)->n_rows; r += 4)                                           \
            tile(4, (s)->act + (r * chunk + 4 * (block)) * ACT_BYTES, (kept) + 2 * r); \
        const uint8_t *rest = (s)->act + r * chunk * ACT_BYTES;                        \
        if ((s)->n_rows - r == 3)                                                      \
            tile(3, rest + 3 * (block)*ACT_BYTES, (kept) + 2 * r);                     \
        else if ((s)->n_rows - r == 2)                                                 \
            tile(2, rest + 2 * (block)*ACT_BYTES, (kept) + 2 * r);                     \
        else if ((s)->n_rows - r == 1)                                                 \
            tile(1, rest + (block)*ACT_BYTES, (kept) + 2 * r);                         \
    } while (0)

INLINE void tiles_ready(enum dtype t, const struct rows *s, const struct unpacked *u, size_t block,
                        size_t n_blocks, struct ahead ahead, __m256 *kept)
{
#define TILE(n, x, sums) tile_ready(t, n, u, n_blocks, x, &ahead, sums)
    EACH_TILE(s, block, kept, TILE);
#undef TILE
}

INLINE void tiles_near(enum dtype t, const struct rows *s, const struct columns *cols, size_t block,
                       size_t n_blocks, struct ahead ahead, __m256 *kept)
{
    const uint8_t *panels[TILE_GROUPS];

    EACH_GROUP(panels[g] = pack_header(pack_layout_of(t), cols->group[g], s->block_begin + block));
#define TILE(n, x, sums) tile_near(t, n, panels, n_blocks, x, &ahead, sums)
    EACH_TILE(s, block, kept, TILE);
#undef TILE
}

/* One function per dot form: once unpacked, formats of one form are the same. */
typedef void ready_fn(const struct rows *s, const struct unpacked *u, size_t block, size_t n_blocks,
                      struct ahead ahead, __m256 *kept);

#define READY(name, dtype)                                                                 \
    static void ready_##name(const struct rows *s, const struct unpacked *u, size_t block, \
                             size_t n_blocks, struct ahead ahead, __m256 *kept)            \
    {                                                                                      \
        tiles_ready(dtype, s, u, block, n_blocks, ahead, kept);                            \
    }
READY(offset, DTYPE_Q4_0)
READY(u4, DTYPE_Q4_K)
READY(u5, DTYPE_Q5_K)
READY(u6, DTYPE_Q6_K)
READY(signed, DTYPE_IQ4_NL)
#undef READY

INLINE ready_fn *ready_of(enum dot_form form)
{
    return form == DOT_OFFSET ? ready_offset
           : form == DOT_U4   ? ready_u4
           : form == DOT_U5   ? ready_u5
           : form == DOT_U6   ? ready_u6
                              : ready_signed;
}

/* More rows than one tile. */
INLINE void matmul_tiles(enum dtype t, const struct rows *s, const struct columns *cols)
{
    __m256 kept[2 * ROWS_MAX];
    struct unpacked u;
    size_t n = s->block_end - s->block_begin;

    for (size_t r = 0; r < s->n_rows; r++)
        load_acc(1, s, r, cols, (__m256(*)[TILE_GROUPS])(kept + 2 * r));
    for (size_t b = 0; b < n; b += NEAR_BLOCKS) {
        size_t n_blocks = n - b < NEAR_BLOCKS ? n - b : NEAR_BLOCKS;
        struct ahead ahead = ahead_of(t, s, cols, b);
        if (s->n_rows <= near_rows(t)) {
            tiles_near(t, s, cols, b, n_blocks, ahead, kept);
            continue;
        }
        unpack(t, s, cols, b, n_blocks, &u);
        ready_of(dot_form_of(t))(s, &u, b, n_blocks, ahead, kept);
    }
    for (size_t r = 0; r < s->n_rows; r++)
        store_acc(1, s, r, cols, (__m256(*)[TILE_GROUPS])(kept + 2 * r));
}

/* ---- a whole job ---- */

/* Address of the panel that is read after this chunk of the pair of groups g, g + 1. */
INLINE uintptr_t after_chunk(enum dtype t, const struct matmul_job *job, const struct rows *s,
                             size_t g)
{
    const struct pack_layout l = pack_layout_of(t);
    size_t group_bytes = pack_group_size(t, job->k);
    const uint8_t *packed = job->packed;

    if (g + TILE_GROUPS < job->group_end)
        return (uintptr_t)pack_header(l, packed + (g + TILE_GROUPS) * group_bytes, s->block_begin);
    if (s->block_end < job->k / PACK_BLOCK)
        return (uintptr_t)pack_header(l, packed + job->group_begin * group_bytes, s->block_end);
    if (job->next != NULL)
        return (uintptr_t)job->next;
    return (uintptr_t)(packed + g * group_bytes); /* not known: what is in cache */
}

/* Group g and, where it exists, group g + 1; otherwise g stands in with no lanes. */
INLINE void pick_columns(enum dtype t, const struct matmul_job *job, const struct rows *s, size_t g,
                         struct columns *ret)
{
    size_t group_bytes = pack_group_size(t, job->k);
    uintptr_t next = after_chunk(t, job, s, g);

    for (size_t i = 0; i < TILE_GROUPS; i++) {
        size_t at = g + i < job->group_end ? g + i : g;
        size_t column = at * KERNEL_GROUP;
        int n = job->n_cols - column < KERNEL_GROUP ? (int)(job->n_cols - column) : KERNEL_GROUP;
        if (at != g + i)
            n = 0;
        ret->group[i] = (const uint8_t *)job->packed + at * group_bytes;
        ret->next[i] = next + i * group_bytes;
        ret->first[i] = column;
        ret->mask[i] =
            _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
}

INLINE void groups(enum dtype t, const struct matmul_job *job, const struct rows *s)
{
    struct columns cols;

    for (size_t g = job->group_begin; g < job->group_end; g += TILE_GROUPS) {
        pick_columns(t, job, s, g, &cols);
        switch (s->n_rows) {
        case 1:
            tile_direct(t, 1, s, &cols);
            break;
        case 2:
            tile_direct(t, 2, s, &cols);
            break;
        case 3:
            tile_direct(t, 3, s, &cols);
            break;
        case 4:
            tile_direct(t, 4, s, &cols);
            break;
        default:
            matmul_tiles(t, s, &cols);
        }
    }
}

INLINE void matmul(enum dtype t, const struct matmul_job *job)
{
    size_t n_blocks = job->k / PACK_BLOCK;
    struct rows s;

    for (size_t row = 0; row < job->n_rows; row += ROWS_MAX) {
        size_t n_rows = job->n_rows - row < ROWS_MAX ? job->n_rows - row : ROWS_MAX;
        size_t chunk = ROWS_MAX / n_rows * CHUNK_BLOCKS;
        for (size_t b0 = 0; b0 == 0 || b0 < n_blocks; b0 += chunk) {
            prepare(t, job, row, b0, chunk, &s);
            groups(t, job, &s);
        }
    }
}

#define X86_MATMUL(dtype)                                    \
    static void matmul_##dtype(const struct matmul_job *job) \
    {                                                        \
        matmul(DTYPE_##dtype, job);                          \
    }
X86_MATMUL(Q8_0)
X86_MATMUL(Q4_0)
X86_MATMUL(Q4_1)
X86_MATMUL(Q5_0)
X86_MATMUL(Q5_1)
X86_MATMUL(Q4_K)
X86_MATMUL(Q5_K)
X86_MATMUL(Q6_K)
X86_MATMUL(IQ4_NL)
X86_MATMUL(MXFP4)
#undef X86_MATMUL

void kernels_init_x86_matmul_block(struct kernels *k)
{
    k->matmul[DTYPE_Q8_0] = matmul_Q8_0;
    k->matmul[DTYPE_Q4_0] = matmul_Q4_0;
    k->matmul[DTYPE_Q4_1] = matmul_Q4_1;
    k->matmul[DTYPE_Q5_0] = matmul_Q5_0;
    k->matmul[DTYPE_Q5_1] = matmul_Q5_1;
    k->matmul[DTYPE_Q4_K] = matmul_Q4_K;
    k->matmul[DTYPE_Q5_K] = matmul_Q5_K;
    k->matmul[DTYPE_Q6_K] = matmul_Q6_K;
    k->matmul[DTYPE_IQ4_NL] = matmul_IQ4_NL;
    k->matmul[DTYPE_MXFP4] = matmul_MXFP4;
}
