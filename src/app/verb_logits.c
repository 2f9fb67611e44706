/* ferry logits: f32 logits of given token ids, for parity checks. */
#include "app/app.h"

#include "base/error.h"
#include "base/log.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct logits_options {
    struct shared_options shared;
    const char *ids, *ids_file, *out;
    size_t last; /* only the last n positions; 0: all */
};

enum { KEY_IDS = 0x200, KEY_IDS_FILE, KEY_OUT, KEY_LAST };

static const struct argp_option OPTIONS[] = {
    {"ids", KEY_IDS, "1,2,3", 0, "Token ids", 1},
    {"ids-file", KEY_IDS_FILE, "F", 0, "File of token ids, separated by commas or white space", 1},
    {"out", KEY_OUT, "F.safetensors", 0, "Where the tensor 'logits' [n, vocab] goes", 1},
    {"last", KEY_LAST, "N", 0, "Only the last N positions", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct logits_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->shared;
        return 0;
    case KEY_IDS:
        o->ids = arg;
        return 0;
    case KEY_IDS_FILE:
        o->ids_file = arg;
        return 0;
    case KEY_OUT:
        o->out = arg;
        return 0;
    case KEY_LAST:
        if (!parse_size(arg, 1, SIZE_MAX, &o->last))
            argp_failure(state, EXIT_USAGE, 0, "--last '%s' is not a whole number >= 1", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

struct writer {
    struct output output;
    size_t n_vocab;
};

static enum ferry_status write_header(struct writer *w, const char *path, size_t n_rows,
                                      size_t n_vocab, struct ferry_error *err)
{
    char header[256];

    w->n_vocab = n_vocab;
    int n =
        snprintf(header, sizeof header,
                 "{\"logits\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu],\"data_offsets\":[0,%zu]}}",
                 n_rows, n_vocab, n_rows * n_vocab * sizeof(float));
    while (n % 8 != 0)
        header[n++] = ' ';
    uint64_t size = htole64((uint64_t)n);
    if (fwrite(&size, sizeof size, 1, w->output.f) != 1 ||
        fwrite(header, (size_t)n, 1, w->output.f) != 1)
        return FERRY_FAIL(err, FERRY_ERR_IO, "cannot write '%s': %s", path, strerror(errno));
    return FERRY_OK;
}

static enum ferry_status write_row(void *arg, size_t feed_index, size_t position,
                                   const float *logits)
{
    struct writer *w = arg;

    (void)feed_index;
    (void)position;
    return fwrite(logits, sizeof *logits, w->n_vocab, w->output.f) == w->n_vocab ? FERRY_OK
                                                                                 : FERRY_ERR_IO;
}

static enum ferry_status write_logits(struct logits_options *o, const struct token_ids *ids,
                                      int *ret_code, struct ferry_error *err)
{
    struct loaded loaded = {0};
    struct load_request request = {.n_sequences = 1, .context = ids->count, .weights = true};
    struct writer writer = {0};
    struct sequence *sequence = NULL;
    size_t n_rows = o->last > 0 && o->last < ids->count ? o->last : ids->count;

    enum ferry_status st = loaded_open(&loaded, &o->shared, &request, err);
    if (st == FERRY_OK)
        st = output_open(&writer.output, o->out, loaded.checkpoint, err);
    if (st == FERRY_OK)
        st = write_header(&writer, o->out, n_rows, model_config(loaded.model)->n_vocab, err);
    if (st == FERRY_OK)
        st = sequence_open(loaded.engine, &sequence, err);
    if (st == FERRY_OK) {
        struct engine_feed feed = {sequence, ids->ids, ids->count, n_rows};
        st = engine_feed(loaded.engine, &feed, 1, write_row, &writer, err);
        if (st == FERRY_ERR_IO)
            st = FERRY_FAIL(err, FERRY_ERR_IO, "cannot write '%s': %s", o->out, strerror(errno));
    }
    st = output_close(&writer.output, o->out, st, err);
    if (st == FERRY_OK && o->shared.json)
        *ret_code = print_json(json_pack("{s:s, s:I, s:I, s:s}", "file", o->out, "n_positions",
                                         (json_int_t)n_rows, "n_vocab", (json_int_t)writer.n_vocab,
                                         "numerics", model_numerics(loaded.model)));
    loaded_close(&loaded);
    return st;
}

int verb_logits(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&shared_argp, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        OPTIONS,  parse, "MODEL", "Writes f32 logits [n, vocab] of token ids.",
        CHILDREN, NULL,  NULL};
    struct logits_options o = {0};
    struct ferry_error err = {0};
    struct token_ids ids = {0};
    int code = EXIT_GOOD;

    if (!parse_flags(&ARGP, argc, argv, &o.shared, &o))
        return EXIT_USAGE;
    if (o.out == NULL || (o.ids == NULL) == (o.ids_file == NULL)) {
        LOG_ERROR("logits needs --out and one of --ids and --ids-file");
        return EXIT_USAGE;
    }
    if (rank_under_mpirun(&o.shared, 0, &code))
        return code;
    enum ferry_status st = read_ids(o.ids, o.ids_file, &ids, &err);
    if (st == FERRY_OK && ids.count == 0)
        st = FERRY_FAIL(&err, FERRY_ERR_ARG, "there are no token ids");
    if (st == FERRY_OK)
        st = write_logits(&o, &ids, &code, &err);
    token_ids_fini(&ids);
    return st == FERRY_OK ? code : fail(st, &err);
}
