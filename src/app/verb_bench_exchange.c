/* ferry bench exchange: dispatch and combine of one MoE layer over real ranks, timed, without a
 * model. Founds a group, starts the other ranks (this program again, with --join), and prints one
 * line per number of tokens. Under mpirun, or with --join, it starts nobody. */
#include "app/app.h"
#include "app/bench_exchange.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { TOKENS_MAX = 1 << 16, ROUNDS_MAX = 1000000, ARGS_MAX = 48 };
static const uint64_t CONNECT_NS = UINT64_C(30000000000), END_NS = UINT64_C(5000000000);
static const uint64_t LIVE_NS = UINT64_C(30000000000), LOOK_NS = UINT64_C(100000000);
static const uint64_t SILENT_NS = UINT64_C(2000000000);
static const uint64_t LEAVE_NS = UINT64_C(3000000000);
static const uint64_t SPIN_NS = UINT64_C(1000000);

struct exchange_options_of_verb {
    struct bench_shape shape;
    const char *tokens_text;
    const char *listen, *join, *key_file;
    size_t parent; /* process that started this rank; 0: a person or mpirun did */
    bool ranks_given, json;
};

enum {
    KEY_RANKS = 0x300,
    KEY_TOKENS,
    KEY_EXPERTS,
    KEY_TOP_K,
    KEY_HIDDEN,
    KEY_PLACEMENT,
    KEY_REPLICAS,
    KEY_COMBINE,
    KEY_HOLDER,
    KEY_ROUNDS,
    KEY_SECONDS,
    KEY_THREADS,
    KEY_BUNDLE,
    KEY_LISTEN,
    KEY_JOIN,
    KEY_GROUP_KEY,
    KEY_PARENT,
    KEY_JSON
};

static const struct argp_option OPTIONS[] = {
    {"ranks", KEY_RANKS, "N", 0, "Ranks of the group, 1 to 64 (default 2)", 1},
    {"tokens", KEY_TOKENS, "1,8,64", 0,
     "Tokens of each rank in a round, one or several counts (default 1,8,64,512,4096)", 1},
    {"experts", KEY_EXPERTS, "E", 0, "Experts (default 64)", 1},
    {"top-k", KEY_TOP_K, "K", 0, "Experts per token (default 8)", 1},
    {"hidden", KEY_HIDDEN, "H", 0, "Width of a row, a multiple of 32 (default 2048)", 1},
    {"placement", KEY_PLACEMENT, "P", 0, "contiguous, random or random:SEED (default contiguous)",
     1},
    {"replicas", KEY_REPLICAS, "R", 0, "Ranks that hold each expert (default 1)", 1},
    {"combine", KEY_COMBINE, "f32|bf16", 0, "Format of sums between ranks (default f32)", 1},
    {"holder", KEY_HOLDER, "scaled|summed", 0,
     "What a holder does with rows: scale the one that came, or add up experts' f32 rows as a real "
     "layer does (default scaled)",
     1},
    {"rounds", KEY_ROUNDS, "R", 0, "Rounds that are timed (default: as many as fit)", 1},
    {"seconds", KEY_SECONDS, "S", 0, "Of timed rounds per number of tokens (default 1)", 1},
    {"threads", KEY_THREADS, "N", 0, "Threads of each rank (default 1)", 1},
    {"bundle-bytes", KEY_BUNDLE, "N", 0,
     "As the other verbs' (default 32768; a huge number: rows go to each rank)", 1},
    {"listen", KEY_LISTEN, "HOST:PORT", 0,
     "Where this rank listens (default as with the other verbs). Under mpirun: where rank 0 does",
     2},
    {"join", KEY_JOIN, "HOST:PORT", 0, "Join the group of a rank there; starts nobody", 2},
    {"group-key-file", KEY_GROUP_KEY, "F", 0, "Group key, needed beyond this machine", 2},
    {"with-parent", KEY_PARENT, "PID", OPTION_HIDDEN, "", 2},
    {"json", KEY_JSON, NULL, 0, "One JSON object per line and number of tokens", 3},
    {0},
};

static bool parse_placement(struct bench_shape *s, const char *text)
{
    size_t seed = 1;

    s->random = strncmp(text, "random", 6) == 0;
    if (s->random && text[6] == ':' && !parse_size(text + 7, 0, SIZE_MAX, &seed))
        return false;
    s->placement_seed = s->random ? seed : 0;
    return s->random ? text[6] == 0 || text[6] == ':' : strcmp(text, "contiguous") == 0;
}

/* One of two words; *ret: the second. */
static bool parse_choice(const char *text, const char *first, const char *second, bool *ret)
{
    *ret = strcmp(text, second) == 0;
    return *ret || strcmp(text, first) == 0;
}

static bool parse_shape(int key, char *arg, struct bench_shape *s)
{
    size_t n_threads;
    bool good;

    switch (key) {
    case KEY_TOKENS:
        return parse_sizes(arg, 0, TOKENS_MAX, BENCH_CASES_MAX, s->tokens, &s->n_cases);
    case KEY_EXPERTS:
        return parse_size(arg, 1, LIMIT_EXPERTS, &s->n_experts);
    case KEY_TOP_K:
        return parse_size(arg, 1, LIMIT_TOP_K, &s->top_k);
    case KEY_HIDDEN:
        return parse_size(arg, 32, LIMIT_HIDDEN, &s->hidden) && s->hidden % 32 == 0;
    case KEY_PLACEMENT:
        return parse_placement(s, arg);
    case KEY_REPLICAS:
        return parse_size(arg, 1, LIMIT_SEATS, &s->n_replicas);
    case KEY_COMBINE:
        return parse_choice(arg, "f32", "bf16", &s->combine_bf16);
    case KEY_HOLDER:
        return parse_choice(arg, "scaled", "summed", &s->summed);
    case KEY_ROUNDS:
        return parse_size(arg, 1, ROUNDS_MAX, &s->rounds);
    case KEY_SECONDS:
        return parse_double(arg, &s->seconds) && s->seconds >= 0.001 && s->seconds <= 3600;
    case KEY_BUNDLE:
        return parse_size(arg, 1, SIZE_MAX, &s->bundle_bytes);
    default: /* KEY_THREADS */
        good = parse_size(arg, 1, LIMIT_THREADS, &n_threads);
        s->n_threads = good ? (int)n_threads : 1;
        return good;
    }
}

static void check_flags(struct argp_state *state, const struct exchange_options_of_verb *o)
{
    const struct bench_shape *s = &o->shape;

    if (s->top_k > s->n_experts)
        argp_failure(state, EXIT_USAGE, 0, "--top-k %zu of --experts %zu", s->top_k, s->n_experts);
    if (o->ranks_given && s->n_replicas > s->n_ranks)
        argp_failure(state, EXIT_USAGE, 0, "--replicas %zu of --ranks %zu", s->n_replicas,
                     s->n_ranks);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct exchange_options_of_verb *o = state->input;
    bool good = true;

    switch (key) {
    case KEY_RANKS:
        good = parse_size(arg, 1, LIMIT_SEATS, &o->shape.n_ranks);
        o->ranks_given = true;
        break;
    case KEY_LISTEN:
        o->listen = arg;
        break;
    case KEY_JOIN:
        o->join = arg;
        break;
    case KEY_GROUP_KEY:
        o->key_file = arg;
        break;
    case KEY_PARENT:
        good = parse_size(arg, 1, INT32_MAX, &o->parent);
        break;
    case KEY_JSON:
        o->json = true;
        break;
    case ARGP_KEY_END:
        check_flags(state, o);
        break;
    default:
        if (key < KEY_RANKS || key > KEY_JSON)
            return ARGP_ERR_UNKNOWN;
        if (key == KEY_TOKENS)
            o->tokens_text = arg;
        good = parse_shape(key, arg, &o->shape);
    }
    if (!good)
        flag_failure(state, OPTIONS, key, arg, "is not what it takes, or out of range");
    return 0;
}

/* ---- this rank ---- */

/* A run of the verb in this process. */
struct run {
    const struct exchange_options_of_verb *options;
    struct bench_rank rank;
    struct group_key key;
    pid_t pids[LIMIT_SEATS]; /* of ranks started here; 0: has ended */
    size_t n_pids;
    size_t mpi_rank; /* SIZE_MAX: not under mpirun */
    bool failed;     /* a sum was wrong */
};

/* Rank and size from mpirun's environment, unless flags say who starts whom. */
static void ask_mpirun(struct run *run, struct exchange_options_of_verb *o)
{
    size_t n, n_here;

    if (o->ranks_given || o->join != NULL || !group_mpirun(&run->mpi_rank, &n, &n_here))
        run->mpi_rank = SIZE_MAX;
    else
        o->shape.n_ranks = n;
}

/* One processor per rank, in turn: neither the ranks nor what is compared with them should move. */
static void pin(const struct run *run)
{
    int n = 0, seat = fabric_seat(run->rank.fabric);
    cpu_set_t set;

    if (run->options->shape.n_threads > 1 || sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set) && n++ == seat % CPU_COUNT(&set)) {
            CPU_ZERO(&set);
            CPU_SET(cpu, &set);
            (void)sched_setaffinity(0, sizeof set, &set);
            return;
        }
    }
}

/* The shape as terms of the group; texts [512] is theirs. */
static size_t make_terms(const struct exchange_options_of_verb *o, char texts[512],
                         struct fabric_term terms[3])
{
    const struct bench_shape *s = &o->shape;
    char *placement = texts + 256, *tokens = texts + 320;

    (void)snprintf(texts, 256,
                   "%zu ranks, %zu experts, top-%zu, hidden %zu, %s, %s, %zu rounds, %g s",
                   s->n_ranks, s->n_experts, s->top_k, s->hidden, s->combine_bf16 ? "bf16" : "f32",
                   s->summed ? "summed" : "scaled", s->rounds, s->seconds);
    (void)snprintf(placement, 64, "%s:%llu, %zu replicas", s->random ? "random" : "contiguous",
                   (unsigned long long)s->placement_seed, s->n_replicas);
    (void)snprintf(tokens, 192, "%.191s", o->tokens_text);
    terms[0] = (struct fabric_term){"bench exchange", texts};
    terms[1] = (struct fabric_term){"placement", placement};
    terms[2] = (struct fabric_term){"tokens", tokens};
    return 3;
}

static enum ferry_status open_group(struct run *run, struct ferry_error *err)
{
    const struct exchange_options_of_verb *o = run->options;
    const struct bench_shape *s = &o->shape;
    char texts[512];
    struct fabric_term terms[3];
    bool joins_rank0 = run->mpi_rank != SIZE_MAX && run->mpi_rank > 0;
    const char *join = joins_rank0 ? o->listen : o->join;
    size_t n_cores = (size_t)sysconf(_SC_NPROCESSORS_ONLN);
    struct fabric_options fabric = {
        .listen =
            o->listen != NULL && !joins_rank0 ? o->listen : group_listen_default(join, &run->key),
        .join = join,
        .seat = -1,
        .n_seats = s->n_ranks,
        .key = run->key.n > 0 ? run->key.bytes : NULL,
        .n_key = run->key.n,
        .terms = terms,
        .n_terms = make_terms(o, texts, terms),
        .suspect_ns = SILENT_NS, /* a busy machine must not end a measurement */
        .dead_ns = 2 * SILENT_NS,
        .connect_ns = CONNECT_NS,
        .spin_ns = s->n_ranks * (size_t)s->n_threads > n_cores ? 0 : SPIN_NS,
        .metrics = run->rank.metrics};

    run->rank.spin_ns = fabric.spin_ns;
    bench_lanes(s, &fabric.lanes);
    enum ferry_status st = fabric_create(&run->rank.fabric, &fabric, err);
    if (st == FERRY_OK) {
        fabric_on_message(run->rank.fabric, FABRIC_TOPIC_APP, bench_message, &run->rank);
        fabric_ready(run->rank.fabric);
    }
    return st;
}

/* ---- the others ---- */

struct command {
    char *args[ARGS_MAX];
    char numbers[ARGS_MAX][24];
    size_t n, n_numbers;
};

static void add_text(struct command *c, const char *flag, const char *value)
{
    c->args[c->n++] = (char *)(uintptr_t)flag;
    c->args[c->n++] = (char *)(uintptr_t)value;
}

static void add_number(struct command *c, const char *flag, size_t value)
{
    char *text = c->numbers[c->n_numbers++];

    (void)snprintf(text, sizeof c->numbers[0], "%zu", value);
    add_text(c, flag, text);
}

static void make_command(struct command *c, const struct run *run, const char *address,
                         char placement[40])
{
    const struct exchange_options_of_verb *o = run->options;
    const struct bench_shape *s = &o->shape;

    *c = (struct command){0};
    (void)snprintf(placement, 40, s->random ? "random:%llu" : "contiguous",
                   (unsigned long long)s->placement_seed);
    add_text(c, "ferry", "bench");
    c->args[c->n++] = (char *)(uintptr_t) "exchange";
    add_text(c, "--join", address);
    add_text(c, "--tokens", o->tokens_text);
    add_text(c, "--placement", placement);
    add_text(c, "--combine", s->combine_bf16 ? "bf16" : "f32");
    add_text(c, "--holder", s->summed ? "summed" : "scaled");
    add_number(c, "--ranks", s->n_ranks);
    add_number(c, "--experts", s->n_experts);
    add_number(c, "--top-k", s->top_k);
    add_number(c, "--hidden", s->hidden);
    add_number(c, "--replicas", s->n_replicas);
    add_number(c, "--threads", (size_t)s->n_threads);
    add_number(c, "--with-parent", (size_t)getpid());
    if (s->rounds > 0)
        add_number(c, "--rounds", s->rounds);
    if (s->bundle_bytes > 0)
        add_number(c, "--bundle-bytes", s->bundle_bytes);
    (void)snprintf(c->numbers[c->n_numbers], sizeof c->numbers[0], "%.17g", s->seconds);
    add_text(c, "--seconds", c->numbers[c->n_numbers++]);
    if (o->key_file != NULL)
        add_text(c, "--group-key-file", o->key_file);
}

static enum ferry_status start_ranks(struct run *run, struct ferry_error *err)
{
    char address[TRANSPORT_ADDRESS_MAX], placement[40];
    struct command command;
    size_t n_ranks = run->options->shape.n_ranks;

    fabric_address(run->rank.fabric, address);
    make_command(&command, run, address, placement);
    for (size_t i = 0; i + 1 < n_ranks; i++) {
        int code = posix_spawn(&run->pids[i], "/proc/self/exe", NULL, NULL, command.args, environ);
        if (code != 0)
            return FERRY_FAIL(err, FERRY_ERR_IO, "bench exchange: cannot start rank %zu of %zu: %s",
                              i + 1, n_ranks, strerror(code));
        run->n_pids = i + 1;
    }
    return FERRY_OK;
}

/* Whether a started rank has ended; *ret_status says how. */
static bool has_ended(struct run *run, int *ret_status)
{
    for (size_t i = 0; i < run->n_pids; i++) {
        if (run->pids[i] > 0 && waitpid(run->pids[i], ret_status, WNOHANG) == run->pids[i]) {
            run->pids[i] = 0;
            return true;
        }
    }
    return false;
}

/* Waits for the started ranks' end; for those of a run that failed, only after a signal. */
static void end_ranks(struct run *run, bool at_once)
{
    uint64_t until = clock_now_ns() + (at_once ? 0 : END_NS);
    int status;

    for (size_t i = 0; i < run->n_pids; i++) {
        while (run->pids[i] > 0) {
            if (clock_now_ns() >= until)
                (void)kill(run->pids[i], SIGKILL);
            if (!has_ended(run, &status))
                (void)usleep(1000);
        }
    }
}

static enum ferry_status wait_ranks(struct run *run, struct ferry_error *err)
{
    uint64_t until = clock_now_ns() + LIVE_NS * fabric_time_factor();
    enum ferry_status st;
    int status = 0;

    do {
        st = fabric_wait_live(run->rank.fabric, run->options->shape.n_ranks, LOOK_NS, err);
        if (st != FERRY_OK && has_ended(run, &status))
            return FERRY_FAIL(err, FERRY_ERR_PEER,
                              "bench exchange: a rank ended before it was ready, %s %d; its own "
                              "message says why",
                              WIFSIGNALED(status) ? "by signal" : "with code",
                              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    } while (st == FERRY_ERR_TIMEOUT && clock_now_ns() < until);
    return st;
}

/* ---- results ---- */

static const char *link_of(const struct run *run)
{
    enum link_class slowest = LINK_LOCAL;

    for (int s = 0; s < (int)run->options->shape.n_ranks; s++) {
        enum link_class link = fabric_link(run->rank.fabric, s);
        if (s != fabric_seat(run->rank.fabric) && link != LINK_UNKNOWN && link > slowest)
            slowest = link;
    }
    return link_class_name(slowest);
}

/* One object per line: a run of several numbers of tokens is read line by line. */
static void print_line(json_t *json)
{
    if (json == NULL || json_dumpf(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0)
        LOG_ERROR("cannot write JSON");
    (void)fputc('\n', stdout);
    json_decref(json);
}

static void print_case(void *arg, const struct bench_result *r)
{
    struct run *run = arg;
    const struct bench_shape *s = &run->options->shape;
    char placement[40];

    (void)snprintf(placement, sizeof placement, s->random ? "random:%llu" : "contiguous",
                   (unsigned long long)s->placement_seed);
    if (run->options->json)
        print_line(json_pack(
            "{s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:s, s:s, "
            "s:s, s:f}",
            "mode", "ferry", "ranks", (json_int_t)s->n_ranks, "tokens", (json_int_t)r->tokens,
            "us_p50", r->us_p50, "us_p10", r->us_p10, "us_p90", r->us_p90, "us_p50_rank0",
            r->us_p50_rank0, "bytes_out_per_rank", r->bytes_out, "rounds", (json_int_t)r->rounds,
            "threads", (json_int_t)s->n_threads, "experts", (json_int_t)s->n_experts, "top_k",
            (json_int_t)s->top_k, "hidden", (json_int_t)s->hidden, "placement", placement,
            "replicas", (json_int_t)s->n_replicas, "combine", s->combine_bf16 ? "bf16" : "f32",
            "holder", s->summed ? "summed" : "scaled", "link", link_of(run), "max_error",
            r->max_error));
    else
        (void)printf("%6zu tokens  %10.2f us  (%.2f .. %.2f)  %10.1f KB out of a rank  %7.2f MB/s  "
                     "error %.1g\n",
                     r->tokens, r->us_p50, r->us_p10, r->us_p90, r->bytes_out * 1e-3,
                     r->us_p50 > 0 ? r->bytes_out / r->us_p50 : 0, r->max_error);
    (void)fflush(stdout);
    if (!(r->max_error <= r->largest_gap)) {
        (void)fprintf(stderr,
                      "ferry: error: bench exchange: %zu tokens: sums are off by %g, at "
                      "most %g\n",
                      r->tokens, r->max_error, r->largest_gap);
        run->failed = true;
    }
}

static void print_head(const struct run *run)
{
    const struct bench_shape *s = &run->options->shape;

    if (run->options->json)
        return;
    (void)printf("%zu ranks by %s, %d threads each, %zu experts, top-%zu, hidden %zu, %s, %zu "
                 "replicas, sums in %s, holders %s\n",
                 s->n_ranks, link_of(run), s->n_threads, s->n_experts, s->top_k, s->hidden,
                 s->random ? "random placement" : "contiguous", s->n_replicas,
                 s->combine_bf16 ? "bf16" : "f32", s->summed ? "add up experts" : "scale rows");
}

/* ---- the verb ---- */

static enum ferry_status run_verb(struct run *run, struct ferry_error *err)
{
    const struct exchange_options_of_verb *o = run->options;
    bool starts = o->join == NULL && run->mpi_rank == SIZE_MAX && o->listen == NULL;
    enum ferry_status st = group_key_read(&run->key, o->key_file, err);

    if (run->mpi_rank != SIZE_MAX && o->listen == NULL && o->shape.n_ranks > 1)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "bench exchange: under mpirun give --listen HOST:PORT, where rank 0 "
                          "listens and the others join");
    if (st == FERRY_OK)
        st = metric_registry_create(&run->rank.metrics, err);
    if (st == FERRY_OK)
        st = open_group(run, err);
    if (st == FERRY_OK && starts)
        st = start_ranks(run, err);
    if (st == FERRY_OK)
        st = wait_ranks(run, err);
    if (st == FERRY_OK) {
        metric_registry_seal(run->rank.metrics);
        pin(run);
        if (fabric_seat(run->rank.fabric) == 0)
            print_head(run);
        st = bench_run(&run->rank, print_case, run, err);
    }
    if (st == FERRY_OK && fabric_seat(run->rank.fabric) == 0)
        group_see_off(run->rank.fabric, LEAVE_NS * fabric_time_factor());
    end_ranks(run, st != FERRY_OK);
    fabric_destroy(run->rank.fabric);
    metric_registry_destroy(run->rank.metrics);
    return st;
}

int verb_bench_exchange(int argc, char **argv)
{
    static const struct argp ARGP = {OPTIONS, parse, "",  "Dispatch and combine over ranks, timed.",
                                     NULL,    NULL,  NULL};
    struct exchange_options_of_verb o = {.shape = {.n_ranks = 2,
                                                   .tokens = {1, 8, 64, 512, 4096},
                                                   .n_cases = 5,
                                                   .n_experts = 64,
                                                   .top_k = 8,
                                                   .hidden = 2048,
                                                   .n_replicas = 1,
                                                   .seconds = 1,
                                                   .n_threads = 1},
                                         .tokens_text = "1,8,64,512,4096"};
    struct ferry_error err = {0};

    if (argp_parse(&ARGP, argc, argv, 0, NULL, &o) != 0)
        return EXIT_USAGE;
    if (o.parent != 0) { /* no rank outlives the one that started it */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if ((size_t)getppid() != o.parent)
            return EXIT_FAILED;
    }
    struct run *run = mem_zero(sizeof *run);
    if (run == NULL)
        return fail(FERRY_ERR_NOMEM, &err);
    run->options = &o;
    run->rank.shape = &o.shape;
    (void)pthread_mutex_init(&run->rank.lock, NULL);
    ask_mpirun(run, &o);
    enum ferry_status st = run_verb(run, &err);
    bool failed = run->failed;
    (void)pthread_mutex_destroy(&run->rank.lock);
    explicit_bzero(&run->key, sizeof run->key);
    mem_free(run);
    if (st != FERRY_OK)
        return fail(st, &err);
    return failed ? EXIT_FAILED : EXIT_GOOD;
}
