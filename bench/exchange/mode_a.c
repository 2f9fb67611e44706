/* Baseline A: the exchange as common engines do it, over Open MPI.
 *
 * A round: counts by MPI_Alltoall; one bf16 copy of a token's row for each of its experts, gathered
 * in the order of ranks and experts; MPI_Alltoallv; every row is read where it arrived; a row comes
 * back for each that went, by a second MPI_Alltoallv; the origin adds k weighted rows per token in
 * f32. Rows of own experts are gathered and added, too, but do not pass through MPI. An expert
 * works in place, in the receive buffer, so that nothing is copied that an engine would not copy;
 * the send buffer takes the results, at the places that the rows left from.
 *
 * Why here: Ferry's exchange is measured against it (README.md says which settings were tried). It
 * must not know mode B. */
#include "baseline.h"

#include <immintrin.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where rows go past the cache when --stream-stores is given: a gather of more than this. */
enum { STREAM_BYTES = 4 << 20 };

struct state {
    const struct shape *shape;
    const struct routing *scenes;
    const float *x;
    int most;                           /* experts of a rank, at most */
    int32_t *send_counts, *recv_counts; /* [n_ranks, most]: rows per expert */
    int32_t *next;                      /* [experts]: where the next row of an expert goes */
    int32_t *place;                     /* [tokens, top_k]: where a pair's row stands */
    int send_rows[RANKS_MAX], send_at[RANKS_MAX], recv_rows[RANKS_MAX], recv_at[RANKS_MAX];
    uint16_t *send, *recv; /* rows; own ones stand in recv only */
    uint16_t *row;         /* one row, on its way */
    MPI_Datatype row_type;
    size_t bytes_out;
    uint64_t sink;
};

/* Rows per expert of this rank's tokens, in the padded layout that MPI_Alltoall takes. */
static void count_rows(struct state *s, int scene)
{
    const struct shape *shape = s->shape;
    const size_t n = (size_t)shape->tokens * (size_t)shape->top_k;
    int32_t *counts = s->next; /* by expert; place_rows makes positions of them */

    memset(counts, 0, (size_t)shape->experts * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        counts[s->scenes[scene].ids[i]]++;
    for (int r = 0; r < shape->n_ranks; r++) {
        for (int i = shape->begin[r]; i < shape->begin[r + 1]; i++)
            s->send_counts[r * s->most + i - shape->begin[r]] = counts[shape->order[i]];
    }
}

/* Positions in both buffers; recv_counts are known. Returns the rows that this rank receives. */
static int place_rows(struct state *s)
{
    const struct shape *shape = s->shape;
    int send_at = 0, recv_at = 0;

    for (int r = 0; r < shape->n_ranks; r++) {
        const int n = shape->begin[shape->rank + 1] - shape->begin[shape->rank];

        s->recv_at[r] = recv_at;
        for (int i = 0; i < n; i++)
            recv_at += s->recv_counts[r * s->most + i];
        s->recv_rows[r] = recv_at - s->recv_at[r];
    }
    for (int r = 0; r < shape->n_ranks; r++) {
        int at = r == shape->rank ? s->recv_at[r] : send_at;

        s->send_at[r] = send_at;
        for (int i = shape->begin[r]; i < shape->begin[r + 1]; i++) {
            s->next[shape->order[i]] = at;
            at += s->send_counts[r * s->most + i - shape->begin[r]];
        }
        s->send_rows[r] = r == shape->rank ? 0 : at - send_at;
        send_at += s->send_rows[r];
    }
    s->recv_rows[shape->rank] = 0; /* own rows are there already */
    return recv_at;
}

static void store_row(uint16_t *dst, const uint16_t *src, int hidden, bool stream)
{
    if (!stream) {
        memcpy(dst, src, (size_t)hidden * sizeof *dst);
        return;
    }
    for (int c = 0; c < hidden; c += 16)
        _mm256_stream_si256((void *)(dst + c), _mm256_loadu_si256((const void *)(src + c)));
}

/* A row's place: own experts' rows stand where received ones do. */
static uint16_t *row_of(struct state *s, int expert, int32_t at)
{
    uint16_t *base = s->shape->seat[expert] == s->shape->rank ? s->recv : s->send;

    return base + (size_t)at * (size_t)s->shape->hidden;
}

static void gather(struct state *s, int scene)
{
    const struct shape *shape = s->shape;
    const int k = shape->top_k;
    const bool stream =
        shape->stream_stores &&
        (size_t)shape->tokens * (size_t)k * (size_t)shape->hidden * 2 > STREAM_BYTES;

    for (int t = 0; t < shape->tokens; t++) {
        const int32_t *ids = s->scenes[scene].ids + (size_t)t * (size_t)k;
        int32_t *place = s->place + (size_t)t * (size_t)k;

        to_bf16(s->row, s->x + (size_t)t * (size_t)shape->hidden, shape->hidden);
        for (int i = 0; i < k; i++) {
            place[i] = s->next[ids[i]]++;
            store_row(row_of(s, ids[i], place[i]), s->row, shape->hidden, stream);
        }
    }
    if (stream)
        _mm_sfence();
}

/* Every row that arrived times its expert's factor, in place. */
static void run_experts(struct state *s)
{
    const struct shape *shape = s->shape;
    const int first = shape->begin[shape->rank], n = shape->begin[shape->rank + 1] - first;
    float *wide = memory_take((size_t)shape->hidden * sizeof *wide);
    uint16_t *row = s->recv;

    for (int r = 0; r < shape->n_ranks; r++) {
        for (int i = 0; i < n; i++) {
            const float factor = expert_factor(shape->order[first + i]);

            for (int j = 0; j < s->recv_counts[r * s->most + i]; j++) {
                from_bf16(wide, row, shape->hidden);
                for (int c = 0; c < shape->hidden; c++)
                    wide[c] *= factor;
                to_bf16(row, wide, shape->hidden);
                row += shape->hidden;
            }
        }
    }
    free(wide);
}

/* out[t] = sum of weight * row over the token's k rows, in one pass over its columns. */
static void scatter(struct state *s, int scene, float *out)
{
    const struct shape *shape = s->shape;
    const int k = shape->top_k, hidden = shape->hidden;

    for (int t = 0; t < shape->tokens; t++) {
        const size_t first = (size_t)t * (size_t)k;
        const uint16_t *rows[TOP_K_MAX];
        __m256 weights[TOP_K_MAX];
        float *to = out + (size_t)t * (size_t)hidden;

        for (int i = 0; i < k; i++) {
            rows[i] =
                row_of(s, s->scenes[scene].ids[first + (size_t)i], s->place[first + (size_t)i]);
            weights[i] = _mm256_set1_ps(s->scenes[scene].weights[first + (size_t)i]);
        }
        for (int c = 0; c < hidden; c += 16) {
            __m256 low = _mm256_setzero_ps(), high = low;

            for (int i = 0; i < k; i++) {
                const __m256i v = _mm256_loadu_si256((const void *)(rows[i] + c));
                const __m256i a = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(v));
                const __m256i b = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1));

                low =
                    _mm256_fmadd_ps(weights[i], _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), low);
                high = _mm256_fmadd_ps(weights[i], _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)),
                                       high);
            }
            _mm256_storeu_ps(to + c, low);
            _mm256_storeu_ps(to + c + 8, high);
        }
    }
}

static void mode_round(void *state, int scene, bool compute, float *out)
{
    struct state *s = state;
    int n_recv;

    count_rows(s, scene);
    MPI_Alltoall(s->send_counts, s->most, MPI_INT32_T, s->recv_counts, s->most, MPI_INT32_T,
                 MPI_COMM_WORLD);
    n_recv = place_rows(s);
    gather(s, scene);
    MPI_Alltoallv(s->send, s->send_rows, s->send_at, s->row_type, s->recv, s->recv_rows, s->recv_at,
                  s->row_type, MPI_COMM_WORLD);
    s->sink += touch(s->recv, (size_t)n_recv * (size_t)s->shape->hidden * sizeof *s->recv);
    if (compute)
        run_experts(s);
    MPI_Alltoallv(s->recv, s->recv_rows, s->recv_at, s->row_type, s->send, s->send_rows, s->send_at,
                  s->row_type, MPI_COMM_WORLD);
    scatter(s, scene, out);

    s->bytes_out = (size_t)(s->shape->n_ranks - 1) * (size_t)s->most * sizeof *s->send_counts;
    for (int r = 0; r < s->shape->n_ranks; r++)
        s->bytes_out += (size_t)(s->send_rows[r] + s->recv_rows[r]) * (size_t)s->shape->hidden * 2;
}

static void *mode_create(const struct shape *shape, const struct routing *scenes, int n_scenes,
                         const float *x)
{
    struct state *s = memory_take(sizeof *s);
    const size_t row_bytes = (size_t)shape->hidden * sizeof *s->row;
    const size_t n_pairs = (size_t)shape->tokens * (size_t)shape->top_k;
    int most_received = 0;

    s->shape = shape;
    s->scenes = scenes;
    s->x = x;
    for (int r = 0; r < shape->n_ranks; r++) {
        const int n = shape->begin[r + 1] - shape->begin[r];

        s->most = n > s->most ? n : s->most;
    }
    s->send_counts = memory_take((size_t)shape->n_ranks * (size_t)s->most * sizeof(int32_t));
    s->recv_counts = memory_take((size_t)shape->n_ranks * (size_t)s->most * sizeof(int32_t));
    s->next = memory_take((size_t)shape->experts * sizeof *s->next);
    s->place = memory_take(n_pairs * sizeof *s->place);
    s->row = memory_take(row_bytes);
    s->send = memory_take(n_pairs * row_bytes);
    for (int scene = 0; scene < n_scenes; scene++) {
        int n;

        count_rows(s, scene);
        MPI_Alltoall(s->send_counts, s->most, MPI_INT32_T, s->recv_counts, s->most, MPI_INT32_T,
                     MPI_COMM_WORLD);
        n = place_rows(s);
        most_received = n > most_received ? n : most_received;
    }
    s->recv = memory_take((size_t)most_received * row_bytes);
    MPI_Type_contiguous((int)row_bytes, MPI_BYTE, &s->row_type);
    MPI_Type_commit(&s->row_type);
    return s;
}

static void mode_destroy(void *state)
{
    struct state *s = state;

    MPI_Type_free(&s->row_type);
    free(s->send_counts);
    free(s->recv_counts);
    free(s->next);
    free(s->place);
    free(s->row);
    free(s->send);
    free(s->recv);
    free(s);
}

static void mode_direct(void *state, int scene, int token, bool computed, float *ret_sum)
{
    struct state *s = state;
    const int k = s->shape->top_k, hidden = s->shape->hidden;
    float *wide = memory_take((size_t)hidden * sizeof *wide);
    const size_t first = (size_t)token * (size_t)k;

    memset(ret_sum, 0, (size_t)hidden * sizeof *ret_sum);
    for (int i = 0; i < k; i++) {
        const int expert = s->scenes[scene].ids[first + (size_t)i];

        to_bf16(s->row, s->x + (size_t)token * (size_t)hidden, hidden);
        from_bf16(wide, s->row, hidden);
        for (int c = 0; computed && c < hidden; c++)
            wide[c] *= expert_factor(expert);
        to_bf16(s->row, wide, hidden);
        from_bf16(wide, s->row, hidden);
        for (int c = 0; c < hidden; c++)
            ret_sum[c] += s->scenes[scene].weights[first + (size_t)i] * wide[c];
    }
    free(wide);
}

static size_t mode_bytes(void *state)
{
    return ((struct state *)state)->bytes_out;
}

const struct mode mode_a = {"A", mode_create, mode_round, mode_destroy, mode_direct, mode_bytes};
