/* ferry run: one answer (-p, --ids), or a chat in the terminal. With a chat template texts are
 * messages; --raw, or a checkpoint without one, continues them as they stand. */
#include "app/app.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/scheduler.h"
#include "text/chat.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct run_options {
    struct shared_options shared;
    const char *prompt, *prompt_file, *ids, *ids_file;
    size_t n_tokens; /* at most; SIZE_MAX: until the context is full */
    double temperature, top_p, min_p;
    size_t top_k;
    size_t seed;
    bool seed_given, ignore_eos, special, raw;
    const char *system, *chat_template;
    const char *stops[TEXT_STOPS_MAX];
    size_t n_stops;
};

enum {
    KEY_PROMPT_FILE = 0x200,
    KEY_IDS,
    KEY_IDS_FILE,
    KEY_GREEDY,
    KEY_TEMPERATURE,
    KEY_TOP_K,
    KEY_TOP_P,
    KEY_MIN_P,
    KEY_SEED,
    KEY_IGNORE_EOS,
    KEY_SPECIAL,
    KEY_STOP,
    KEY_RAW,
    KEY_SYSTEM,
    KEY_TEMPLATE,
};

static const struct argp_option OPTIONS[] = {
    {"prompt", 'p', "TEXT", 0,
     "Answer this message and stop; without it, lines are read from the terminal", 1},
    {"prompt-file", KEY_PROMPT_FILE, "F", 0, "The same from a file; '-' is standard input", 1},
    {"raw", KEY_RAW, NULL, 0,
     "Continue texts as they stand (without a chat template in the checkpoint: always)", 1},
    {"system", KEY_SYSTEM, "TEXT", 0, "System message of the chat", 1},
    {"chat-template", KEY_TEMPLATE, "F", 0,
     "Jinja template file to use instead of the checkpoint's own", 1},
    {"ids", KEY_IDS, "1,2,3", 0, "Token ids instead of text", 1},
    {"ids-file", KEY_IDS_FILE, "F", 0, "File of token ids", 1},
    {"tokens", 'n', "N", 0, "Tokens of an answer at most (default 256)", 1},
    {"greedy", KEY_GREEDY, NULL, 0, "Always the most likely token (the same as --temperature 0)",
     2},
    {"temperature", KEY_TEMPERATURE, "X", 0, "Randomness (default 0.7)", 2},
    {"top-k", KEY_TOP_K, "N", 0, "Only the N most likely tokens (default: all)", 2},
    {"top-p", KEY_TOP_P, "X", 0,
     "Only the most likely tokens that together have probability X (default 0.95)", 2},
    {"min-p", KEY_MIN_P, "X", 0, "Only tokens at least X times as likely as the best (default 0)",
     2},
    {"seed", KEY_SEED, "N", 0,
     "Seed; the same seed gives the same answer (default: drawn and printed)", 2},
    {"stop", KEY_STOP, "TEXT", 0, "End the answer before this text; may be given several times", 2},
    {"ignore-eos", KEY_IGNORE_EOS, NULL, 0, "Go on after an end-of-text token", 2},
    {"special", KEY_SPECIAL, NULL, 0, "Recognise control tokens in a text that is continued", 2},
    {0},
};

static void parse_number(struct argp_state *state, int key, const char *arg, double *ret)
{
    if (!parse_double(arg, ret))
        flag_failure(state, OPTIONS, key, arg, "is not a number");
}

static void parse_count(struct argp_state *state, int key, const char *arg, size_t min, size_t *ret)
{
    if (!parse_size(arg, min, SIZE_MAX / 2, ret))
        flag_failure(state, OPTIONS, key, arg, "is not a whole number in %zu..%zu", min,
                     SIZE_MAX / 2);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct run_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->shared;
        return 0;
    case 'p':
        o->prompt = arg;
        return 0;
    case KEY_PROMPT_FILE:
        o->prompt_file = arg;
        return 0;
    case KEY_IDS:
        o->ids = arg;
        return 0;
    case KEY_IDS_FILE:
        o->ids_file = arg;
        return 0;
    case 'n':
        if (!parse_size(arg, 1, LIMIT_CONTEXT, &o->n_tokens))
            flag_failure(state, OPTIONS, key, arg, "is not a whole number in 1..%d", LIMIT_CONTEXT);
        return 0;
    case KEY_GREEDY:
        o->temperature = 0;
        return 0;
    case KEY_TEMPERATURE:
        parse_number(state, key, arg, &o->temperature);
        return 0;
    case KEY_TOP_K:
        parse_count(state, key, arg, 0, &o->top_k);
        return 0;
    case KEY_TOP_P:
        parse_number(state, key, arg, &o->top_p);
        return 0;
    case KEY_MIN_P:
        parse_number(state, key, arg, &o->min_p);
        return 0;
    case KEY_SEED:
        parse_count(state, key, arg, 0, &o->seed);
        o->seed_given = true;
        return 0;
    case KEY_IGNORE_EOS:
        o->ignore_eos = true;
        return 0;
    case KEY_RAW:
        o->raw = true;
        return 0;
    case KEY_SYSTEM:
        o->system = arg;
        return 0;
    case KEY_TEMPLATE:
        o->chat_template = arg;
        return 0;
    case KEY_SPECIAL:
        o->special = true;
        return 0;
    case KEY_STOP:
        if (arg[0] == 0)
            argp_failure(state, EXIT_USAGE, 0, "an empty --stop would end every answer");
        if (o->n_stops == TEXT_STOPS_MAX)
            argp_failure(state, EXIT_USAGE, 0, "more than %d stop texts", TEXT_STOPS_MAX);
        o->stops[o->n_stops++] = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Ctrl-C stops the answer, not the program: the handler is installed while an answer is made, and
 * read between steps. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static struct sampler_options sampling_of(const struct run_options *o, uint64_t seed)
{
    return (struct sampler_options){.temperature = (float)o->temperature,
                                    .top_k = o->top_k,
                                    .top_p = (float)o->top_p,
                                    .min_p = (float)o->min_p,
                                    .repetition_penalty = 1,
                                    .seed = seed};
}

/* One answer being made. */
struct answer {
    const struct run_options *options;
    struct loaded *loaded;
    struct token_ids prompt, ids; /* ids: the answer */
    struct bytes text;            /* the answer, as far as it is kept */
    bool keep;                    /* for --json, and for a chat's history */
    bool stream;                  /* print pieces as they come */
    bool done;
    const char *finish;
    struct ferry_error error; /* why it broke off */
    enum ferry_status status;
    struct request_usage usage;
    uint64_t reads_before, layers_before;
};

static enum ferry_status show(struct answer *a, const struct request_event *event)
{
    enum ferry_status st = FERRY_OK;

    for (size_t i = 0; i < event->n_tokens && st == FERRY_OK; i++) {
        if (!token_ids_append(&a->ids, event->tokens[i].id))
            st = FERRY_FAIL(&a->error, FERRY_ERR_NOMEM, "answer: no memory for its tokens");
    }
    if (st == FERRY_OK && a->keep && !bytes_append(&a->text, event->text, event->text_size))
        st = FERRY_FAIL(&a->error, FERRY_ERR_NOMEM, "answer: no memory for its text");
    if (st == FERRY_OK && a->stream && event->text_size > 0 &&
        (fwrite(event->text, 1, event->text_size, stdout) != event->text_size ||
         fflush(stdout) != 0))
        st = FERRY_FAIL(&a->error, FERRY_ERR_IO, "cannot write the answer: %s", strerror(errno));
    return st;
}

static void on_event(void *arg, struct request *request, const struct request_event *event)
{
    struct answer *a = arg;

    if (event->kind == REQUEST_EVENT_DONE) {
        a->usage = *request_usage(request);
        a->done = true;
        return;
    }
    if (a->status == FERRY_OK) {
        a->status = show(a, event);
        if (a->status != FERRY_OK)
            request_cancel(request);
    }
    if (event->kind != REQUEST_EVENT_FINISH)
        return;
    size_t n = request_usage(request)->completion_tokens;
    a->finish = event->finish == REQUEST_FINISH_STOP        ? "stop"
                : event->finish == REQUEST_FINISH_CANCELLED ? "interrupted"
                : n < a->options->n_tokens                  ? "context"
                                                            : "length";
    if (event->finish == REQUEST_FINISH_ERROR && a->status == FERRY_OK) {
        a->error = *event->error;
        a->status = event->error->status;
    }
}

static enum ferry_status generate(struct answer *a, struct scheduler *scheduler, uint64_t seed,
                                  struct ferry_error *err)
{
    const struct run_options *o = a->options;
    const struct exchange_ledger *ledger = model_ledger(a->loaded->model);
    struct request_options options = {.ids = a->prompt.ids,
                                      .n_ids = a->prompt.count,
                                      .max_tokens = o->n_tokens,
                                      .n_choices = 1,
                                      .sampling = sampling_of(o, seed),
                                      .stops = o->stops,
                                      .n_stops = o->n_stops,
                                      .ignore_eos = o->ignore_eos,
                                      .on_event = on_event,
                                      .arg = a};
    struct request *request = NULL;
    bool idle, decoding = false;

    enum ferry_status st = request_create(&request, scheduler, &options, err);
    if (st == FERRY_OK)
        st = scheduler_submit(scheduler, request, err);
    while (st == FERRY_OK && !a->done) {
        if (interrupted)
            request_cancel(request);
        st = scheduler_step(scheduler, &idle, err);
        if (!decoding && request_usage(request)->first_token_ns > 0) {
            decoding = true;
            a->reads_before = ledger->weight_reads;
            a->layers_before = ledger->layers;
        }
    }
    if (!decoding) {
        a->reads_before = ledger->weight_reads;
        a->layers_before = ledger->layers;
    }
    request_destroy(request);
    if (st == FERRY_OK && a->status != FERRY_OK) {
        *err = a->error;
        st = a->status;
    }
    return st;
}

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns && from_ns > 0 ? (double)(to_ns - from_ns) * 1e-9 : 0;
}

static double prompt_seconds(const struct answer *a)
{
    const struct request_usage *u = &a->usage;
    return seconds(u->start_ns, u->first_token_ns > 0 ? u->first_token_ns : u->done_ns);
}

static double token_seconds(const struct answer *a)
{
    return seconds(a->usage.first_token_ns, a->usage.done_ns);
}

static double per_second(size_t n, double seconds)
{
    return seconds > 0 ? (double)n / seconds : 0;
}

/* Distinct experts that a decode step touched, averaged over layers and steps. */
static double experts_used(const struct answer *a)
{
    const struct exchange_ledger *ledger = model_ledger(a->loaded->model);
    uint64_t layers = ledger->layers - a->layers_before;
    return layers > 0 ? (double)(ledger->weight_reads - a->reads_before) / (double)layers : 0;
}

static void print_closing_line(const struct answer *a, uint64_t seed)
{
    size_t n = a->ids.count, computed = a->prompt.count - a->usage.cached_tokens;
    char cached[48] = "";

    if (a->usage.cached_tokens > 0)
        (void)snprintf(cached, sizeof cached, " (and %zu kept)", a->usage.cached_tokens);
    (void)fprintf(
        stderr,
        "\n[%zu prompt tokens%s at %.1f t/s, %zu tokens at %.1f t/s, first after %.0f ms, "
        "%.1f of %zu experts per layer",
        computed, cached, per_second(computed, prompt_seconds(a)), n,
        per_second(n > 0 ? n - 1 : 0, token_seconds(a)), prompt_seconds(a) * 1e3, experts_used(a),
        model_config(a->loaded->model)->router.n_experts);
    if (a->options->temperature > 0)
        (void)fprintf(stderr, ", seed %llu", (unsigned long long)seed);
    (void)fprintf(stderr, "; %s]\n", a->finish);
}

static int print_answer_json(const struct answer *a, uint64_t seed)
{
    size_t n = a->ids.count;
    json_t *ids = json_array();

    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(ids, json_integer(a->ids.ids[i]));
    json_t *json =
        json_pack("{s:o, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:s}", "ids", ids, "finish_reason",
                  a->finish, "prompt_tokens", (json_int_t)a->prompt.count, "completion_tokens",
                  (json_int_t)n, "prompt_tps", per_second(a->prompt.count, prompt_seconds(a)),
                  "completion_tps", per_second(n > 0 ? n - 1 : 0, token_seconds(a)), "ttft_ms",
                  prompt_seconds(a) * 1e3, "experts_per_step", experts_used(a), "seed",
                  (json_int_t)seed, "numerics", model_numerics(a->loaded->model));
    if (json != NULL && a->loaded->tokenizer != NULL)
        (void)json_object_set_new(json, "text",
                                  json_stringn(a->text.size > 0 ? a->text.data : "", a->text.size));
    return print_json(json);
}

/* What stays from one answer to the next. */
struct session {
    const struct run_options *options;
    struct loaded loaded;
    struct scheduler *scheduler;
    struct chat *chat; /* NULL: texts are continued as they stand */
    json_t *messages;  /* chat: everything said so far */
    size_t n_system;   /* of these, what /clear leaves */
};

/* The ids of a prompt: a message behind all that was said, a text to be continued, or --ids. */
static enum ferry_status encode(struct session *s, const char *text, size_t size,
                                struct token_ids *ids, struct ferry_error *err)
{
    const struct run_options *o = s->options;

    if (text == NULL)
        return read_ids(o->ids, o->ids_file, ids, err);
    if (s->chat == NULL)
        return tokenizer_encode(s->loaded.tokenizer, text, size, true, o->special, ids, err);
    json_t *message = json_pack("{s:s, s:s%}", "role", "user", "content", text, size);
    if (message == NULL)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "the message is not UTF-8; --raw takes any bytes");
    (void)json_array_append_new(s->messages, message);
    json_t *variables =
        json_pack("{s:O, s:b}", "messages", s->messages, "add_generation_prompt", 1);
    enum ferry_status st = variables != NULL ? chat_encode(s->chat, variables, ids, err)
                                             : FERRY_FAIL(err, FERRY_ERR_NOMEM, "chat: no memory");
    json_decref(variables);
    return st;
}

/* A failed turn is forgotten, an answered one remembered. */
static void remember(struct session *s, const struct answer *a, enum ferry_status st)
{
    if (s->chat == NULL)
        return;
    if (st == FERRY_OK)
        (void)json_array_append_new(s->messages,
                                    json_pack("{s:s, s:s%}", "role", "assistant", "content",
                                              a->text.size > 0 ? a->text.data : "", a->text.size));
    else if (json_array_size(s->messages) > 0)
        (void)json_array_remove(s->messages, json_array_size(s->messages) - 1);
}

/* One prompt (text, or --ids when text is NULL) from start to closing line. */
static enum ferry_status answer_one(struct session *s, const char *text, size_t size, int *ret_code,
                                    struct ferry_error *err)
{
    const struct run_options *o = s->options;
    struct loaded *l = &s->loaded;
    struct answer a = {.options = o,
                       .loaded = l,
                       .keep = o->shared.json || s->chat != NULL,
                       .stream = !o->shared.json && l->tokenizer != NULL,
                       .finish = "length"};
    uint64_t seed = o->seed_given ? o->seed : sampler_draw_seed();

    size_t n_messages = json_array_size(s->messages);
    enum ferry_status st = encode(s, text, size, &a.prompt, err);
    if (st == FERRY_OK) {
        struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, before;
        interrupted = 0;
        (void)sigaction(SIGINT, &action, &before);
        st = generate(&a, s->scheduler, seed, err);
        (void)sigaction(SIGINT, &before, NULL);
    }
    if (json_array_size(s->messages) > n_messages)
        remember(s, &a, st);
    if (st == FERRY_OK && strcmp(a.finish, "interrupted") == 0)
        *ret_code = EXIT_INTERRUPTED;
    if (st == FERRY_OK && o->shared.json) {
        int code = print_answer_json(&a, seed);
        *ret_code = code != EXIT_GOOD ? code : *ret_code;
    }
    if (st == FERRY_OK && !o->shared.json) {
        for (size_t i = 0; l->tokenizer == NULL && i < a.ids.count; i++)
            (void)printf(i > 0 ? " %d" : "%d", a.ids.ids[i]);
        (void)printf("\n");
        (void)fflush(stdout);
        print_closing_line(&a, seed);
    }
    bytes_fini(&a.text);
    token_ids_fini(&a.prompt);
    token_ids_fini(&a.ids);
    return st;
}

/* What is typed in a chat and is not for the model. */
static bool is_command(struct session *s, const char *line, size_t size)
{
    if (s->chat == NULL || size != strlen("/clear") || memcmp(line, "/clear", size) != 0)
        return false;
    while (json_array_size(s->messages) > s->n_system)
        (void)json_array_remove(s->messages, json_array_size(s->messages) - 1);
    return true;
}

/* Lines from the terminal; a bad one costs the exit code, not the session. */
static enum ferry_status talk(struct session *s, int *ret_code, struct ferry_error *err)
{
    char *line = NULL;
    size_t capacity = 0;
    bool terminal = isatty(STDIN_FILENO) == 1;
    enum ferry_status st = FERRY_OK;
    ssize_t n;

    if (terminal)
        (void)fprintf(stderr, "%s; Ctrl-C stops an answer, Ctrl-D leaves.\n",
                      s->chat != NULL ? "Say something; /clear forgets what was said"
                                      : "Type a text to be continued");
    while (st != FERRY_ERR_IO) { /* nowhere to write to: the others are pointless, too */
        if (terminal)
            (void)fprintf(stderr, "> ");
        n = getline(&line, &capacity, stdin);
        if (n < 0 && ferror(stdin)) {
            st = FERRY_FAIL(err, FERRY_ERR_IO, "cannot read standard input: %s", strerror(errno));
            *ret_code = fail(st, err);
        }
        if (n < 0)
            break;
        size_t size = (size_t)n;
        int code = EXIT_GOOD;
        while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == '\r'))
            size--;
        if (size == 0 || is_command(s, line, size))
            continue;
        st = answer_one(s, line, size, &code, err);
        if (st != FERRY_OK)
            code = fail(st, err);
        if (code != EXIT_GOOD && code != EXIT_INTERRUPTED)
            *ret_code = code;
    }
    free(line); /* getline's own */
    return FERRY_OK;
}

/* Texts are messages when the checkpoint has a chat template, unless --raw. */
static enum ferry_status open_chat(struct session *s, struct ferry_error *err)
{
    const struct run_options *o = s->options;
    char *source = NULL;
    size_t size = 0;
    enum ferry_status st = FERRY_OK;

    if (s->loaded.tokenizer == NULL || o->raw || o->ids != NULL || o->ids_file != NULL)
        return FERRY_OK;
    if (o->chat_template == NULL && tokenizer_chat_template(s->loaded.tokenizer) == NULL)
        return o->system == NULL
                   ? FERRY_OK
                   : FERRY_FAIL(err, FERRY_ERR_ARG,
                                "--system needs a chat template and this checkpoint has none");
    if (o->chat_template != NULL)
        st = read_file(o->chat_template, &source, &size, err);
    if (st == FERRY_OK)
        st = chat_create(&s->chat, s->loaded.tokenizer, source, size, err);
    mem_free(source);
    s->messages = json_array();
    if (st == FERRY_OK && o->system != NULL) {
        json_t *message = json_pack("{s:s, s:s}", "role", "system", "content", o->system);
        if (message == NULL)
            return FERRY_FAIL(err, FERRY_ERR_FORMAT, "--system is not UTF-8");
        (void)json_array_append_new(s->messages, message);
    }
    s->n_system = json_array_size(s->messages);
    return st;
}

static enum ferry_status run(struct run_options *o, int *ret_code, struct ferry_error *err)
{
    struct session s = {.options = o};
    struct scheduler_options options = {0};
    bool ids = o->ids != NULL || o->ids_file != NULL;
    struct load_request request = {.n_sequences = 1,
                                   .tokenizer = !ids,
                                   .any_tokenizer = true,
                                   .weights = true,
                                   .scheduler = true};
    char *file = NULL;
    size_t size = o->prompt != NULL ? strlen(o->prompt) : 0;

    enum ferry_status st = FERRY_OK;
    if (o->prompt_file != NULL)
        st = read_file(o->prompt_file, &file, &size, err);
    if (st == FERRY_OK)
        st = loaded_open(&s.loaded, &o->shared, &request, err);
    if (st == FERRY_OK && o->n_stops > 0 && s.loaded.tokenizer == NULL)
        st =
            FERRY_FAIL(err, FERRY_ERR_ARG, "--stop needs a tokenizer and this checkpoint has none");
    options.follow = group_follow_hook;
    options.follow_arg = s.loaded.group;
    if (st == FERRY_OK)
        st = scheduler_create(&s.scheduler, s.loaded.engine, s.loaded.tokenizer, &options, err);
    if (st == FERRY_OK) {
        group_set_scheduler(s.loaded.group, s.scheduler);
        st = open_chat(&s, err);
    }
    if (st == FERRY_OK && ids)
        st = answer_one(&s, NULL, 0, ret_code, err);
    else if (st == FERRY_OK && (o->prompt != NULL || file != NULL))
        st = answer_one(&s, file != NULL ? file : o->prompt, size, ret_code, err);
    else if (st == FERRY_OK)
        st = talk(&s, ret_code, err);
    mem_free(file);
    json_decref(s.messages);
    chat_destroy(s.chat);
    group_set_scheduler(s.loaded.group, NULL);
    scheduler_destroy(s.scheduler);
    loaded_close(&s.loaded);
    return st;
}

int verb_run(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&shared_argp, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        OPTIONS,  parse, "MODEL", "Answers one message or text, or chats in the terminal.",
        CHILDREN, NULL,  NULL};
    struct run_options o = {.n_tokens = 256, .temperature = 0.7, .top_p = 0.95};
    struct ferry_error err = {0};
    int code = EXIT_GOOD;

    if (!parse_flags(&ARGP, argc, argv, &o.shared, &o))
        return EXIT_USAGE;
    if ((o.prompt != NULL) + (o.prompt_file != NULL) + (o.ids != NULL) + (o.ids_file != NULL) > 1) {
        LOG_ERROR("run takes one of -p, --prompt-file, --ids and --ids-file");
        return EXIT_USAGE;
    }
    struct sampler_options sampling = sampling_of(&o, o.seed);
    enum ferry_status st = sampler_options_check(&sampling, LIMIT_VOCAB, &err);
    if (st != FERRY_OK) {
        LOG_ERROR("%s", err.msg);
        return EXIT_USAGE;
    }
    if (rank_under_mpirun(&o.shared, 0, &code))
        return code;
    st = run(&o, &code, &err);
    return st == FERRY_OK ? code : fail(st, &err);
}
