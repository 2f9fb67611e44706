/* Sequences, pages and steps. See engine.h. */
#include "engine/engine.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"

#include <string.h>

enum { LOGITS_BUFFER_BYTES = 64 << 20 };

struct sequence {
    bool open;
    size_t n_tokens;
    size_t n_pages;
    size_t n_published;     /* full pages from the start that are published */
    struct page **pages;    /* [pages_max] */
    unsigned char **memory; /* [pages_max] of the same pages, as the model wants them */
};

struct engine {
    struct model *model;
    size_t context, n_sequences, pages_max;
    struct page_cache *cache;
    struct sequence *sequences; /* [n_sequences] */
    struct page **pages;        /* [n_sequences, pages_max] */
    unsigned char **memory;     /* [n_sequences, pages_max] */
    float *logits;              /* [step_logits, n_vocab] */
    struct model_run *runs;     /* [n_sequences] */
    size_t *fed;                /* [n_sequences] tokens of each feed that are done */
    size_t *run_feed;           /* [n_sequences] which feed a run belongs to */
};

size_t engine_logit_rows(size_t step_tokens, size_t n_vocab)
{
    size_t rows = LOGITS_BUFFER_BYTES / (max_size(n_vocab, 1) * sizeof(float));
    return max_size(min_size(rows, step_tokens), 1);
}

static size_t pages_of(size_t n_tokens)
{
    return div_up(n_tokens, KERNEL_KV_CHUNK);
}

static size_t n_pages_of(const struct engine_options *options)
{
    return options->n_pages > 0 ? options->n_pages
                                : options->n_sequences * pages_of(options->context);
}

size_t engine_bytes(const struct model *model, const struct engine_options *options)
{
    size_t page = 0;

    (void)kv_page_bytes(model_config(model), model_options(model)->kv_dtype, &page);
    return page * n_pages_of(options) +
           model_options(model)->step_logits * model_config(model)->n_vocab * sizeof(float);
}

enum ferry_status engine_create(struct engine **ret_engine, struct model *model,
                                const struct engine_options *options, struct ferry_error *err)
{
    size_t n = options->n_sequences, n_logits = model_options(model)->step_logits;

    if (n < 1 || n > LIMIT_SEQUENCES)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "engine: %zu sequences is not in 1..%d", n,
                          LIMIT_SEQUENCES);
    if (options->context < 1 || options->context > LIMIT_CONTEXT)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "engine: a context of %zu tokens is not in 1..%d",
                          options->context, LIMIT_CONTEXT);
    struct engine *e = mem_zero(sizeof *e);
    if (e == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "engine: no memory");
    e->model = model;
    e->context = options->context;
    e->n_sequences = n;
    e->pages_max = pages_of(options->context);
    e->sequences = mem_array(n, sizeof *e->sequences);
    e->pages = mem_array(n * e->pages_max, sizeof(struct page *));
    e->memory = mem_array(n * e->pages_max, sizeof(unsigned char *));
    e->logits = mem_array(n_logits * model_config(model)->n_vocab, sizeof *e->logits);
    e->runs = mem_array(n, sizeof *e->runs);
    e->fed = mem_array(n, sizeof *e->fed);
    e->run_feed = mem_array(n, sizeof *e->run_feed);
    enum ferry_status st = FERRY_OK;
    if (e->sequences == NULL || e->pages == NULL || e->memory == NULL || e->logits == NULL ||
        e->runs == NULL || e->fed == NULL || e->run_feed == NULL)
        st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "engine: no memory for %zu sequences", n);
    if (st == FERRY_OK)
        st = page_cache_create(&e->cache, model_config(model), model_options(model)->kv_dtype,
                               n_pages_of(options), err);
    if (st != FERRY_OK) {
        engine_destroy(e);
        return st;
    }
    for (size_t i = 0; i < n; i++) {
        e->sequences[i].pages = e->pages + i * e->pages_max;
        e->sequences[i].memory = e->memory + i * e->pages_max;
    }
    *ret_engine = e;
    return FERRY_OK;
}

void engine_destroy(struct engine *engine)
{
    if (engine == NULL)
        return;
    page_cache_destroy(engine->cache);
    mem_free(engine->sequences);
    mem_free(engine->pages);
    mem_free(engine->memory);
    mem_free(engine->logits);
    mem_free(engine->runs);
    mem_free(engine->fed);
    mem_free(engine->run_feed);
    mem_free(engine);
}

struct model *engine_model(struct engine *engine)
{
    return engine->model;
}

size_t engine_context(const struct engine *engine)
{
    return engine->context;
}

size_t engine_n_sequences(const struct engine *engine)
{
    return engine->n_sequences;
}

size_t engine_n_pages(const struct engine *engine)
{
    return page_cache_n_pages(engine->cache);
}

size_t engine_n_pages_available(const struct engine *engine)
{
    return page_cache_n_available(engine->cache);
}

enum ferry_status sequence_open(struct engine *engine, struct sequence **ret_sequence,
                                struct ferry_error *err)
{
    for (size_t i = 0; i < engine->n_sequences; i++) {
        struct sequence *s = &engine->sequences[i];
        if (s->open)
            continue;
        s->open = true;
        *ret_sequence = s;
        return FERRY_OK;
    }
    return FERRY_FAIL(err, FERRY_ERR_LIMIT, "engine: all %zu sequences are in use",
                      engine->n_sequences);
}

void sequence_truncate(struct engine *engine, struct sequence *sequence, size_t n)
{
    FERRY_ASSERT(n <= sequence->n_tokens);
    sequence->n_tokens = n;
    sequence->n_published = min_size(sequence->n_published, n / KERNEL_KV_CHUNK);
    while (sequence->n_pages > pages_of(n))
        page_put(engine->cache, sequence->pages[--sequence->n_pages]);
}

void sequence_close(struct engine *engine, struct sequence *sequence)
{
    if (sequence == NULL)
        return;
    sequence_truncate(engine, sequence, 0);
    sequence->open = false;
}

size_t sequence_n_tokens(const struct sequence *sequence)
{
    return sequence->n_tokens;
}

size_t sequence_attach(struct engine *engine, struct sequence *sequence,
                       const unsigned char key[PAGE_KEY_BYTES], const int32_t *ids, size_t n_ids)
{
    FERRY_ASSERT(sequence->n_tokens == 0 && sequence->n_pages == 0);
    size_t n = page_match(engine->cache, key, ids, n_ids, sequence->pages);
    sequence->n_tokens = n;
    sequence->n_pages = pages_of(n);
    sequence->n_published = n / KERNEL_KV_CHUNK;
    for (size_t i = 0; i < sequence->n_pages; i++)
        sequence->memory[i] = page_data(sequence->pages[i]);
    return n;
}

void sequence_publish(struct engine *engine, struct sequence *sequence,
                      const unsigned char key[PAGE_KEY_BYTES], const int32_t *ids)
{
    for (; sequence->n_published < sequence->n_tokens / KERNEL_KV_CHUNK; sequence->n_published++) {
        size_t i = sequence->n_published;
        struct page *page = page_publish(engine->cache, i > 0 ? sequence->pages[i - 1] : NULL, key,
                                         ids + i * KERNEL_KV_CHUNK, sequence->pages[i]);
        sequence->pages[i] = page;
        sequence->memory[i] = page_data(page);
    }
}

static enum ferry_status no_page(const struct engine *engine, const struct sequence *s,
                                 struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                      "engine: no free KV page for position %zu: all %zu are in use", s->n_tokens,
                      page_cache_n_pages(engine->cache));
}

enum ferry_status sequence_reserve(struct engine *engine, struct sequence *sequence, size_t n_more,
                                   struct ferry_error *err)
{
    size_t last = sequence->n_tokens / KERNEL_KV_CHUNK;
    struct page *page;

    if (n_more > 0 && last < sequence->n_pages) { /* it will be written: nobody else may see it */
        page = page_own(engine->cache, sequence->pages[last]);
        if (page == NULL)
            return no_page(engine, sequence, err);
        sequence->pages[last] = page;
        sequence->memory[last] = page_data(page);
    }
    while (sequence->n_pages < pages_of(sequence->n_tokens + n_more)) {
        page = page_take(engine->cache);
        if (page == NULL)
            return no_page(engine, sequence, err);
        sequence->pages[sequence->n_pages] = page;
        sequence->memory[sequence->n_pages++] = page_data(page);
    }
    return FERRY_OK;
}

size_t sequence_room(const struct sequence *sequence)
{
    size_t last = sequence->n_tokens / KERNEL_KV_CHUNK;

    if (last < sequence->n_pages && page_is_published(sequence->pages[last]))
        return 0;
    return sequence->n_pages * KERNEL_KV_CHUNK - sequence->n_tokens;
}

static enum ferry_status check_feeds(const struct engine *engine, const struct engine_feed *feeds,
                                     size_t n_feeds, struct ferry_error *err)
{
    FERRY_ASSERT(n_feeds <= engine->n_sequences);
    for (size_t i = 0; i < n_feeds; i++) {
        FERRY_ASSERT(feeds[i].sequence->open);
        FERRY_ASSERT(feeds[i].n_tokens > 0);
        FERRY_ASSERT(feeds[i].n_logits <= feeds[i].n_tokens);
        if (feeds[i].n_tokens > engine->context - feeds[i].sequence->n_tokens)
            return FERRY_FAIL(err, FERRY_ERR_CONTEXT_FULL,
                              "context is full: %zu tokens are in it, %zu more do not fit into "
                              "%zu; use a larger --context",
                              feeds[i].sequence->n_tokens, feeds[i].n_tokens, engine->context);
    }
    return FERRY_OK;
}

/* Logits rows that the first n of a feed's tokens from `done` on give. */
static size_t logits_in(const struct engine_feed *feed, size_t done, size_t n)
{
    size_t first = feed->n_tokens - feed->n_logits, end = done + n;
    return end > first ? end - max_size(first, done) : 0;
}

/* Plans one step: a fair share of the tokens that are left to every feed. Returns the number of
 * runs. */
static size_t plan_step(struct engine *engine, const struct engine_feed *feeds, size_t n_feeds)
{
    size_t tokens_left = model_options(engine->model)->step_tokens,
           rows_left = model_options(engine->model)->step_logits;
    size_t n_runs = 0, n_waiting = 0;

    for (size_t i = 0; i < n_feeds; i++)
        n_waiting += engine->fed[i] < feeds[i].n_tokens;
    for (size_t i = 0; i < n_feeds && tokens_left > 0; i++) {
        size_t done = engine->fed[i], left = feeds[i].n_tokens - done;
        if (left == 0)
            continue;
        size_t n = min_size(left, max_size(tokens_left / n_waiting, 1));
        n_waiting--;
        size_t rows = logits_in(&feeds[i], done, n);
        if (rows > rows_left) { /* too many rows of logits: fewer tokens */
            n -= min_size(rows - rows_left, n);
            rows = logits_in(&feeds[i], done, n);
        }
        if (n == 0)
            continue;
        engine->runs[n_runs] = (struct model_run){.ids = feeds[i].ids + done,
                                                  .n_tokens = n,
                                                  .first_position = feeds[i].sequence->n_tokens,
                                                  .pages = feeds[i].sequence->memory,
                                                  .n_logits = rows};
        engine->run_feed[n_runs++] = i;
        tokens_left -= n;
        rows_left -= rows;
    }
    return n_runs;
}

static enum ferry_status finish_step(struct engine *engine, const struct engine_feed *feeds,
                                     size_t n_runs, engine_logits_fn *on_logits, void *arg)
{
    const float *row = engine->logits;
    enum ferry_status st = FERRY_OK;

    for (size_t r = 0; r < n_runs; r++) {
        const struct model_run *run = &engine->runs[r];
        size_t feed = engine->run_feed[r];
        feeds[feed].sequence->n_tokens += run->n_tokens;
        engine->fed[feed] += run->n_tokens;
        for (size_t i = 0; i < run->n_logits; i++, row += model_config(engine->model)->n_vocab) {
            size_t position = run->first_position + run->n_tokens - run->n_logits + i;
            if (st == FERRY_OK && on_logits != NULL)
                st = on_logits(arg, feed, position, row);
        }
    }
    return st;
}

static enum ferry_status run_step(struct engine *engine, const struct engine_feed *feeds,
                                  size_t n_runs, engine_logits_fn *on_logits, void *arg,
                                  struct ferry_error *err)
{
    enum ferry_status st = FERRY_OK;

    for (size_t r = 0; r < n_runs && st == FERRY_OK; r++)
        st = sequence_reserve(engine, feeds[engine->run_feed[r]].sequence, engine->runs[r].n_tokens,
                              err);
    if (st == FERRY_OK)
        st = model_step(engine->model, engine->runs, n_runs, engine->logits, err);
    if (st == FERRY_OK)
        st = finish_step(engine, feeds, n_runs, on_logits, arg);
    return st;
}

enum ferry_status engine_feed(struct engine *engine, const struct engine_feed *feeds,
                              size_t n_feeds, engine_logits_fn *on_logits, void *arg,
                              struct ferry_error *err)
{
    enum ferry_status st = check_feeds(engine, feeds, n_feeds, err);

    memset(engine->fed, 0, engine->n_sequences * sizeof *engine->fed);
    while (st == FERRY_OK) {
        size_t n_runs = plan_step(engine, feeds, n_feeds);
        if (n_runs == 0)
            return FERRY_OK;
        st = run_step(engine, feeds, n_runs, on_logits, arg, err);
    }
    return st;
}

enum ferry_status engine_step(struct engine *engine, const struct engine_feed *feeds,
                              size_t n_feeds, engine_logits_fn *on_logits, void *arg,
                              struct ferry_error *err)
{
    enum ferry_status st = check_feeds(engine, feeds, n_feeds, err);
    size_t n_tokens = 0, n_logits = 0;

    for (size_t i = 0; i < n_feeds && st == FERRY_OK; i++) {
        const struct engine_feed *feed = &feeds[i];
        n_tokens += feed->n_tokens;
        n_logits += feed->n_logits;
        engine->fed[i] = 0;
        engine->run_feed[i] = i;
        engine->runs[i] = (struct model_run){.ids = feed->ids,
                                             .n_tokens = feed->n_tokens,
                                             .first_position = feed->sequence->n_tokens,
                                             .pages = feed->sequence->memory,
                                             .n_logits = feed->n_logits};
    }
    FERRY_ASSERT(n_tokens <= model_options(engine->model)->step_tokens);
    FERRY_ASSERT(n_logits <= model_options(engine->model)->step_logits);
    return st == FERRY_OK && n_feeds > 0 ? run_step(engine, feeds, n_feeds, on_logits, arg, err)
                                         : st;
}
