/* What an answer is: settings checked and copied, tokens in, text and events out. Tokens are
 * scripted here, so that stop strings, cut characters and ill-formed bytes come as often as they
 * should; the reference decodes the whole answer at once. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "base/size.h"
#include "engine/request.h"
#include "tests/unit/text/small.h"

#include <stdlib.h>
#include <string.h>

enum { N_VOCAB = 280, MAX_IDS = 200, TEXT_MAX = 4096, TOKENS_MAX = 200 };

/* Ids 0..255 are bytes; then pieces of several bytes, parts of characters among them. */
static const char *const MERGES[] = {
    "a b",               /* 256 */
    "x a",               /* 257 */
    "b a",               /* 258 */
    "ab ab",             /* 259 */
    "\xC3\x83 \xC2\xA9", /* 260: C3 A9, a whole character */
    "\xC3\xA2 \xC4\xA4", /* 261: E2 82, two bytes of three */
    "a \xC3\x83",        /* 262: a C3 */
    "\xC2\xA9 b",        /* 263: A9 b */
    "\xC3\xBF a",        /* 264: FF a */
    NULL,
};

static const struct small SMALL = {.pre_tokenizer = BYTE_LEVEL,
                                   .decoder = BYTE_LEVEL_DECODER,
                                   .merges = MERGES,
                                   .added =
                                       "{\"id\":265,\"content\":\"<|im_start|>\",\"special\":true},"
                                       "{\"id\":266,\"content\":\"<|im_end|>\",\"special\":true}"};

enum { SILENT = 265, EOG = 266 };

static struct tokenizer *tokenizer;

static int open_tokenizer(void **state)
{
    size_t size;

    (void)state;
    tokenizer = small_tokenizer(&SMALL);
    assert_true(tokenizer_is_eog(tokenizer, EOG) && !tokenizer_is_eog(tokenizer, SILENT));
    (void)tokenizer_piece(tokenizer, SILENT, true, &size);
    assert_int_equal(size, 0);
    assert_memory_equal(tokenizer_piece(tokenizer, 261, true, &size), "\xE2\x82", 2);
    assert_memory_equal(tokenizer_piece(tokenizer, 264, true, &size),
                        "\xFF"
                        "a",
                        2);
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    tokenizer_destroy(tokenizer);
    return 0;
}

/* What came out of one choice. */
struct heard {
    char text[TEXT_MAX];
    size_t n_text;
    int32_t ids[TOKENS_MAX];
    size_t n_ids, n_finish, n_done, n_empty;
    enum request_finish finish;
    enum ferry_status error;
    bool logprobs;
};

static void listen(void *arg, struct request *request, const struct request_event *event)
{
    struct heard *h = arg;

    assert_non_null(request);
    assert_int_equal(h->n_done, 0);
    if (event->kind == REQUEST_EVENT_DONE) {
        h->n_done++;
        return;
    }
    assert_int_equal(h->n_finish, 0);
    h->n_empty += event->text_size == 0 && event->n_tokens == 0;
    assert_int_equal(utf8_valid_size(event->text, event->text_size), event->text_size);
    assert_true(h->n_text + event->text_size <= TEXT_MAX);
    memcpy(h->text + h->n_text, event->text, event->text_size);
    h->n_text += event->text_size;
    for (size_t i = 0; i < event->n_tokens; i++) {
        const struct request_token *token = &event->tokens[i];
        assert_true(h->n_ids < TOKENS_MAX);
        h->ids[h->n_ids++] = token->id;
        assert_int_equal(token->logprobs != NULL, h->logprobs);
        if (h->logprobs)
            assert_int_equal(token->logprobs->chosen.id, token->id);
    }
    if (event->kind == REQUEST_EVENT_FINISH) {
        h->n_finish++;
        h->finish = event->finish;
        assert_int_equal(event->error != NULL, event->finish == REQUEST_FINISH_ERROR);
        h->error = event->error != NULL ? event->error->status : FERRY_OK;
    }
}

static const int32_t PROMPT[] = {104, 105, 33};

static struct request_options options_for(struct heard *heard)
{
    struct request_options o = {.ids = PROMPT,
                                .n_ids = COUNT_OF(PROMPT),
                                .n_choices = 1,
                                .sampling = SAMPLER_OPTIONS_INIT,
                                .on_event = listen,
                                .arg = heard};
    return o;
}

static struct request *open_request(const struct request_options *o)
{
    struct ferry_error err = {0};
    struct request *r = mem_zero(sizeof *r);

    assert_non_null(r);
    if (request_init(r, o, MAX_IDS, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    return r;
}

/* Gives the first choice its next token. */
static bool take(struct request *r, int32_t id, enum request_finish *ret_finish)
{
    struct ferry_error err = {0};
    bool finished;

    r->choices[0].sampled = id;
    r->choices[0].sampled_logprobs.chosen.id = id;
    if (choice_take(&r->choices[0], tokenizer, MAX_IDS, &finished, ret_finish, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    return finished;
}

/* ---- settings ---- */

static void expect_bad(const struct request_options *o, enum ferry_status status, const char *a,
                       const char *b)
{
    static const struct model_config CONFIG = {.n_vocab = N_VOCAB};
    struct ferry_error err = {0};

    assert_int_equal(request_check(o, &CONFIG, MAX_IDS, N_VOCAB, &err), status);
    if (strstr(err.msg, a) == NULL || strstr(err.msg, b) == NULL)
        fail_msg("'%s' has no '%s' or no '%s'", err.msg, a, b);
}

static void settings_are_checked(void **state)
{
    static const struct model_config CONFIG = {.n_vocab = N_VOCAB};
    struct request_options good = options_for(NULL), o = good;
    int32_t ids[MAX_IDS + 1] = {0};
    struct ferry_error err = {0};

    (void)state;
    assert_int_equal(request_check(&good, &CONFIG, MAX_IDS, N_VOCAB, &err), FERRY_OK);
    o.n_choices = 0;
    expect_bad(&o, FERRY_ERR_ARG, "n 0", "64");
    o.n_choices = REQUEST_CHOICES_MAX + 1;
    expect_bad(&o, FERRY_ERR_ARG, "n 65", "64");
    o.n_choices = SIZE_MAX;
    expect_bad(&o, FERRY_ERR_ARG, "n ", "64");
    o = good;
    o.n_top_logprobs = LOGPROBS_TOP_MAX + 1;
    expect_bad(&o, FERRY_ERR_ARG, "top_logprobs 21", "20");
    o = good;
    o.n_ids = 0;
    expect_bad(&o, FERRY_ERR_ARG, "empty", "BOS");
    o.ids = NULL;
    expect_bad(&o, FERRY_ERR_ARG, "empty", "BOS");
    o = good;
    o.ids = ids;
    o.n_ids = MAX_IDS;
    assert_int_equal(request_check(&o, &CONFIG, MAX_IDS, N_VOCAB, &err), FERRY_OK);
    o.n_ids = MAX_IDS + 1;
    expect_bad(&o, FERRY_ERR_CONTEXT_FULL, "201", "200");
    o.n_ids = MAX_IDS;
    ids[199] = N_VOCAB;
    expect_bad(&o, FERRY_ERR_ARG, "280 at position 199", "279");
    ids[199] = -1;
    expect_bad(&o, FERRY_ERR_ARG, "-1 at position 199", "279");
    ids[199] = INT32_MIN;
    expect_bad(&o, FERRY_ERR_ARG, "position 199", "279");
    o = good;
    o.sampling.temperature = __builtin_nanf("");
    expect_bad(&o, FERRY_ERR_ARG, "temperature", "nan");
    o = good;
    o.sampling = (struct sampler_options){0};
    expect_bad(&o, FERRY_ERR_ARG, "repetition_penalty", "0");
}

static void options_are_copies(void **state)
{
    struct heard heard = {0};
    struct request_options o = options_for(&heard);
    int32_t ids[] = {1, 2};
    struct logit_bias biases[] = {{5, 1.5f}};
    char stop[] = "ab";
    const char *stops[] = {stop};
    enum request_finish how;

    (void)state;
    o.ids = ids;
    o.n_ids = 2;
    o.sampling.biases = biases;
    o.sampling.n_biases = 1;
    o.stops = stops;
    o.n_stops = 1;
    struct request *r = open_request(&o);
    ids[0] = 77;
    biases[0] = (struct logit_bias){6, -1};
    stop[0] = 'z';
    stops[0] = NULL;
    assert_int_equal(r->choices[0].ids[0], 1);
    assert_int_equal(r->options.sampling.biases[0].id, 5);
    assert_false(take(r, 'x', &how));
    assert_true(take(r, 256, &how));
    assert_int_equal(how, REQUEST_FINISH_STOP);
    choice_finish(&r->choices[0], how, NULL);
    assert_int_equal(heard.n_done, 1);
    request_destroy(r);
    request_destroy(NULL);
}

/* Whatever max_tokens says, memory is that of the context, and the answer ends there. */
static void absurd_lengths(void **state)
{
    static const size_t ASKED[] = {0, SIZE_MAX, SIZE_MAX / 4, MAX_IDS, 1, 7};
    static const size_t GIVEN[] = {198, 198, 198, 198, 1, 7};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(ASKED); i++) {
        struct heard heard = {0};
        struct request_options o = options_for(&heard);
        enum request_finish how;
        size_t n = 1;
        o.max_tokens = ASKED[i];
        struct request *r = open_request(&o);
        assert_int_equal(r->choices[0].ids_max, COUNT_OF(PROMPT) + GIVEN[i]);
        while (!take(r, 'a' + (int32_t)(n % 7), &how))
            n++;
        assert_int_equal(n, GIVEN[i]);
        assert_int_equal(how, REQUEST_FINISH_LENGTH);
        choice_finish(&r->choices[0], how, NULL);
        assert_int_equal(heard.n_text, n);
        assert_int_equal(heard.n_ids, n);
        assert_int_equal(request_usage(r)->completion_tokens, n);
        request_destroy(r);
    }
}

static void out_of_memory_is_a_status(void **state)
{
    static const char *const STOPS[] = {"stop", "and"};
    struct request_options o = options_for(NULL);
    struct logit_bias bias = {5, 1.5f};

    (void)state;
    o.n_choices = 3;
    o.logprobs = true;
    o.stops = STOPS;
    o.n_stops = 2;
    o.sampling.biases = &bias;
    o.sampling.n_biases = 1;
    for (uint64_t n = 1;; n++) {
        struct ferry_error err = {0};
        struct request *r = mem_zero(sizeof *r);
        mem_fail_after(n);
        enum ferry_status st = request_init(r, &o, MAX_IDS, &err);
        mem_fail_after(0);
        request_destroy(r);
        if (st == FERRY_OK) {
            assert_true(n > 12);
            break;
        }
        assert_int_equal(st, FERRY_ERR_NOMEM);
        assert_true(err.msg[0] != 0 && n < 100);
    }
}

/* Stop strings that are refused cost no memory first: what is kept per token grows with them. */
static void long_stops_are_refused_early(void **state)
{
    struct request_options o = options_for(NULL);
    size_t size = 1 << 20;
    char *stop = malloc(size + 1);
    const char *stops[65];
    struct ferry_error err = {0};

    (void)state;
    assert_non_null(stop);
    memset(stop, 'a', size);
    stop[size] = 0;
    stops[0] = stop;
    o.stops = stops;
    o.n_stops = 1;
    o.logprobs = true;
    struct request *r = mem_zero(sizeof *r);
    uint64_t calls = mem_count_calls();
    assert_int_equal(request_init(r, &o, MAX_IDS, &err), FERRY_ERR_LIMIT);
    assert_true(mem_count_calls() - calls <= 2); /* its choices, their ids */
    request_destroy(r);
    for (size_t i = 0; i < COUNT_OF(stops); i++)
        stops[i] = "x";
    o.n_stops = COUNT_OF(stops);
    r = mem_zero(sizeof *r);
    assert_int_equal(request_init(r, &o, MAX_IDS, &err), FERRY_ERR_LIMIT);
    request_destroy(r);
    stops[0] = "";
    o.n_stops = 1;
    r = mem_zero(sizeof *r);
    assert_int_equal(request_init(r, &o, MAX_IDS, &err), FERRY_ERR_ARG);
    request_destroy(r);
    free(stop);
}

/* What is kept per token of a long stop string is bounded by the answer's length. */
static void short_answers_are_small(void **state)
{
    static char stop[10001];
    const char *stops[] = {stop};
    struct heard heard = {0};
    struct request_options o = options_for(&heard);
    enum request_finish how;

    (void)state;
    memset(stop, 'a', sizeof stop - 1);
    o.stops = stops;
    o.n_stops = 1;
    o.logprobs = heard.logprobs = true;
    o.max_tokens = 3;
    struct request *r = open_request(&o);
    assert_int_equal(r->choices[0].held_max, 3);
    assert_false(take(r, 'a', &how));
    assert_false(take(r, SILENT, &how));
    assert_true(take(r, 'a', &how));
    assert_int_equal(heard.n_ids, 0);
    choice_finish(&r->choices[0], how, NULL);
    assert_int_equal(heard.n_ids, 3);
    assert_memory_equal(heard.text, "aa", 2);
    request_destroy(r);
}

/* ---- text ---- */

static void end_of_text(void **state)
{
    struct heard heard = {0};
    struct request_options o = options_for(&heard);
    enum request_finish how;

    (void)state;
    struct request *r = open_request(&o);
    assert_false(take(r, 'a', &how));
    assert_true(take(r, EOG, &how));
    assert_int_equal(how, REQUEST_FINISH_STOP);
    choice_finish(&r->choices[0], how, NULL);
    assert_int_equal(heard.n_text, 1);
    assert_int_equal(heard.n_ids, 1); /* the end itself is no part of the answer */
    assert_int_equal(request_usage(r)->completion_tokens, 2);
    request_destroy(r);

    heard = (struct heard){0};
    o.ignore_eos = true;
    o.max_tokens = 3;
    r = open_request(&o);
    assert_false(take(r, EOG, &how));
    assert_false(take(r, 'b', &how));
    assert_true(take(r, EOG, &how));
    assert_int_equal(how, REQUEST_FINISH_LENGTH);
    choice_finish(&r->choices[0], how, NULL);
    assert_int_equal(heard.n_ids, 3);
    assert_int_equal(heard.n_text, 1);
    request_destroy(r);
}

/* The end of text while something is held back: that belongs to the answer. */
static void held_text_is_not_lost(void **state)
{
    static const char *const STOPS[] = {"abc"};
    struct heard heard = {0};
    struct request_options o = options_for(&heard);
    struct ferry_error error = {.status = FERRY_ERR_NONFINITE};
    enum request_finish how;

    (void)state;
    o.stops = STOPS;
    o.n_stops = 1;
    struct request *r = open_request(&o);
    assert_false(take(r, 256, &how));  /* ab: could become abc */
    assert_false(take(r, 0xC3, &how)); /* half a character */
    assert_true(take(r, EOG, &how));
    choice_finish(&r->choices[0], how, NULL);
    assert_int_equal(heard.n_text, 5);
    assert_memory_equal(heard.text, "ab\xEF\xBF\xBD", 5);
    assert_int_equal(heard.n_ids, 2);
    assert_int_equal(heard.n_done, 1);
    request_destroy(r);

    heard = (struct heard){0};
    r = open_request(&o);
    assert_false(take(r, 256, &how));
    assert_int_equal(heard.n_text + heard.n_ids, 0);
    choice_finish(&r->choices[0], REQUEST_FINISH_ERROR, &error);
    assert_int_equal(heard.n_text, 2);
    assert_int_equal(heard.n_ids, 1);
    assert_int_equal(heard.error, FERRY_ERR_NONFINITE);
    request_destroy(r);
}

/* A token of which nothing is shown is no part of the answer, though the text before it ended in
 * what might have begun the stop string. */
static void tokens_of_the_stop_string_never_appear(void **state)
{
    static const char *const STOPS[] = {"ab"};
    static const struct {
        int32_t ids[4];
        size_t n, n_shown;
        const char *text;
    } CASES[] = {
        {{'x', 'a', 'b'}, 3, 1, "x"},
        {{257, 'b'}, 2, 1, "x"},  /* xa b: the first is shown in part */
        {{257, 256}, 2, 1, "xa"}, /* xa ab: the second is not shown at all */
        {{'a', 256}, 2, 1, "a"},
        {{264, 256},
         2,
         1,
         "\xEF\xBF\xBD"
         "a"}, /* replacement characters are longer */
        {{0xFF, 256}, 2, 1, "\xEF\xBF\xBD"},
        {{0xE2, 'a', 'b'}, 3, 1, "\xEF\xBF\xBD"}, /* it replaces a cut character */
        {{261, 257, 'b'}, 3, 2, "\xEF\xBF\xBDx"},
        {{260, 'a', 'b'}, 3, 1, "\xC3\xA9"},
        {{262, 263, 'a', 'b'},
         4,
         2,
         "a\xC3\xA9"
         "b"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct heard heard = {0};
        struct request_options o = options_for(&heard);
        enum request_finish how = REQUEST_FINISH_ERROR;
        o.stops = STOPS;
        o.n_stops = 1;
        struct request *r = open_request(&o);
        for (size_t k = 0; k < CASES[i].n; k++)
            assert_int_equal(take(r, CASES[i].ids[k], &how), k + 1 == CASES[i].n);
        assert_int_equal(how, REQUEST_FINISH_STOP);
        choice_finish(&r->choices[0], how, NULL);
        if (heard.n_ids != CASES[i].n_shown || heard.n_text != strlen(CASES[i].text) ||
            memcmp(heard.text, CASES[i].text, heard.n_text) != 0)
            fail_msg("case %zu: %zu tokens, text '%.*s'", i, heard.n_ids, (int)heard.n_text,
                     heard.text);
        request_destroy(r);
    }
}

/* ---- random answers beside a decoder of whole texts ---- */

struct reference {
    struct bytes raw, text;
    size_t token_starts[TOKENS_MAX]; /* in the text: where the character of its first byte begins */
};

/* The text of ids [n] and where each token begins in it. */
static void decode_whole(struct reference *ref, const int32_t *ids, size_t n)
{
    size_t raw_starts[TOKENS_MAX], at = 0, token = 0;

    ref->raw.size = ref->text.size = 0;
    for (size_t i = 0; i < n; i++) {
        size_t size;
        const char *piece = tokenizer_piece(tokenizer, ids[i], true, &size);
        raw_starts[i] = ref->raw.size;
        assert_true(bytes_append(&ref->raw, piece, size));
    }
    while (at < ref->raw.size) {
        int32_t code;
        size_t used = utf8_decode(ref->raw.data + at, ref->raw.size - at, &code);
        for (; token < n && raw_starts[token] < at + used; token++)
            ref->token_starts[token] = ref->text.size;
        assert_true(bytes_append_code(&ref->text, code < 0 ? 0xFFFD : code));
        at += used;
    }
    for (; token < n; token++)
        ref->token_starts[token] = ref->text.size;
}

/* Where the text ends: at the stop string that is complete first, the longest of several. */
static size_t cut_of(const struct reference *ref, const char *const *stops, size_t n_stops)
{
    for (size_t end = 1; end <= ref->text.size; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n_stops; i++) {
            size_t n = strlen(stops[i]);
            if (n <= end && n > longest && memcmp(ref->text.data + end - n, stops[i], n) == 0)
                longest = n;
        }
        if (longest > 0)
            return end - longest;
    }
    return SIZE_MAX;
}

/* One or two characters' worth of bytes from the middle of the text, as a stop string. */
static const char *stop_from(const struct reference *ref, uint64_t *random, char *memory)
{
    size_t size = ref->text.size, start = small_random(random) % size, n;
    int32_t code;

    while (start > 0 && ((unsigned char)ref->text.data[start] & 0xC0) == 0x80)
        start--; /* stop strings are text: whole characters */
    n = utf8_decode(ref->text.data + start, size - start, &code);
    for (size_t more = small_random(random) % 4; more > 0 && start + n < size; more--)
        n += utf8_decode(ref->text.data + start + n, size - start - n, &code);
    memcpy(memory, ref->text.data + start, n);
    memory[n] = 0;
    return memory;
}

static int32_t random_token(uint64_t *random)
{
    static const int32_t OFTEN[] = {'a',  'b', 'x', 256,  257,  258,  259,    260,  261,
                                    0xAC, 262, 263, 0xC3, 0xA9, 0xE2, SILENT, 0xFF, 264};
    return small_random(random) % 8 == 0 ? (int32_t)(1 + small_random(random) % 255)
                                         : OFTEN[small_random(random) % COUNT_OF(OFTEN)];
}

/* After k + 1 tokens, none of which completed a stop string: a token is out exactly when a byte of
 * it is, or when nothing is held back. */
static void check_shown(const struct heard *heard, const struct request *r,
                        const struct reference *ref, size_t k)
{
    bool nothing_held = text_stream_held(&r->choices[0].text) == 0;
    size_t want = 0;

    for (size_t i = 0; i <= k; i++) {
        size_t size;
        (void)tokenizer_piece(tokenizer, r->choices[0].ids[COUNT_OF(PROMPT) + i], true, &size);
        if (nothing_held || ref->token_starts[i] < heard->n_text)
            want = i + 1;
        else if (size > 0 && heard->n_ids > i)
            fail_msg("token %zu is out before its text", i);
    }
    assert_true(heard->n_ids >= want);
}

static void random_answers(void **state)
{
    struct reference ref = {0};
    size_t n_stopped = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 20000; seed++) {
        struct heard heard = {.logprobs = seed % 3 == 0};
        struct request_options o = options_for(&heard);
        enum request_finish how = REQUEST_FINISH_LENGTH;
        uint64_t random = seed * 7919;
        int32_t ids[24];
        char memory[3][32];
        const char *stops[3];
        size_t n = 1 + small_random(&random) % COUNT_OF(ids), k = 0;
        bool finished = false;

        for (size_t i = 0; i < n; i++)
            ids[i] = random_token(&random);
        decode_whole(&ref, ids, n);
        o.stops = stops;
        o.n_stops = ref.text.size > 0 ? small_random(&random) % 4 : 0;
        for (size_t i = 0; i < o.n_stops; i++)
            stops[i] = stop_from(&ref, &random, memory[i]);
        size_t cut = cut_of(&ref, stops, o.n_stops);
        o.max_tokens = n;
        o.logprobs = heard.logprobs;
        struct request *r = open_request(&o);
        uint64_t calls = mem_count_calls();
        for (; k < n && !finished; k++) {
            finished = take(r, ids[k], &how);
            if (!finished)
                check_shown(&heard, r, &ref, k);
        }
        choice_finish(&r->choices[0], how, NULL);
        assert_int_equal(mem_count_calls(), calls);
        if (how == REQUEST_FINISH_STOP) {
            n_stopped++;
            for (size_t i = 0; i < heard.n_ids; i++) {
                if (ids[i] != SILENT && ref.token_starts[i] >= cut)
                    fail_msg("seed %zu: token %zu of the stop string", (size_t)seed, i);
            }
        } else {
            cut = ref.text.size;
            assert_int_equal(heard.n_ids, n);
        }
        assert_memory_equal(heard.ids, ids, heard.n_ids * sizeof ids[0]);
        if (heard.n_text != cut || memcmp(heard.text, ref.text.data, cut) != 0)
            fail_msg("seed %zu: the text differs", (size_t)seed);
        request_destroy(r);
    }
    assert_true(n_stopped > 5000 && n_stopped < 18000);
    bytes_fini(&ref.raw);
    bytes_fini(&ref.text);
}

/* More silent tokens than there is room behind a held byte: in order, none lost. */
static void many_silent_tokens(void **state)
{
    static const char *const STOPS[] = {"ab"};
    struct heard heard = {0};
    struct request_options o = options_for(&heard);
    enum request_finish how;

    (void)state;
    o.stops = STOPS;
    o.n_stops = 1;
    struct request *r = open_request(&o);
    assert_false(take(r, 'a', &how));
    for (size_t i = 0; i < 40; i++)
        assert_false(take(r, SILENT, &how));
    assert_int_equal(heard.n_text, 0);
    assert_false(take(r, 'c', &how));
    assert_int_equal(heard.n_ids, 42);
    assert_true(heard.ids[0] == 'a' && heard.ids[1] == SILENT && heard.ids[41] == 'c');
    assert_memory_equal(heard.text, "ac", 2);
    choice_finish(&r->choices[0], REQUEST_FINISH_CANCELLED, NULL);
    assert_int_equal(heard.finish, REQUEST_FINISH_CANCELLED);
    request_destroy(r);
}

/* Without a tokenizer there are ids and no text; without a listener there is nothing. */
static void ids_only(void **state)
{
    struct heard heard = {0};
    struct request_options o = options_for(&heard);
    struct tokenizer *kept = tokenizer;
    enum request_finish how;

    (void)state;
    tokenizer = NULL;
    o.max_tokens = 2;
    for (int i = 0; i < 2; i++) {
        struct request *r = open_request(&o);
        assert_false(take(r, 5, &how));
        assert_true(take(r, EOG, &how));
        assert_int_equal(how, REQUEST_FINISH_LENGTH);
        choice_finish(&r->choices[0], how, NULL);
        request_destroy(r);
        o.on_event = NULL;
    }
    tokenizer = kept;
    assert_int_equal(heard.n_ids, 2);
    assert_int_equal(heard.n_text, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_are_checked),
        cmocka_unit_test(options_are_copies),
        cmocka_unit_test(absurd_lengths),
        cmocka_unit_test(out_of_memory_is_a_status),
        cmocka_unit_test(long_stops_are_refused_early),
        cmocka_unit_test(short_answers_are_small),
        cmocka_unit_test(end_of_text),
        cmocka_unit_test(held_text_is_not_lost),
        cmocka_unit_test(tokens_of_the_stop_string_never_appear),
        cmocka_unit_test(random_answers),
        cmocka_unit_test(many_silent_tokens),
        cmocka_unit_test(ids_only),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
