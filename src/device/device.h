/* What a backend is: memory, weights in its own layout, and the operations of a forward pass over
 * many rows.
 *
 * Why here: `model` is written against these functions, so that CUDA comes later behind the same
 * seam. Operations are coarse (a whole matrix, a whole attention) since a call may be a kernel
 * launch. It must not know architectures, routing or files.
 *
 * Every operation is called from the engine thread, returns when its result is visible to the next
 * operation, never allocates and never fails: shapes were checked when the model was loaded.
 * Pointers are device memory. Bits do not depend on the number of threads (law 2). */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include "base/cpu.h"
#include "base/pool.h"
#include "ferry/status.h"
#include "kernel/kernel.h"
#include "tensor/act.h"
#include "tensor/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;

/* One weight matrix [n_cols, k], out = W x. */
struct weight {
    enum dtype dtype;
    size_t n_cols, k;
    const void *packed; /* column groups (kernel/kernel.h), or NULL: used from the file rows */
    const void *rows;   /* file rows, row_bytes apart; may be NULL once packed */
    size_t row_bytes;
    size_t group_bytes; /* of the packed layout */
};

/* Activation rows in the formats that the weights of a group consume. */
struct act_rows {
    const float *f32; /* [n, k], f32_stride floats apart */
    size_t f32_stride;
    void *a32; /* A32 rows, act_row_bytes() apart; NULL when no weight of the group takes them */
    size_t k;
};

/* One product of a group that shares its activations: out [n_rows, n_cols], out_stride floats
 * apart; bias [n_cols] or NULL is added after the product. */
struct matmul_out {
    const struct weight *weight;
    float *out;
    size_t out_stride;
    const float *bias;
};

/* A gated feed-forward block: down(silu(gate(x)) * up(x)). */
struct ffn_weights {
    struct weight gate, up, down;
};

/* Grouped expert feed-forward. Slots are (token, expert) pairs sorted by expert: expert e owns
 * slots [begin[e], begin[e + 1]). */
struct ffn_job {
    const struct ffn_weights *experts; /* [n_experts] */
    size_t n_experts;
    const int32_t *begin;      /* [n_experts + 1] */
    struct act_rows in;        /* slot i reads row i, but for formats that follow */
    const void *const *a32_at; /* [n_slots] where each slot's row is as A32, and as f32 */
    const void *const *f32_at;
    void *hidden; /* scratch: n_slots rows of the down matrix's activation format, act_row_bytes()
                     apart */
    float *out;   /* [n_slots, n_cols of down] */
    size_t out_stride;
};

/* Attention of one run of rows of one sequence: n_rows consecutive positions from first_position.
 */
struct attn_run {
    const float *q;              /* [n_rows, n_heads * head_dim] */
    float *out;                  /* same shape */
    unsigned char *const *pages; /* page c holds positions [128 c, 128 c + 128) of all layers */
    size_t first_position;
    size_t n_rows;
    const float *k, *v; /* [n_rows, n_kv_heads * head_dim]: stored first; NULL: stored before */
};

struct attn_shape {
    size_t n_heads, n_kv_heads, head_dim;
    enum dtype kv_dtype;
    size_t page_offset; /* bytes from the start of a page to this layer's part */
    size_t window;      /* keys that a query sees, its own included; 0: all */
    float scale;
};

/* Bytes of one layer in one KV page. */
size_t attn_layer_bytes(const struct attn_shape *shape);

struct device_options {
    int n_threads;        /* 0: all processors that the process may use */
    enum cpu_level level; /* best level allowed */
};

/* The CPU backend. Errors: FERRY_ERR_NOMEM, FERRY_ERR_IO (threads). */
enum ferry_status device_create_cpu(struct device **ret_device,
                                    const struct device_options *options,
                                    struct ferry_error *err) FERRY_MUST_CHECK;
void device_destroy(struct device *device);

/* Largest sizes that operations will be called with; scratch is taken once, before the first step.
 * May be called again with larger sizes (a second model). FERRY_ERR_NOMEM. */
struct device_limits {
    size_t n_slots; /* of one ffn_job */
    size_t n_heads, n_kv_heads, head_dim;
    size_t group_bytes; /* of the largest weight that is used unpacked; 0: all are packed */
};
enum ferry_status device_reserve(struct device *device, const struct device_limits *limits,
                                 struct ferry_error *err) FERRY_MUST_CHECK;

/* Bytes that device_reserve takes for these limits, for the memory plan. */
size_t device_reserve_bytes(const struct device *device, const struct device_limits *limits);

/* Borrowed; for `routing` and for messages. */
const struct kernels *device_kernels(const struct device *device);
int device_threads(const struct device *device);

/* Bytes that a packed matrix takes. False on overflow. */
bool device_weight_bytes(enum dtype dtype, size_t n_cols, size_t k, size_t *ret_bytes);

/* Packs `weight` (its rows are set) into dst [device_weight_bytes], 64-byte aligned, and sets
 * weight->packed. Exact. */
void device_weight_pack(struct device *device, struct weight *weight, void *dst);

/* The same by the calling thread alone, which may be any: beside operations of the engine thread.
 */
void device_weight_pack_alone(struct weight *weight, void *dst);

/* out[i] = row ids[i] of a [n_vocab, k] table, decoded to f32 and multiplied by `scale`. ids are in
 * range. */
void device_embed(struct device *device, const struct weight *table, const int32_t *ids, size_t n,
                  float scale, float *out);

/* RMS norm of n rows of k: out may be x. */
void device_rms_norm(struct device *device, float *out, const float *x, const float *w, size_t n,
                     size_t k, float eps);

/* RMS norm of each of n_heads heads of head_dim inside rows `stride` floats apart, in place. */
void device_head_norm(struct device *device, float *x, size_t stride, const float *w, size_t n,
                      size_t n_heads, size_t head_dim, float eps);

/* Quantises f32 rows into rows->a32. */
void device_quantize(struct device *device, const struct act_rows *rows, size_t n);

/* Products of n_rows activation rows with 1..4 weights. */
void device_matmul(struct device *device, const struct act_rows *rows, size_t n_rows,
                   const struct matmul_out *outs, size_t n_outs);

/* The experts of one layer over all slots; each active expert's weights are read once. Returns the
 * rows that it computed. */
size_t device_ffn(struct device *device, const struct ffn_job *job);

/* Turns n_rows rows of q and k in place; cos and sin [n_rows, n_pairs]. */
struct rope_job {
    float *q, *k;
    size_t q_stride, k_stride;
    size_t n_heads, n_kv_heads, head_dim, n_pairs;
    const float *cos, *sin;
    bool interleaved;
};
void device_rope(struct device *device, const struct rope_job *job, size_t n_rows);

/* Writes rows of k and v [n_rows, n_kv_heads * head_dim] at positions from first_position into the
 * pages. Returns how many finite values became infinite. */
size_t device_kv_store(struct device *device, const struct attn_shape *shape,
                       unsigned char *const *pages, size_t first_position, size_t n_rows,
                       const float *k, const float *v);

/* Stores k and v of the runs that have them, as device_kv_store does, then attends. No run may read
 * what another run of the call stores: runs are of distinct sequences, or stored before. Returns
 * how many finite values became infinite. Scratch is the device's own. */
size_t device_attention(struct device *device, const struct attn_shape *shape,
                        const struct attn_run *runs, size_t n_runs);

/* y += x, y *= s, clamp to +-limit; n floats. */
void device_add(struct device *device, float *y, const float *x, size_t n);
void device_scale(struct device *device, float *y, float s, size_t n);
void device_clamp(struct device *device, float *y, float limit, size_t n);

/* Row i of y times sigmoid(gate[i]). */
void device_gate_rows(struct device *device, float *y, const float *gate, size_t n, size_t k);

/* Runs fn over [0, n) on the device's threads (routing, combine). */
void device_for(struct device *device, size_t n, size_t grain, pool_fn *fn, void *arg);

#endif
