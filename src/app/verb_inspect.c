/* ferry inspect: what a checkpoint is, what it will cost, alone or in a group of ranks, and whether
 * it can be loaded. Reads no weight data but hashes on request, and writes them down as a manifest
 * that every load compares with. */
#include "app/app.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/size.h"
#include "expert/manifest.h"
#include "file/gguf.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Code, libraries, stacks and allocator slack of a process that has loaded and not yet stepped,
 * measured: the same with the model in the repository as with 223 MB of weights and 200,000 tokens.
 * Steps add what they touch: KV pages and rows of the mapped embedding. */
enum { PROCESS_BYTES = 12 << 20 };

struct inspect_options {
    struct shared_options shared;
    bool tensors, keys, hashes, write_manifest;
    const char *manifest; /* NULL: where it will be looked for */
};

enum { KEY_TENSORS = 0x200, KEY_KEYS, KEY_HASHES, KEY_WRITE_MANIFEST };

static const struct argp_option OPTIONS[] = {
    {"tensors", KEY_TENSORS, NULL, 0, "List every tensor", 1},
    {"keys", KEY_KEYS, NULL, 0, "List the metadata keys (GGUF)", 1},
    {"hashes", KEY_HASHES, NULL, 0,
     "SHA-256 of every expert's bytes (reads the whole file); an error when one is not what the "
     "manifest says",
     1},
    {"write-manifest", KEY_WRITE_MANIFEST, "FILE", OPTION_ARG_OPTIONAL,
     "Write the SHA-256 of every expert to FILE (a new one), or to where loading looks for it and "
     "compares: ferry-manifest.json in the folder, or MODEL.ferry.json",
     1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct inspect_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->shared;
        return 0;
    case KEY_TENSORS:
        o->tensors = true;
        return 0;
    case KEY_KEYS:
        o->keys = true;
        return 0;
    case KEY_HASHES:
        o->hashes = true;
        return 0;
    case KEY_WRITE_MANIFEST:
        if (arg != NULL && arg[0] == 0)
            argp_error(state, "--write-manifest= needs a file's name");
        o->write_manifest = true;
        o->manifest = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Tensor data by number format. */
struct by_dtype {
    size_t count[DTYPE_COUNT];
    uint64_t bytes[DTYPE_COUNT];
};

static struct by_dtype count_dtypes(const struct checkpoint *checkpoint)
{
    struct by_dtype n = {0};

    for (size_t i = 0; i < checkpoint_n_tensors(checkpoint); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor(checkpoint, i);
        n.count[t->dtype]++;
        n.bytes[t->dtype] += t->size_bytes;
    }
    return n;
}

/* What will be resident: packed weights (or the mapped file), the plan of a step, KV of one full
 * sequence, logits, the tokenizer's tables. */
struct memory_table {
    size_t context, weights, step, kv, logits, tokenizer, total, resident, kv_per_token;
};

static struct memory_table memory_of(const struct inspect_options *o, const struct loaded *l)
{
    const struct model_plan *plan = model_plan(l->model);
    const struct model_config *c = model_config(l->model);
    size_t context = o->shared.context > 0 ? o->shared.context : min_size(c->context, 4096);
    struct engine_options engine = {.n_sequences = 1, .context = context};
    struct memory_table m = {
        .context = context, .step = plan->step, .kv_per_token = plan->kv_per_token};

    m.weights = plan->weights_packed > 0 ? plan->weights_packed : plan->weights_file;
    m.logits = model_options(l->model)->step_logits * c->n_vocab * sizeof(float);
    m.kv = engine_bytes(l->model, &engine) - m.logits;
    /* KV pages become resident as they are written; the rest is there after loading. */
    m.tokenizer = l->tokenizer != NULL ? tokenizer_bytes(l->tokenizer) : 0;
    m.resident = m.weights + m.step + m.logits + m.tokenizer + PROCESS_BYTES;
    m.total = m.resident + m.kv;
    return m;
}

static const char *router_text(const struct model_config *c, char text[96])
{
    (void)snprintf(text, 96, "%s, top-%zu of %zu%s%s",
                   c->router.score == ROUTER_SCORE_SOFTMAX ? "softmax over all" : "raw logits",
                   c->router.top_k, c->router.n_experts,
                   c->router.post == ROUTER_POST_SOFTMAX ? ", softmax over selected" : "",
                   c->router.renormalise ? ", renormalised" : "");
    return text;
}

static size_t n_expert_layers(const struct model_config *c)
{
    size_t n = 0;
    for (size_t l = 0; l < c->n_layers; l++)
        n += c->layer_has_experts[l];
    return n;
}

/* The checkpoint comes without; a tokenizer that is there and cannot be read is another case. */
static bool has_no_tokenizer(const struct loaded *l)
{
    return l->tokenizer == NULL && l->tokenizer_error.status == FERRY_ERR_NOT_FOUND;
}

static void print_checks(const struct loaded *l, const char *root)
{
    (void)printf("  checks      every tensor is used exactly once\n");
    if (root != NULL)
        (void)printf("              loading compares each expert's SHA-256 with the manifest (root "
                     "%.16s)\n",
                     root);
    else
        (void)printf("              no manifest: nothing to compare experts' SHA-256 with\n");
    if (checkpoint_n_stale(l->checkpoint) > 0)
        (void)printf("              %zu entries of the index disagree with the files' headers; the "
                     "headers count\n",
                     checkpoint_n_stale(l->checkpoint));
}

/* root: of the manifest that loading compares with; NULL: there is none. */
static void print_people(const struct inspect_options *o, const struct loaded *l, const char *root)
{
    const struct model_config *c = model_config(l->model);
    const struct model_plan *plan = model_plan(l->model);
    struct by_dtype dtypes = count_dtypes(l->checkpoint);
    struct memory_table m = memory_of(o, l);
    char a[32], b[32], router[96];

    (void)printf("%s (%s, %s)\n", c->name, c->arch->name,
                 checkpoint_format(l->checkpoint) == CHECKPOINT_FORMAT_GGUF ? "GGUF"
                                                                            : "safetensors");
    (void)printf("  layers      %zu (%zu with experts), hidden %zu, vocabulary %zu, context %zu\n",
                 c->n_layers, n_expert_layers(c), c->hidden, c->n_vocab, c->context);
    (void)printf("  attention   %zu heads, %zu key/value heads of %zu\n", c->n_heads, c->n_kv_heads,
                 c->head_dim);
    (void)printf("  experts     width %zu%s; router: %s\n", c->expert_width,
                 c->shared_width > 0 ? " and a shared one" : "", router_text(c, router));
    (void)printf("  tensors     %zu, %zu on the ignore list\n", checkpoint_n_tensors(l->checkpoint),
                 model_n_ignored(l->model));
    for (int d = 0; d < DTYPE_COUNT; d++) {
        if (dtypes.count[d] > 0)
            (void)printf("    %-8s  %6zu  %s\n", dtype_name((enum dtype)d), dtypes.count[d],
                         bytes_text((double)dtypes.bytes[d], a));
    }
    (void)printf("  memory%s\n",
                 o->shared.group.n_ranks > 1 ? "      of a rank that held everything" : "");
    if (plan->weights_packed > 0)
        (void)printf("    weights   %s, repacked (file: %s)\n", bytes_text((double)m.weights, a),
                     bytes_text((double)plan->weights_file, b));
    else
        (void)printf("    weights   %s, used from the file's mapping\n",
                     bytes_text((double)m.weights, a));
    (void)printf("    KV cache  %s for one sequence of %zu tokens (%s per token, %s)\n",
                 bytes_text((double)m.kv, a), m.context, bytes_text((double)m.kv_per_token, b),
                 dtype_name(o->shared.kv));
    (void)printf("    step      %s, logits %s\n", bytes_text((double)m.step, a),
                 bytes_text((double)m.logits, b));
    if (l->tokenizer != NULL)
        (void)printf("    tokenizer %s\n", bytes_text((double)m.tokenizer, a));
    else if (has_no_tokenizer(l))
        (void)printf("    tokenizer none\n");
    else
        (void)printf("    tokenizer cannot be read: %s\n", l->tokenizer_error.msg);
    (void)printf("    process   %s\n", bytes_text(PROCESS_BYTES, a));
    (void)printf("    total     %s after loading, %s with a full KV cache\n",
                 bytes_text((double)m.resident, a), bytes_text((double)m.total, b));
    (void)printf("  numerics    %s\n", model_numerics(l->model));
    print_checks(l, root);
}

/* ---- a group of ranks (--ranks) ---- */

/* What one rank would hold. */
struct rank_share {
    size_t experts, weights, room; /* room: bytes for experts of another rank that is lost */
};

struct group_table {
    size_t n_ranks;
    int survived; /* losses, whichever ranks they are, before an expert has to be loaded */
    struct rank_share ranks[LIMIT_SEATS];
};

static enum ferry_status group_table(const struct inspect_options *o, const struct loaded *l,
                                     struct group_table *ret, struct ferry_error *err)
{
    const struct group_options *group = &o->shared.group;
    const struct model_plan *plan = model_plan(l->model);
    struct placement *placement = NULL;

    *ret = (struct group_table){.n_ranks = group->n_ranks};
    if (group->n_ranks < 2)
        return FERRY_OK;
    enum ferry_status st = group_placement(&placement, group, model_config(l->model), err);
    for (size_t r = 0; r < ret->n_ranks && st == FERRY_OK; r++) {
        st = model_join(l->model, NULL, placement, (int)r, err);
        ret->ranks[r] = (struct rank_share){
            .experts = plan->experts_held,
            .weights = plan->weights_packed > 0 ? plan->weights_packed : plan->weights_file,
            .room = plan->room_packed};
    }
    if (st == FERRY_OK)
        ret->survived =
            placement_losses_survived(placement, (UINT64_C(2) << (ret->n_ranks - 1)) - UINT64_C(1));
    /* The plan is that of one rank again. */
    if (model_join(l->model, NULL, NULL, 0, NULL) != FERRY_OK && st == FERRY_OK)
        st = FERRY_FAIL(err, FERRY_ERR_ARG, "inspect: the model cannot be held by one rank");
    placement_destroy(placement);
    return st;
}

static void print_group(const struct group_table *g)
{
    char a[32], b[32];

    if (g->n_ranks < 2)
        return;
    (void)printf("  group       %zu ranks\n", g->n_ranks);
    for (size_t r = 0; r < g->n_ranks; r++)
        (void)printf(
            "    seat %-4zu %zu experts over all layers, weights %s, room for a lost rank's "
            "%s\n",
            r, g->ranks[r].experts, bytes_text((double)g->ranks[r].weights, a),
            bytes_text((double)g->ranks[r].room, b));
    (void)printf("    losses    any %d without a load, then one after the other down to one rank, "
                 "with loads from the file\n",
                 g->survived);
}

static json_t *group_json(const struct group_table *g)
{
    json_t *seats = json_array();

    for (size_t r = 0; r < g->n_ranks; r++)
        (void)json_array_append_new(
            seats, json_pack("{s:I, s:I, s:I}", "experts", (json_int_t)g->ranks[r].experts,
                             "weights_bytes", (json_int_t)g->ranks[r].weights, "room_bytes",
                             (json_int_t)g->ranks[r].room));
    return json_pack("{s:I, s:i, s:I, s:o}", "ranks", (json_int_t)g->n_ranks,
                     "losses_survived_by_replicas", g->survived, "losses_survived_by_file",
                     (json_int_t)(g->n_ranks - 1), "seats", seats);
}

/* ---- JSON and lists ---- */

static json_t *tensors_json(const struct checkpoint *checkpoint)
{
    json_t *list = json_array();

    for (size_t i = 0; i < checkpoint_n_tensors(checkpoint); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor(checkpoint, i);
        json_t *dims = json_array();
        for (int d = 0; d < t->n_dims; d++)
            (void)json_array_append_new(dims, json_integer((json_int_t)t->dims[d]));
        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:o, s:s, s:I, s:I}", "name", t->name, "dtype",
                            dtype_name(t->dtype), "shape", dims, "file", t->file, "offset",
                            (json_int_t)t->offset, "bytes", (json_int_t)t->size_bytes));
    }
    return list;
}

static json_t *keys_json(const struct checkpoint *checkpoint)
{
    const struct gguf_meta *meta = checkpoint_meta(checkpoint);
    json_t *keys = json_object();
    char text[160];

    for (size_t i = 0; meta != NULL && i < gguf_n_keys(meta); i++) {
        gguf_describe(meta, i, text, sizeof text);
        error_make_printable(text); /* descriptions are cut, maybe inside a character */
        (void)json_object_set_new(keys, gguf_key(meta, i), json_string(text));
    }
    return keys;
}

/* Fills ret_hex; whether there is no manifest, or it says the same. */
static bool hash_is_good(const struct loaded *l, size_t layer, size_t expert, char ret_hex[65])
{
    const char *wanted = model_manifest_hash(l->model, layer, expert);

    model_expert_hash(l->model, layer, expert, ret_hex);
    return wanted == NULL || strcmp(wanted, ret_hex) == 0;
}

/* *ret_n_bad: that differ from the manifest. */
static json_t *hashes_json(const struct loaded *l, size_t *ret_n_bad)
{
    const struct model_config *c = model_config(l->model);
    json_t *layers = json_array();
    char hex[65];

    for (size_t layer = 0; layer < c->n_layers; layer++) {
        json_t *experts = json_array();
        for (size_t e = 0; e < c->router.n_experts && c->layer_has_experts[layer]; e++) {
            *ret_n_bad += !hash_is_good(l, layer, e, hex);
            (void)json_array_append_new(experts, json_string(hex));
        }
        (void)json_array_append_new(layers, experts);
    }
    return layers;
}

static int print_machine(const struct inspect_options *o, const struct loaded *l, const char *root,
                         const struct group_table *group, size_t *ret_n_bad)
{
    const struct model_config *c = model_config(l->model);
    const struct model_plan *plan = model_plan(l->model);
    struct memory_table m = memory_of(o, l);
    char header_hash[65];
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:I}",
        "name", c->name, "architecture", c->arch->name, "format",
        checkpoint_format(l->checkpoint) == CHECKPOINT_FORMAT_GGUF ? "gguf" : "safetensors",
        "n_layers", (json_int_t)c->n_layers, "n_expert_layers", (json_int_t)n_expert_layers(c),
        "hidden", (json_int_t)c->hidden, "n_vocab", (json_int_t)c->n_vocab, "context",
        (json_int_t)c->context, "n_heads", (json_int_t)c->n_heads, "n_kv_heads",
        (json_int_t)c->n_kv_heads, "head_dim", (json_int_t)c->head_dim, "n_experts",
        (json_int_t)c->router.n_experts, "top_k", (json_int_t)c->router.top_k, "expert_width",
        (json_int_t)c->expert_width, "renormalise", (int)c->router.renormalise, "numerics",
        model_numerics(l->model), "n_tensors", (json_int_t)checkpoint_n_tensors(l->checkpoint));
    json_t *memory =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "weights_bytes",
                  (json_int_t)m.weights, "weights_file_bytes", (json_int_t)plan->weights_file,
                  "step_bytes", (json_int_t)m.step, "kv_bytes", (json_int_t)m.kv,
                  "kv_bytes_per_token", (json_int_t)m.kv_per_token, "logits_bytes",
                  (json_int_t)m.logits, "tokenizer_bytes", (json_int_t)m.tokenizer, "process_bytes",
                  (json_int_t)PROCESS_BYTES, "total_bytes", (json_int_t)m.total, "resident_bytes",
                  (json_int_t)m.resident, "context", (json_int_t)m.context);
    (void)json_object_set_new(json, "memory", memory);
    (void)json_object_set_new(json, "tokenizer",
                              json_string(l->tokenizer != NULL  ? "good"
                                          : has_no_tokenizer(l) ? "none"
                                                                : "unreadable"));
    if (l->tokenizer == NULL && !has_no_tokenizer(l))
        (void)json_object_set_new(json, "tokenizer_error", json_string(l->tokenizer_error.msg));
    checkpoint_header_hash(l->checkpoint, header_hash);
    (void)json_object_set_new(json, "header_hash", json_string(header_hash));
    (void)json_object_set_new(json, "manifest_root", json_string(root != NULL ? root : ""));
    if (group->n_ranks > 1)
        (void)json_object_set_new(json, "group", group_json(group));
    if (o->tensors)
        (void)json_object_set_new(json, "tensors", tensors_json(l->checkpoint));
    if (o->hashes)
        (void)json_object_set_new(json, "expert_sha256", hashes_json(l, ret_n_bad));
    if (o->keys)
        (void)json_object_set_new(json, "keys", keys_json(l->checkpoint));
    return print_json(json);
}

/* Returns how many experts differ from the manifest. */
static size_t print_lists(const struct inspect_options *o, const struct loaded *l)
{
    size_t n_bad = 0;
    const struct checkpoint *checkpoint = l->checkpoint;
    char text[160], hex[65];

    for (size_t i = 0; o->tensors && i < checkpoint_n_tensors(checkpoint); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor(checkpoint, i);
        (void)printf("tensor %-60s %-7s", t->name, dtype_name(t->dtype));
        for (int d = 0; d < t->n_dims; d++)
            (void)printf(d > 0 ? "x%llu" : " %llu", (unsigned long long)t->dims[d]);
        (void)printf("  %s+%llu\n", t->file, (unsigned long long)t->offset);
    }
    const struct gguf_meta *meta = checkpoint_meta(checkpoint);
    for (size_t i = 0; o->keys && meta != NULL && i < gguf_n_keys(meta); i++) {
        gguf_describe(meta, i, text, sizeof text);
        error_make_printable(text);
        (void)printf("key %s = %s\n", gguf_key(meta, i), text);
    }
    const struct model_config *c = model_config(l->model);
    for (size_t layer = 0; o->hashes && layer < c->n_layers; layer++) {
        for (size_t e = 0; e < c->router.n_experts && c->layer_has_experts[layer]; e++) {
            bool good = hash_is_good(l, layer, e, hex);
            (void)printf("expert %zu.%zu %s%s\n", layer, e, hex,
                         good ? "" : " is not what the manifest says");
            n_bad += !good;
        }
    }
    return n_bad;
}

/* Not over one that is there: it may be what the weights were published with. *ret_root: of what
 * loading compares with from now on. */
static enum ferry_status write_manifest(const struct inspect_options *o, const struct loaded *l,
                                        char written[65], const char **ret_root,
                                        struct ferry_error *err)
{
    char *place = expert_manifest_path(l->checkpoint);
    const char *path = o->manifest != NULL ? o->manifest : place;
    enum ferry_status st = FERRY_OK;
    struct stat info;

    if (place == NULL)
        st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "inspect: no memory");
    else if (lstat(path, &info) == 0) /* told before everything is read */
        st = FERRY_FAIL(err, FERRY_ERR_ARG,
                        "inspect: %s is there already and is not replaced; remove it first, or "
                        "write to another place",
                        path);
    else
        st = model_write_manifest(l->model, path, written, err);
    if (st == FERRY_OK)
        (void)fprintf(stderr, "ferry: wrote the SHA-256 of every expert to %s\n", path);
    if (st == FERRY_OK && strcmp(path, place) == 0)
        *ret_root = written;
    mem_free(place);
    return st;
}

int verb_inspect(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&shared_argp, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        OPTIONS,  parse, "MODEL", "Architecture, experts, tensors, memory plan, file checks.",
        CHILDREN, NULL,  NULL};
    struct inspect_options o = {0};
    struct loaded loaded = {0};
    struct group_table group;
    struct load_request request = {.any_tokenizer = true};
    struct ferry_error err = {0};
    char written[65];
    size_t n_bad = 0;
    int code = EXIT_GOOD;

    if (!parse_flags(&ARGP, argc, argv, &o.shared, &o))
        return EXIT_USAGE;
    enum ferry_status st = loaded_open(&loaded, &o.shared, &request, &err);
    if (st == FERRY_OK)
        st = group_table(&o, &loaded, &group, &err);
    const char *root = st == FERRY_OK ? model_manifest_root(loaded.model) : NULL;
    if (st == FERRY_OK && o.write_manifest)
        st = write_manifest(&o, &loaded, written, &root, &err);
    if (st == FERRY_OK && o.shared.json)
        code = print_machine(&o, &loaded, root, &group, &n_bad);
    else if (st == FERRY_OK) {
        print_people(&o, &loaded, root);
        print_group(&group);
        n_bad = print_lists(&o, &loaded);
    }
    if (st == FERRY_OK && n_bad > 0)
        st = FERRY_FAIL(&err, FERRY_ERR_FORMAT,
                        "%s: %zu experts are not what the manifest says; the files are damaged or "
                        "other ones: fetch them again",
                        o.shared.model, n_bad);
    loaded_close(&loaded);
    return st == FERRY_OK ? code : fail(st, &err);
}
