/* ferry eval: perplexity and bits per byte of a text. The definition (window, stride, BOS) is in
 * docs/numerics.md, "Perplexity": windows of `window` tokens every `stride`; each token but the
 * first is scored once, in the first window that holds it. */
#include "app/app.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>

struct eval_options {
    struct shared_options shared;
    const char *text_file, *against;
    size_t window, stride, max_tokens;
};

enum { KEY_TEXT_FILE = 0x200, KEY_WINDOW, KEY_STRIDE, KEY_MAX, KEY_AGAINST };

static const struct argp_option OPTIONS[] = {
    {"text-file", KEY_TEXT_FILE, "F", 0, "The text; '-' is standard input", 1},
    {"window", KEY_WINDOW, "N", 0, "Tokens of one window (default 512)", 1},
    {"stride", KEY_STRIDE, "N", 0, "Tokens from one window to the next (default: half a window)",
     1},
    {"max-tokens", KEY_MAX, "N", 0, "Only the first N tokens of the text", 1},
    {"against", KEY_AGAINST, "MODEL", 0,
     "A second model on the same tokens: KL divergence from it, and how often both agree", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct eval_options *o = state->input;
    size_t *number = key == KEY_WINDOW   ? &o->window
                     : key == KEY_STRIDE ? &o->stride
                                         : &o->max_tokens;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->shared;
        return 0;
    case KEY_TEXT_FILE:
        o->text_file = arg;
        return 0;
    case KEY_AGAINST:
        o->against = arg;
        return 0;
    case KEY_WINDOW:
    case KEY_STRIDE:
    case KEY_MAX:
        if (!parse_size(arg, 1, 1u << 24, number))
            flag_failure(state, OPTIONS, key, arg, "is not a whole number in 1..16777216");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Sums over scored tokens. */
struct score {
    const struct token_ids *ids;
    size_t n_vocab;
    size_t window_begin; /* of the window being fed */
    double nll;          /* nats */
    size_t n_scored;
    /* with --against: rows of the other model for the same positions */
    float *rows; /* [window, n_vocab] */
    bool collect;
    double kl;
    size_t n_same_top;
};

static double log_sum_exp(const float *logits, size_t n)
{
    double sum = 0;
    float max = logits[sampler_argmax(logits, n)];

    for (size_t i = 0; i < n; i++)
        sum += (double)math_exp(logits[i] - max);
    return (double)max + math_log_f64(sum);
}

static void compare_rows(struct score *s, const float *ours, const float *theirs)
{
    double lse_ours = log_sum_exp(ours, s->n_vocab), lse_theirs = log_sum_exp(theirs, s->n_vocab),
           kl = 0;

    for (size_t i = 0; i < s->n_vocab; i++) {
        double log_p = (double)theirs[i] - lse_theirs, log_q = (double)ours[i] - lse_ours;
        kl += math_exp_f64(log_p) * (log_p - log_q);
    }
    s->kl += kl;
    s->n_same_top += sampler_argmax(ours, s->n_vocab) == sampler_argmax(theirs, s->n_vocab);
}

/* The row at `position` of the window predicts the token after it. */
static enum ferry_status score_row(void *arg, size_t feed_index, size_t position,
                                   const float *logits)
{
    struct score *s = arg;
    size_t next = s->window_begin + position + 1;

    (void)feed_index;
    if (s->collect) {
        memcpy(s->rows + position * s->n_vocab, logits, s->n_vocab * sizeof *logits);
        return FERRY_OK;
    }
    if (next >= s->ids->count)
        return FERRY_OK;
    s->nll += log_sum_exp(logits, s->n_vocab) - (double)logits[s->ids->ids[next]];
    s->n_scored++;
    if (s->rows != NULL)
        compare_rows(s, logits, s->rows + position * s->n_vocab);
    return FERRY_OK;
}

static enum ferry_status feed_window(struct loaded *l, struct score *s, size_t n_tokens,
                                     size_t n_rows, struct ferry_error *err)
{
    struct sequence *sequence = NULL;

    enum ferry_status st = sequence_open(l->engine, &sequence, err);
    if (st != FERRY_OK)
        return st;
    struct engine_feed feed = {sequence, s->ids->ids + s->window_begin, n_tokens, n_rows};
    st = engine_feed(l->engine, &feed, 1, score_row, s, err);
    sequence_close(l->engine, sequence);
    return st;
}

static enum ferry_status score_text(const struct eval_options *o, struct loaded *l,
                                    struct loaded *other, struct score *s, struct ferry_error *err)
{
    size_t n = s->ids->count,
           scored_to = 1; /* tokens before this index are scored (or the first, which is not) */
    enum ferry_status st = FERRY_OK;

    for (size_t begin = 0; scored_to < n && st == FERRY_OK; begin += o->stride) {
        size_t end = min_size(begin + o->window, n);
        if (end <= scored_to)
            continue;
        /* The rows that predict tokens [scored_to, end) are those of tokens [scored_to - 1, end -
         * 1). */
        size_t n_rows = end - scored_to;
        s->window_begin = begin;
        if (other != NULL) {
            s->collect = true;
            st = feed_window(other, s, end - 1 - begin, n_rows, err);
            s->collect = false;
        }
        if (st == FERRY_OK)
            st = feed_window(l, s, end - 1 - begin, n_rows, err);
        scored_to = end;
    }
    return st;
}

static int print_score(const struct eval_options *o, const struct loaded *l, const struct score *s,
                       size_t n_bytes, double seconds)
{
    double mean = s->nll / (double)s->n_scored;
    double perplexity = math_exp_f64(mean);
    double bits = s->nll / math_log_f64(2.0) / (double)n_bytes;

    if (o->shared.json) {
        json_t *json = json_pack("{s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:s, s:f}", "perplexity",
                                 perplexity, "nll_nats", s->nll, "bits_per_byte", bits, "n_scored",
                                 (json_int_t)s->n_scored, "n_tokens", (json_int_t)s->ids->count,
                                 "n_bytes", (json_int_t)n_bytes, "window", (json_int_t)o->window,
                                 "stride", (json_int_t)o->stride, "numerics",
                                 model_numerics(l->model), "seconds", seconds);
        if (json != NULL && o->against != NULL) {
            (void)json_object_set_new(json, "kl_nats", json_real(s->kl / (double)s->n_scored));
            (void)json_object_set_new(json, "same_top",
                                      json_real((double)s->n_same_top / (double)s->n_scored));
        }
        return print_json(json);
    }
    (void)printf(
        "perplexity %.4f over %zu tokens (window %zu, stride %zu), %.4f bits per byte, %.1f s\n",
        perplexity, s->n_scored, o->window, o->stride, bits, seconds);
    if (o->against != NULL)
        (void)printf("against %s: KL %.6f nats, same top token %.2f %%\n", o->against,
                     s->kl / (double)s->n_scored,
                     100.0 * (double)s->n_same_top / (double)s->n_scored);
    return EXIT_GOOD;
}

static enum ferry_status run_eval(struct eval_options *o, const char *text, size_t size,
                                  int *ret_code, struct ferry_error *err)
{
    struct loaded loaded = {0}, other = {0};
    struct load_request request = {
        .n_sequences = 1, .context = o->window, .tokenizer = true, .weights = true};
    struct token_ids ids = {0};
    struct score score = {.ids = &ids};
    uint64_t start = 0;

    enum ferry_status st = loaded_open(&loaded, &o->shared, &request, err);
    if (st == FERRY_OK && o->against != NULL) {
        struct shared_options second = o->shared;
        second.model = o->against;
        request.tokenizer = false;
        st = loaded_open(&other, &second, &request, err);
        if (st == FERRY_OK &&
            model_config(other.model)->n_vocab != model_config(loaded.model)->n_vocab)
            st = FERRY_FAIL(
                err, FERRY_ERR_ARG, "--against: the vocabularies have %zu and %zu entries",
                model_config(loaded.model)->n_vocab, model_config(other.model)->n_vocab);
    }
    if (st == FERRY_OK)
        st = tokenizer_encode(loaded.tokenizer, text, size, true, false, &ids, err);
    for (size_t i = 0; i < ids.count && st == FERRY_OK; i++) {
        if ((size_t)ids.ids[i] >= model_config(loaded.model)->n_vocab)
            st = FERRY_FAIL(
                err, FERRY_ERR_FORMAT,
                "the tokenizer gives id %d, the model has %zu: they do not belong together",
                ids.ids[i], model_config(loaded.model)->n_vocab);
    }
    if (st == FERRY_OK && o->max_tokens > 0 && ids.count > o->max_tokens) {
        ids.count = o->max_tokens;
        size = 0; /* bits per byte are over the bytes of these tokens */
        for (size_t i = 0; i < ids.count; i++) {
            size_t n = 0;
            (void)tokenizer_piece(loaded.tokenizer, ids.ids[i], true, &n);
            size += n;
        }
    }
    if (st == FERRY_OK && ids.count < 2)
        st = FERRY_FAIL(err, FERRY_ERR_ARG, "the text has %zu tokens; at least 2 are needed",
                        ids.count);
    if (st == FERRY_OK) {
        score.n_vocab = model_config(loaded.model)->n_vocab;
        if (o->against != NULL) {
            score.rows = mem_array(o->window, score.n_vocab * sizeof *score.rows);
            if (score.rows == NULL)
                st = FERRY_FAIL(err, FERRY_ERR_NOMEM,
                                "no memory for %zu rows of logits; use a smaller --window",
                                o->window);
        }
        start = clock_now_ns();
    }
    if (st == FERRY_OK)
        st = score_text(o, &loaded, o->against != NULL ? &other : NULL, &score, err);
    if (st == FERRY_OK)
        *ret_code = print_score(o, &loaded, &score, size, (double)(clock_now_ns() - start) * 1e-9);
    mem_free(score.rows);
    token_ids_fini(&ids);
    loaded_close(&other);
    loaded_close(&loaded);
    return st;
}

int verb_eval(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&shared_argp, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        OPTIONS, parse, "MODEL", "Perplexity and bits per byte of a text.", CHILDREN, NULL, NULL};
    struct eval_options o = {.window = 512};
    struct ferry_error err = {0};
    char *text = NULL;
    size_t size = 0;
    int code = EXIT_GOOD;

    if (!parse_flags(&ARGP, argc, argv, &o.shared, &o))
        return EXIT_USAGE;
    if (o.stride == 0)
        o.stride = o.window / 2;
    if (o.text_file == NULL || o.window < 2 || o.stride < 1 || o.stride >= o.window) {
        LOG_ERROR("eval needs --text-file, a window of at least 2 and a stride below the window");
        return EXIT_USAGE;
    }
    if (rank_under_mpirun(&o.shared, 0, &code))
        return code;
    enum ferry_status st = read_file(o.text_file, &text, &size, &err);
    if (st == FERRY_OK)
        st = run_eval(&o, text, size, &code, &err);
    mem_free(text);
    return st == FERRY_OK ? code : fail(st, &err);
}
