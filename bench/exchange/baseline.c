/* Routing, the combine tree and memory of the baselines; see baseline.h. */
#include "baseline.h"

#include "tensor/act.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- the generator: a number is a function of where it is used ---- */

static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t draw(uint64_t seed, uint64_t stream, uint64_t counter)
{
    return mix(mix(mix(seed) ^ stream) ^ counter);
}

static uint64_t draw_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)draw(seed, stream, counter) * n) >> 64);
}

void shape_place(struct shape *shape)
{
    const int n = shape->experts;
    int at = 0;

    for (int e = 0; e < n; e++)
        shape->seat[e] = (int16_t)((long)e * shape->n_ranks / n);
    for (int e = n - 1; shape->random_placement && e > 0; e--) {
        const uint64_t other = draw_below(shape->seed, 1, (uint64_t)e, (uint64_t)e + 1);
        const int16_t kept = shape->seat[e];

        shape->seat[e] = shape->seat[other];
        shape->seat[other] = kept;
    }
    for (int r = 0; r < shape->n_ranks; r++) {
        shape->begin[r] = at;
        for (int e = 0; e < n; e++) {
            if (shape->seat[e] == r)
                shape->order[at++] = e;
        }
    }
    shape->begin[shape->n_ranks] = at;
}

void routing_draw(const struct shape *shape, uint64_t scene, int rank, struct routing *ret)
{
    const size_t n = (size_t)shape->tokens * (size_t)shape->top_k;
    int32_t pool[EXPERTS_MAX];

    ret->ids = memory_take(n * sizeof *ret->ids);
    ret->weights = memory_take(n * sizeof *ret->weights);
    for (int t = 0; t < shape->tokens; t++) {
        const uint64_t stream = 2 + (scene << 40 | (uint64_t)rank << 32 | (uint64_t)t);
        int32_t *ids = ret->ids + (size_t)t * (size_t)shape->top_k;
        float *weights = ret->weights + (size_t)t * (size_t)shape->top_k;
        float sum = 0;

        for (int e = 0; e < shape->experts; e++)
            pool[e] = e;
        for (int i = 0; i < shape->top_k; i++) {
            const int left = shape->experts - i;
            const int taken = i + (int)draw_below(shape->seed, stream, (uint64_t)i, (uint64_t)left);
            const int32_t id = pool[taken];
            int at = i;

            pool[taken] = pool[i];
            for (; at > 0 && ids[at - 1] > id; at--)
                ids[at] = ids[at - 1];
            ids[at] = id;
            weights[i] = 0.5f + 0x1p-24f * (float)(draw(shape->seed, ~stream, (uint64_t)i) >> 40);
            sum += weights[i];
        }
        for (int i = 0; i < shape->top_k; i++)
            weights[i] /= sum;
    }
}

void routing_free(struct routing *routing)
{
    free(routing->ids);
    free(routing->weights);
}

void tokens_draw(const struct shape *shape, int rank, float *ret_x)
{
    const size_t n = (size_t)shape->tokens * (size_t)shape->hidden;

    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = draw(shape->seed, 0x7000 + (uint64_t)rank, i);

        ret_x[i] = 0x1p-23f * (float)(int32_t)(bits >> 40) - 1.0f;
    }
}

/* ---- the tree ---- */

struct steps {
    const int32_t *leaves;
    uint8_t *left, *right;
    int n;
};

static void node_steps(struct steps *s, int first, int n, int lo, int hi)
{
    while (n > 1) {
        const int middle = lo + (hi - lo) / 2;
        int n_left = 0;

        while (n_left < n && s->leaves[first + n_left] < middle)
            n_left++;
        if (n_left == n) {
            hi = middle;
        } else if (n_left == 0) {
            lo = middle;
        } else {
            node_steps(s, first, n_left, lo, middle);
            node_steps(s, first + n_left, n - n_left, middle, hi);
            s->left[s->n] = (uint8_t)first;
            s->right[s->n] = (uint8_t)(first + n_left);
            s->n++;
            return;
        }
    }
}

int tree_steps(const int32_t *leaves, int n, int experts, uint8_t *left, uint8_t *right)
{
    struct steps s = {leaves, left, right, 0};

    node_steps(&s, 0, n, 0, experts);
    return s.n;
}

static int node_groups(const struct shape *shape, const int32_t *ids, int first, int n, int lo,
                       int hi, uint8_t *ret_begin, int n_groups)
{
    for (;;) {
        const int middle = lo + (hi - lo) / 2;
        int same = 1, n_left = 0;

        while (same < n && shape->seat[ids[first + same]] == shape->seat[ids[first]])
            same++;
        if (same == n) {
            ret_begin[n_groups] = (uint8_t)first;
            return n_groups + 1;
        }
        while (n_left < n && ids[first + n_left] < middle)
            n_left++;
        if (n_left == n) {
            hi = middle;
        } else if (n_left == 0) {
            lo = middle;
        } else {
            n_groups = node_groups(shape, ids, first, n_left, lo, middle, ret_begin, n_groups);
            first += n_left;
            n -= n_left;
            lo = middle;
        }
    }
}

int tree_groups(const struct shape *shape, const int32_t *ids, int k, uint8_t *ret_begin)
{
    return node_groups(shape, ids, 0, k, 0, shape->experts, ret_begin, 0);
}

enum { COLUMNS = 256 }; /* at a time; k such parts stay in the first-level cache */

/* Columns [c, c + width) of a leaf times its weight. */
static void load_leaf(const struct leaf *leaf, int hidden, int c, int width, float *restrict to)
{
    const float weight = leaf->weight;

    if (leaf->format == LEAF_F32) {
        const float *row = (const float *)leaf->row + c;

        for (int j = 0; j < width; j++)
            to[j] = weight * row[j];
    } else if (leaf->format == LEAF_BF16) {
        from_bf16(to, (const uint16_t *)leaf->row + c, width);
        for (int j = 0; j < width; j++)
            to[j] *= weight;
    } else {
        const int8_t *row = (const int8_t *)leaf->row + c;
        const float *scales = act_a32_scales(leaf->row, (size_t)hidden) + c / ACT_BLOCK;

        for (int b = 0; b < width / ACT_BLOCK; b++) {
            for (int j = b * ACT_BLOCK; j < (b + 1) * ACT_BLOCK; j++)
                to[j] = weight * ((float)row[j] * scales[b]);
        }
    }
}

void tree_sum(const struct leaf *leaves, int n, const uint8_t *left, const uint8_t *right,
              int hidden, float *out)
{
    _Alignas(64) float part[TOP_K_MAX][COLUMNS];

    for (int c = 0; c < hidden; c += COLUMNS) {
        const int width = hidden - c < COLUMNS ? hidden - c : COLUMNS;
        float *restrict to = out + c;

        if (n == 1) {
            load_leaf(&leaves[0], hidden, c, width, to);
            continue;
        }
        for (int i = 0; i < n; i++)
            load_leaf(&leaves[i], hidden, c, width, part[i]);
        for (int i = 0; i + 2 < n; i++) {
            float *restrict sum = part[left[i]];
            const float *from = part[right[i]];

            for (int j = 0; j < width; j++)
                sum[j] += from[j];
        }
        for (int j = 0; j < width; j++) /* the last step ends in row 0 */
            to[j] = part[0][j] + part[right[n - 2]][j];
    }
}

/* ---- memory and rows ---- */

void *memory_take(size_t n_bytes)
{
    const size_t huge = (size_t)2 << 20;
    const size_t align = n_bytes >= huge ? huge : 4096;
    const size_t size = (n_bytes / align + 1) * align;
    void *data = aligned_alloc(align, size);

    if (data == NULL) {
        fprintf(stderr, "mpi_baseline: no memory for %zu bytes; take fewer --tokens\n", n_bytes);
        exit(1);
    }
    if (align == huge)
        (void)madvise(data, size, MADV_HUGEPAGE);
    memset(data, 0, size);
    return data;
}

uint64_t touch(const void *data, size_t n_bytes)
{
    uint64_t sum = 0, word;

    for (size_t i = 0; i < n_bytes; i += CACHE_LINE) {
        memcpy(&word, (const char *)data + i, sizeof word);
        sum += word;
    }
    return sum;
}

void to_bf16(uint16_t *dst, const float *src, int hidden)
{
    const __m256i half = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);

    for (int c = 0; c < hidden; c += 16) {
        __m256i v[2];

        for (int i = 0; i < 2; i++) {
            v[i] = _mm256_castps_si256(_mm256_loadu_ps(src + c + 8 * i));
            __m256i odd = _mm256_and_si256(_mm256_srli_epi32(v[i], 16), one);
            v[i] = _mm256_add_epi32(v[i], _mm256_add_epi32(half, odd));
            v[i] = _mm256_srli_epi32(v[i], 16);
        }
        v[0] = _mm256_permute4x64_epi64(_mm256_packus_epi32(v[0], v[1]), 0xd8);
        _mm256_storeu_si256((void *)(dst + c), v[0]);
    }
}

void from_bf16(float *dst, const uint16_t *src, int hidden)
{
    for (int c = 0; c < hidden; c += 8) {
        const __m128i half = _mm_loadu_si128((const void *)(src + c));

        _mm256_storeu_ps(dst + c,
                         _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)));
    }
}
