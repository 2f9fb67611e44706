/* Queue, admission, steps. See scheduler.h; what becomes of a token is in request.c.
 *
 * A choice's ids are its truth; its sequence is a cache of their K and V. So a choice can lose its
 * sequence at any time (preemption) and gets the same answer after its ids were fed again. */
#include "engine/scheduler_impl.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/size.h"

#include <string.h>
#include <time.h>

enum {
    PEER_PATIENCE_MS = 20000,
    DEFAULT_WAITING = 256,
    DEFAULT_WAITING_TOKENS = 1 << 20,
    /* A step with noise and the text on its way stay below a second. 500 gave a slow model's
     * prompts what its answers left of it: simulated with the costs of OLMoE Q8_0 on two threads
     * (docs/performance.md), 16 prompts of 128 tokens at once, the last first token came after 50 s
     * and now after 40, all tokens 6 % faster, for pieces 0.78 s apart in place of 0.56 (p99) while
     * prompts are read. 1,000 would have given 36 s and 1.1 s. */
    STEP_MS = 750,
    PREFILL_MS = 2000,
};

enum ferry_status scheduler_create(struct scheduler **ret_scheduler, struct engine *engine,
                                   const struct tokenizer *tokenizer,
                                   const struct scheduler_options *options, struct ferry_error *err)
{
    struct model *model = engine_model(engine);
    struct scheduler *s = mem_zero(sizeof *s);
    pthread_condattr_t attr;

    if (s == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "scheduler: no memory");
    s->engine = engine;
    s->tokenizer = tokenizer;
    s->options = *options;
    if (s->options.max_waiting == 0)
        s->options.max_waiting = DEFAULT_WAITING;
    if (s->options.max_waiting_tokens == 0)
        s->options.max_waiting_tokens = DEFAULT_WAITING_TOKENS;
    s->pace.step_target_ns =
        options->step_target_ns > 0 ? options->step_target_ns : STEP_MS * UINT64_C(1000000);
    s->pace.prefill_target_ns = options->prefill_target_ns > 0 ? options->prefill_target_ns
                                                               : PREFILL_MS * UINT64_C(1000000);
    if (options->metrics != NULL)
        s->metrics = *options->metrics;
    s->fabric = model_options(model)->fabric;
    if (s->options.peer_patience_ns == 0)
        s->options.peer_patience_ns = PEER_PATIENCE_MS * UINT64_C(1000000);
    s->n_slots = min_size(engine_n_sequences(engine), model_options(model)->step_tokens);
    s->n_slots = min_size(s->n_slots, model_options(model)->step_logits);
    s->max_ids = min_size(engine_context(engine), engine_n_pages(engine) * KERNEL_KV_CHUNK);
    s->running = mem_array(s->n_slots, sizeof(struct choice *));
    s->fed = mem_array(s->n_slots, sizeof(struct choice *));
    s->feeds = mem_array(s->n_slots, sizeof *s->feeds);
    (void)pthread_mutex_init(&s->mutex, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&s->condition, &attr);
    (void)pthread_condattr_destroy(&attr);
    atomic_store(&s->heartbeat_ns, clock_now_ns());
    atomic_store(&s->n_free_slots, s->n_slots);
    enum ferry_status st = FERRY_OK;
    if (s->running == NULL || s->fed == NULL || s->feeds == NULL)
        st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "scheduler: no memory for %zu sequences", s->n_slots);
    if (st == FERRY_OK)
        st = sampler_create(&s->sampler, model_config(model)->n_vocab,
                            tokenizer != NULL ? tokenizer_n_vocab(tokenizer) : 0,
                            device_kernels(model_device(model)), err);
    if (st == FERRY_OK && s->fabric != NULL)
        st = sched_meet_peers(s, err);
    if (st != FERRY_OK) {
        scheduler_destroy(s);
        return st;
    }
    *ret_scheduler = s;
    return FERRY_OK;
}

/* ---- from any thread ---- */

enum ferry_status request_create(struct request **ret_request, struct scheduler *scheduler,
                                 const struct request_options *options, struct ferry_error *err)
{
    const struct model_config *config = model_config(engine_model(scheduler->engine));
    struct request *r = NULL;
    enum ferry_status st = request_check(options, config, scheduler->max_ids,
                                         sampler_n_valid(scheduler->sampler), err);

    if (st != FERRY_OK)
        return st;
    r = mem_zero(sizeof *r);
    if (r == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "request: no memory");
    r->scheduler = scheduler;
    st = request_init(r, options, scheduler->max_ids, err);
    if (st != FERRY_OK) {
        request_destroy(r);
        return st;
    }
    *ret_request = r;
    return FERRY_OK;
}

/* The mutex is held. */
static void wake(struct scheduler *s)
{
    s->woken = true;
    (void)pthread_cond_signal(&s->condition);
    if (s->fabric != NULL)
        fabric_wake(s->fabric);
}

void scheduler_wake(struct scheduler *scheduler)
{
    (void)pthread_mutex_lock(&scheduler->mutex);
    wake(scheduler);
    (void)pthread_mutex_unlock(&scheduler->mutex);
}

enum ferry_status scheduler_submit(struct scheduler *scheduler, struct request *request,
                                   struct ferry_error *err)
{
    struct scheduler *s = scheduler;
    enum ferry_status st = FERRY_OK;

    (void)pthread_mutex_lock(&s->mutex);
    /* What came in since the last step waits for the next one only, as far as sequences are free.
     * Read in this order: a choice that is just being admitted waits, or has a sequence, or both.
     */
    size_t n = atomic_load(&s->n_waiting), n_tokens = atomic_load(&s->n_waiting_tokens),
           n_free = atomic_load(&s->n_free_slots);
    bool starts = n < n_free;
    if (n > 0 && (n + request->n_choices > s->options.max_waiting + n_free ||
                  (!starts && n_tokens + request->n_prompt > s->options.max_waiting_tokens))) {
        st = FERRY_FAIL(err, FERRY_AGAIN,
                        "the queue is full: %zu answers with %zu prompt tokens wait (limits %zu "
                        "and %zu); try again later",
                        n, n_tokens, s->options.max_waiting, s->options.max_waiting_tokens);
    } else {
        request->usage.submit_ns = clock_now_ns();
        request->n_waiting_tokens = request->n_prompt;
        request->next = NULL;
        if (s->inbox_last != NULL)
            s->inbox_last->next = request;
        else
            s->inbox = request;
        s->inbox_last = request;
        atomic_fetch_add(&s->n_waiting, request->n_choices);
        atomic_fetch_add(&s->n_waiting_tokens, request->n_waiting_tokens);
        wake(s);
    }
    (void)pthread_mutex_unlock(&s->mutex);
    return st;
}

void request_cancel(struct request *request)
{
    struct scheduler *scheduler = request->scheduler;

    atomic_store(&request->cancelled, true); /* from here on its DONE may come at any time */
    scheduler_wake(scheduler);
}

void request_hold(struct request *request, bool hold)
{
    struct scheduler *scheduler = request->scheduler;

    atomic_store(&request->hold, hold);
    if (!hold)
        scheduler_wake(scheduler);
}

static bool take_wake(struct scheduler *s)
{
    (void)pthread_mutex_lock(&s->mutex);
    bool woken = s->woken;
    s->woken = false;
    (void)pthread_mutex_unlock(&s->mutex);
    return woken;
}

/* The same for a rank of a group, which is woken by the others' rows as well. */
static void wait_serving(struct scheduler *s, uint64_t timeout_ns)
{
    if (!take_wake(s))
        (void)model_serve(engine_model(s->engine), timeout_ns, true);
}

void scheduler_wait(struct scheduler *scheduler, uint64_t timeout_ns)
{
    if (scheduler->fabric != NULL) {
        wait_serving(scheduler, timeout_ns);
        return;
    }
    uint64_t now = clock_now_ns(),
             until = timeout_ns < INT64_MAX - now ? now + timeout_ns : INT64_MAX;
    struct timespec t = {(time_t)(until / UINT64_C(1000000000)),
                         (long)(until % UINT64_C(1000000000))};

    (void)pthread_mutex_lock(&scheduler->mutex);
    while (!scheduler->woken &&
           pthread_cond_timedwait(&scheduler->condition, &scheduler->mutex, &t) == 0)
        ;
    scheduler->woken = false;
    (void)pthread_mutex_unlock(&scheduler->mutex);
}

void scheduler_view(const struct scheduler *scheduler, struct scheduler_view *ret_view)
{
    *ret_view = (struct scheduler_view){
        .n_waiting = atomic_load(&scheduler->n_waiting) + atomic_load(&scheduler->n_again),
        .n_running = atomic_load(&scheduler->n_running_view),
        .n_held = atomic_load(&scheduler->n_held_view),
        .n_waiting_tokens = atomic_load(&scheduler->n_waiting_tokens),
        .n_pages = engine_n_pages(scheduler->engine),
        .n_pages_used = atomic_load(&scheduler->n_pages_used),
        .heartbeat_ns = atomic_load(&scheduler->heartbeat_ns),
        .n_steps = atomic_load(&scheduler->n_steps),
        .group_wait_ns = atomic_load(&scheduler->group_wait_ns),
    };
}

/* ---- the queue ---- */

static void queue_push_back(struct scheduler *s, struct choice *c)
{
    c->next = NULL;
    if (s->last != NULL)
        s->last->next = c;
    else
        s->first = c;
    s->last = c;
}

static void queue_push_front(struct scheduler *s, struct choice *c)
{
    c->next = s->first;
    s->first = c;
    if (s->last == NULL)
        s->last = c;
}

/* Takes out the choice behind `before` (NULL: the first). */
struct choice *sched_queue_take(struct scheduler *s, struct choice *before)
{
    struct choice *c = before != NULL ? before->next : s->first;

    if (before != NULL)
        before->next = c->next;
    else
        s->first = c->next;
    if (s->last == c)
        s->last = before;
    c->next = NULL;
    return c;
}

/* Puts a choice back behind `before`, where it was. */
static void queue_put_back(struct scheduler *s, struct choice *before, struct choice *c)
{
    c->next = before != NULL ? before->next : s->first;
    if (before != NULL)
        before->next = c;
    else
        s->first = c;
    if (c->next == NULL)
        s->last = c;
}

/* The limits count what has not been admitted yet; a preempted choice is exempt. */
void sched_leave_account(struct scheduler *s, struct choice *c)
{
    struct request *r = c->request;

    if (c->counted)
        return;
    c->counted = true;
    atomic_fetch_sub(&s->n_waiting, 1);
    if (c->index == 0) {
        atomic_fetch_sub(&s->n_waiting_tokens, r->n_waiting_tokens);
        r->n_waiting_tokens = 0;
    }
}

static void take_inbox(struct scheduler *s)
{
    (void)pthread_mutex_lock(&s->mutex);
    struct request *r = s->inbox;
    s->inbox = s->inbox_last = NULL;
    (void)pthread_mutex_unlock(&s->mutex);
    for (; r != NULL; r = r->next) {
        for (size_t i = 0; i < r->n_choices; i++)
            queue_push_back(s, &r->choices[i]);
    }
}

/* ---- the end of a choice ---- */

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0;
}

/* Of a request whose last choice is about to end. */
static void count_request(struct scheduler *s, const struct request *r)
{
    const struct request_usage *u = &r->usage;
    uint64_t now = clock_now_ns();

    metric_observe(s->metrics.e2e_seconds, seconds(u->submit_ns, now));
    metric_observe(s->metrics.request_prompt_tokens, (double)u->prompt_tokens);
    metric_observe(s->metrics.request_generation_tokens, (double)u->completion_tokens);
    if (u->first_token_ns == 0)
        return;
    metric_observe(s->metrics.decode_seconds, seconds(u->first_token_ns, now));
    metric_observe(s->metrics.inference_seconds, seconds(u->start_ns, now));
}

static void count_finish(struct scheduler *s, enum request_finish finish)
{
    struct metric *const by_finish[] = {s->metrics.finished_stop, s->metrics.finished_length,
                                        s->metrics.finished_cancelled, s->metrics.finished_error};

    metric_add(by_finish[finish], 1);
}

/* The choice is in no list any more. Its request may be gone afterwards. */
void sched_finish(struct scheduler *s, struct choice *c, enum request_finish how,
                  const struct ferry_error *error)
{
    sched_leave_account(s, c);
    count_finish(s, how);
    if (c->request->n_done + 1 == c->request->n_choices)
        count_request(s, c->request);
    choice_finish(c, how, error);
}

static void set_n_running(struct scheduler *s, size_t n)
{
    s->n_running = n;
    atomic_store(&s->n_free_slots, s->n_slots - n);
}

/* Takes running[i] out, with its sequence. */
struct choice *sched_stop_running(struct scheduler *s, size_t i)
{
    struct choice *c = s->running[i];

    sequence_close(s->engine, c->sequence);
    c->sequence = NULL;
    set_n_running(s, s->n_running - 1);
    memmove(&s->running[i], &s->running[i + 1], (s->n_running - i) * sizeof(struct choice *));
    return c;
}

static size_t index_of(const struct scheduler *s, const struct choice *c)
{
    size_t i = 0;

    while (s->running[i] != c)
        i++;
    return i;
}

static void end_running(struct scheduler *s, struct choice *c, enum request_finish how,
                        const struct ferry_error *error)
{
    sched_finish(s, sched_stop_running(s, index_of(s, c)), how, error);
}

/* Ends what was cancelled, and what has waited too long. Returns whether it ended anything. */
static bool reap(struct scheduler *s)
{
    struct choice *before = NULL, *c;
    uint64_t now = clock_now_ns();
    bool any = false;

    for (size_t i = s->n_running; i-- > 0;) {
        if (!atomic_load(&s->running[i]->request->cancelled))
            continue;
        sched_finish(s, sched_stop_running(s, i), REQUEST_FINISH_CANCELLED, NULL);
        any = true;
    }
    for (size_t i = s->n_away; i-- > 0;) {
        if (!atomic_load(&s->away[i]->request->cancelled))
            continue;
        sched_finish(s, sched_call_back(s, i), REQUEST_FINISH_CANCELLED, NULL);
        any = true;
    }
    while ((c = before != NULL ? before->next : s->first) != NULL) {
        const struct request *r = c->request;
        bool late =
            r->usage.start_ns == 0 && r->options.start_by_ns > 0 && now > r->options.start_by_ns;
        if (!late && !atomic_load(&r->cancelled)) {
            before = c;
            continue;
        }
        struct ferry_error err = {0};
        if (late)
            (void)FERRY_FAIL(&err, FERRY_ERR_TIMEOUT,
                             "the request waited %.1f s for a free sequence and none came; try "
                             "again later",
                             seconds(r->usage.submit_ns, now));
        sched_finish(s, sched_queue_take(s, before),
                     late ? REQUEST_FINISH_ERROR : REQUEST_FINISH_CANCELLED, &err);
        any = true;
    }
    return any;
}

/* ---- admission ---- */

/* The other choices of a request wait for the first one's prefill, whose pages they take over. */
static bool waits_for_sibling(const struct choice *c)
{
    const struct choice *leader = &c->request->choices[0];

    return c != leader && leader->state != CHOICE_DONE && leader->n_ids == c->request->n_prompt;
}

static size_t pages_for(size_t n_tokens)
{
    return div_up(n_tokens, KERNEL_KV_CHUNK);
}

/* Prompt tokens are counted once, when their K and V are there for the first time: what is computed
 * again after a preemption is no prompt that anybody sent. */
static void count_prompt(struct choice *c, size_t n_there, struct metric *metric)
{
    size_t n = min_size(n_there, c->request->n_prompt);

    if (n <= c->n_prompt_counted)
        return;
    metric_add(metric, n - c->n_prompt_counted);
    c->n_prompt_counted = n;
}

void sched_note_start(struct scheduler *s, struct request *r)
{
    if (r->usage.start_ns != 0)
        return;
    r->usage.start_ns = clock_now_ns();
    metric_observe(s->metrics.queue_seconds, seconds(r->usage.submit_ns, r->usage.start_ns));
}

/* Gives the choice a sequence with what the prefix cache has. False: not enough pages; as it was.
 */
static bool start(struct scheduler *s, struct choice *c)
{
    struct request *r = c->request;
    struct ferry_error err;
    size_t cached = 0;

    if (sequence_open(s->engine, &c->sequence, &err) != FERRY_OK)
        return false;
    if (!s->options.no_prefix_cache) /* the last token is always fed: its logits are wanted */
        cached =
            sequence_attach(s->engine, c->sequence, r->options.cache_key, c->ids, c->n_ids - 1);
    /* One page for every other sequence, so that this one is not preempted at once. A page of which
     * only the beginning fits will be copied. */
    size_t need =
        pages_for(c->n_ids + 1) - cached / KERNEL_KV_CHUNK + (s->n_running > 0 ? s->n_running : 0);
    if (s->n_running > 0 && need > engine_n_pages_available(s->engine)) {
        sequence_close(s->engine, c->sequence);
        c->sequence = NULL;
        return false;
    }
    c->state = CHOICE_RUNNING;
    count_prompt(c, cached, s->metrics.prompt_tokens_cached);
    if (!c->counted) {
        sched_note_start(s, r);
        if (c->index == 0)
            r->usage.cached_tokens = cached;
        metric_add(s->metrics.prefix_queried_tokens, r->n_prompt);
        metric_add(s->metrics.prefix_hit_tokens, cached);
    }
    s->running[s->n_running] = c;
    set_n_running(s, s->n_running + 1);
    sched_leave_account(s, c);
    return true;
}

void sched_requeue(struct scheduler *s, struct choice *c)
{
    c->state = CHOICE_WAITING;
    c->request->usage.n_preempted++;
    metric_add(s->metrics.preemptions, 1);
    queue_push_front(s, c);
}

static void preempt(struct scheduler *s, struct choice *victim)
{
    sched_requeue(s, sched_stop_running(s, index_of(s, victim)));
}

/* The youngest running choice whose reader does not read; NULL: all do. */
static struct choice *youngest_paused(const struct scheduler *s)
{
    for (size_t i = s->n_running; i-- > 0;) {
        if (s->running[i]->paused)
            return s->running[i];
    }
    return NULL;
}

/* Any thread may change a hold at any time; a step goes by what it saw at its beginning. */
static void look_at_holds(struct scheduler *s)
{
    for (size_t i = 0; i < s->n_running; i++)
        s->running[i]->paused = atomic_load(&s->running[i]->request->hold);
    for (struct choice *c = s->first; c != NULL; c = c->next)
        c->paused = atomic_load(&c->request->hold);
    for (size_t i = 0; i < s->n_away; i++)
        away_hold(s->peers, s->away[i], atomic_load(&s->away[i]->request->hold));
}

static void admit(struct scheduler *s)
{
    struct choice *before = NULL, *c, *paused;

    while ((c = before != NULL ? before->next : s->first) != NULL) {
        if (waits_for_sibling(c) || c->paused) {
            before = c;
            continue;
        }
        if (s->n_running < s->n_slots) {
            (void)sched_queue_take(s, before);
            if (start(s, c))
                continue;
            queue_put_back(s, before, c);
        }
        /* Nobody overtakes a choice that waits for a sequence or for pages; but who does not read
         * keeps neither from those who do. */
        paused = youngest_paused(s);
        if (paused == NULL)
            return;
        preempt(s, paused);
    }
}

/* ---- planning a step ---- */

static size_t left_of(const struct choice *c)
{
    return c->n_ids - sequence_n_tokens(c->sequence);
}

static bool decodes(const struct choice *c)
{
    return left_of(c) == 1 && c->n_ids > c->request->n_prompt;
}

/* No page is left and none of the running choices may take another step: one gives its pages back,
 * of those whose reader does not read if there are such, and of them the youngest. */
static void make_room(struct scheduler *s)
{
    struct choice *paused = youngest_paused(s),
                  *c = paused != NULL ? paused : s->running[s->n_running - 1];
    size_t n = sequence_n_tokens(c->sequence), whole = n / KERNEL_KV_CHUNK * KERNEL_KV_CHUNK;

    if (s->n_running > 1) {
        preempt(s, c);
    } else if (n > whole) {
        /* Alone it always fits, but for the copy of a published page that only begins like its own:
         * it gives that page back and computes it. */
        sequence_truncate(s->engine, c->sequence, whole);
    } else {
        struct ferry_error err;
        (void)FERRY_FAIL(&err, FERRY_ERR_INTERNAL, "engine: no KV page for a sequence alone");
        end_running(s, c, REQUEST_FINISH_ERROR, &err);
    }
}

/* The running choices that are one token behind, each with a page for it. */
static size_t plan_decode(struct scheduler *s)
{
    struct ferry_error err;
    size_t n = 0;

    for (size_t i = 0; i < s->n_running;) {
        struct choice *c = s->running[i];
        if (!decodes(c) || c->paused ||
            sequence_reserve(s->engine, c->sequence, 1, &err) == FERRY_OK) {
            i++;
        } else {
            make_room(s); /* maybe this one, maybe one before it */
            i = 0;
        }
    }
    for (size_t i = 0; i < s->n_running; i++) {
        struct choice *c = s->running[i];
        if (!decodes(c) || c->paused)
            continue;
        s->feeds[n] = (struct engine_feed){c->sequence, &c->ids[c->n_ids - 1], 1, 1};
        s->fed[n++] = c;
    }
    return n;
}

/* Prompts in order of admission. The oldest gets at least half, so that it ends; the others share
 * the rest, so that a short one does not wait for a long one's end. Takes only pages that are free:
 * nobody loses his for a prompt. */
static size_t plan_prefill(struct scheduler *s, size_t n_feeds, size_t *ret_n_tokens)
{
    size_t most = model_options(engine_model(s->engine))->step_tokens - n_feeds,
           budget = pace_prompt_tokens(&s->pace, n_feeds, most), n_prompts = 0;
    struct ferry_error err;
    bool oldest = true;

    for (size_t i = 0; i < s->n_running; i++)
        n_prompts += !decodes(s->running[i]) && !s->running[i]->paused;
    *ret_n_tokens = 0;
    for (size_t i = 0; i < s->n_running && budget > 0; i++) {
        struct choice *c = s->running[i];
        if (decodes(c) || c->paused)
            continue;
        size_t share = oldest && n_prompts > 1 ? budget - budget / 2 : budget / n_prompts;
        size_t n = min_size(max_size(share, 1), left_of(c));
        oldest = false;
        n_prompts--;
        if (sequence_reserve(s->engine, c->sequence, n, &err) != FERRY_OK)
            n = min_size(n, sequence_room(c->sequence));
        if (n == 0)
            continue;
        s->feeds[n_feeds] = (struct engine_feed){
            c->sequence, &c->ids[sequence_n_tokens(c->sequence)], n, n == left_of(c)};
        s->fed[n_feeds++] = c;
        budget -= n;
        *ret_n_tokens += n;
    }
    return n_feeds;
}

/* ---- a step and what follows from it ---- */

/* Logits die with the step: the token is drawn at once, its text comes later. */
static enum ferry_status draw(void *arg, size_t feed_index, size_t position, const float *logits)
{
    struct scheduler *s = arg;
    struct choice *c = s->fed[feed_index];
    const struct request *r = c->request;
    struct sampler_options options = r->options.sampling;

    (void)position;
    options.choice = (uint32_t)(r->options.first_choice + c->index);
    c->sampled = sampler_sample(s->sampler, &options, logits, c->ids, r->n_prompt, c->n_ids);
    if (r->options.logprobs)
        logprobs_of(device_kernels(model_device(engine_model(s->engine))), logits,
                    sampler_n_valid(s->sampler), c->sampled, r->options.n_top_logprobs,
                    &c->sampled_logprobs);
    return FERRY_OK;
}

static void count_token(struct scheduler *s, struct choice *c)
{
    struct request_usage *u = &c->request->usage;
    uint64_t now = clock_now_ns();

    metric_add(s->metrics.generation_tokens, 1);
    if (u->first_token_ns == 0) {
        u->first_token_ns = now;
        metric_observe(s->metrics.ttft_seconds, seconds(u->submit_ns, now));
        metric_observe(s->metrics.prefill_seconds, seconds(u->start_ns, now));
    }
    if (c->last_token_ns > 0)
        metric_observe(s->metrics.inter_token_seconds, seconds(c->last_token_ns, now));
    c->last_token_ns = now;
}

bool sched_take_sampled(struct scheduler *s, struct choice *c, enum request_finish *ret_how,
                        struct ferry_error *err)
{
    bool finished = true;

    count_token(s, c);
    if (choice_take(c, s->tokenizer, s->max_ids, &finished, ret_how, err) == FERRY_OK)
        return finished;
    *ret_how = REQUEST_FINISH_ERROR;
    return true;
}

/* Feed i has been computed: shares its full pages, shows its token. */
static void after_feed(struct scheduler *s, size_t i)
{
    struct choice *c = s->fed[i];
    enum request_finish how;
    struct ferry_error err = {0};

    count_prompt(c, sequence_n_tokens(c->sequence), s->metrics.prompt_tokens_computed);
    if (!s->options.no_prefix_cache)
        sequence_publish(s->engine, c->sequence, c->request->options.cache_key, c->ids);
    if (s->feeds[i].n_logits == 0)
        return;
    if (sched_take_sampled(s, c, &how, &err))
        end_running(s, c, how, &err);
}

/* Whether an error is one request's, so that the others can go on. */
static bool is_of_request(enum ferry_status st)
{
    return st > FERRY_ERR_NO_HOLDER; /* request and session bands */
}

/* One step of the engine, and what it did beside its tokens. */
static enum ferry_status step(struct scheduler *s, size_t n_feeds, struct ferry_error *err)
{
    const struct exchange_ledger *ledger = model_ledger(engine_model(s->engine));
    const struct model_counters *counters = model_counters(engine_model(s->engine));
    uint64_t reads = ledger->weight_reads, layers = ledger->layers, others = ledger->others_ns;
    uint64_t overflows = counters->kv_overflows, retried = counters->steps_retried;
    uint64_t start_ns = clock_now_ns();
    enum ferry_status st = engine_step(s->engine, s->feeds, n_feeds, draw, s, err);
    size_t n_rows = 0;

    for (size_t i = 0; i < n_feeds; i++)
        n_rows += s->feeds[i].n_tokens;
    uint64_t took_ns = clock_now_ns() - start_ns;
    if (st == FERRY_OK)
        pace_learn(&s->pace, n_rows, took_ns, min_size(ledger->others_ns - others, took_ns));
    metric_add(s->metrics.kv_overflows, counters->kv_overflows - overflows);
    metric_add(s->metrics.steps_retried, counters->steps_retried - retried);
    if (st == FERRY_OK && ledger->layers > layers)
        metric_observe(s->metrics.step_distinct_experts,
                       (double)(ledger->weight_reads - reads) / (double)(ledger->layers - layers));
    return st;
}

/* A step of several feeds failed: each alone, which gives the same bits (law 2), shows whose it
 * was. */
static enum ferry_status step_each(struct scheduler *s, size_t n_feeds, struct ferry_error *err)
{
    for (size_t i = 0; i < n_feeds; i++) {
        struct choice *c = s->fed[i];
        s->feeds[0] = s->feeds[i];
        s->fed[0] = c;
        enum ferry_status st = step(s, 1, err);
        if (st == FERRY_OK) {
            after_feed(s, 0);
            continue;
        }
        if (!is_of_request(st))
            return st;
        if (st == FERRY_ERR_NONFINITE)
            metric_add(s->metrics.nonfinite, 1);
        end_running(s, c, REQUEST_FINISH_ERROR, err);
    }
    return FERRY_OK;
}

static enum ferry_status run_feeds(struct scheduler *s, size_t n_feeds, struct ferry_error *err)
{
    enum ferry_status st = step(s, n_feeds, err);

    if (st == FERRY_OK) {
        for (size_t i = 0; i < n_feeds; i++)
            after_feed(s, i);
        return FERRY_OK;
    }
    return is_of_request(st) ? step_each(s, n_feeds, err) : st;
}

static void fail_all(struct scheduler *s, enum request_finish how, const struct ferry_error *error)
{
    take_inbox(s);
    while (s->n_away > 0)
        sched_finish(s, sched_call_back(s, s->n_away - 1), how, error);
    while (s->n_running > 0)
        sched_finish(s, sched_stop_running(s, s->n_running - 1), how, error);
    while (s->first != NULL)
        sched_finish(s, sched_queue_take(s, NULL), how, error);
}

static void show_state(struct scheduler *s)
{
    size_t used = engine_n_pages(s->engine) - engine_n_pages_available(s->engine);
    size_t running, held = 0, again = 0;

    for (size_t i = 0; i < s->n_running; i++)
        held += s->running[i]->paused;
    running = s->n_running - held + s->n_away;
    /* Preempted ones stand in front of all that are new. */
    for (const struct choice *c = s->first; c != NULL && c->counted; c = c->next) {
        held += c->paused;
        again += !c->paused;
    }
    atomic_store(&s->heartbeat_ns, clock_now_ns());
    atomic_store(&s->n_running_view, running);
    atomic_store(&s->n_held_view, held);
    atomic_store(&s->n_again, again);
    atomic_store(&s->n_pages_used, used);
    atomic_store(&s->group_wait_ns, s->peer_since_ns);
    metric_set(s->metrics.requests_running, (double)running);
    metric_set(s->metrics.requests_held, (double)held);
    metric_set(s->metrics.requests_away, (double)s->n_away);
    metric_set(s->metrics.requests_waiting, (double)(atomic_load(&s->n_waiting) + again));
    metric_set(s->metrics.kv_cache_usage, (double)used / (double)engine_n_pages(s->engine));
}

/* Running choices that are not on hold wait for pages. */
static bool wants_step(const struct scheduler *s)
{
    for (size_t i = 0; i < s->n_running; i++) {
        if (!s->running[i]->paused)
            return true;
    }
    return false;
}

enum ferry_status scheduler_step(struct scheduler *scheduler, bool *ret_idle,
                                 struct ferry_error *err)
{
    struct scheduler *s = scheduler;
    enum ferry_status st = FERRY_OK;
    struct ferry_error own; /* events always have one */
    size_t n_prompt_tokens = 0, n_decode, n_feeds;
    bool reaped;

    err = err != NULL ? err : &own;
    if (s->options.follow != NULL)
        s->options.follow(s->options.follow_arg);
    take_inbox(s);
    bool heard = s->peers != NULL && sched_hear_peers(s);
    reaped = reap(s) || heard;
    look_at_holds(s);
    if (s->n_running == 0)
        s->peer_since_ns = 0; /* who has waited is gone: whoever comes begins anew */
    if (s->peers != NULL)
        sched_send_away(s);
    admit(s);
    show_state(s);
    if (sched_must_rest(s)) {
        *ret_idle = true;
        return FERRY_OK;
    }
    n_decode = plan_decode(s);
    n_feeds = plan_prefill(s, n_decode, &n_prompt_tokens);
    if (n_feeds > 0) {
        st = run_feeds(s, n_feeds, err);
        atomic_fetch_add(&s->n_steps, 1);
        metric_add(s->metrics.steps, 1);
        metric_observe(s->metrics.step_tokens, (double)(n_decode + n_prompt_tokens));
        if (sched_is_of_peers(st)) {
            sched_bear_with_peers(s, err);
            st = FERRY_OK;
            *ret_idle = true; /* until the group has changed */
            show_state(s);
            return st;
        }
        s->peer_since_ns = 0;
        if (st != FERRY_OK)
            fail_all(s, REQUEST_FINISH_ERROR, err);
    } else if (wants_step(s)) {
        make_room(s);
        n_feeds = 1;
    }
    *ret_idle = n_feeds == 0 && !reaped;
    show_state(s);
    return st;
}

void scheduler_destroy(struct scheduler *scheduler)
{
    if (scheduler == NULL)
        return;
    if (scheduler->running != NULL)
        fail_all(scheduler, REQUEST_FINISH_CANCELLED, NULL);
    away_destroy(scheduler->peers);
    mem_free(scheduler->away);
    sampler_destroy(scheduler->sampler);
    mem_free(scheduler->running);
    mem_free(scheduler->fed);
    mem_free(scheduler->feeds);
    (void)pthread_cond_destroy(&scheduler->condition);
    (void)pthread_mutex_destroy(&scheduler->mutex);
    mem_free(scheduler);
}
