/* Starting, joining and following a group. See group.h. */
#include "app/group.h"

#include "app/app.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/size.h"
#include "base/whole_file.h"
#include "fabric/auth.h"
#include "file/hash.h"
#include "file/json.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const uint64_t START_NS = UINT64_C(600000000000); /* loading may take minutes */
static const uint64_t SPIN_NS = UINT64_C(50000);
static const uint64_t TELL_NS = UINT64_C(2000000000); /* of waiting in silence */
static const uint64_t LEAVE_NS = UINT64_C(5000000000);
static const size_t LANE_BYTES_MOST = (size_t)16 << 20;

enum { ARGS_MAX = 40, TERM_MAX = 160 };

struct group {
    struct fabric *fabric;
    struct placement *placement;
    struct model *model;
    pthread_mutex_t mutex; /* guards the next one; held while it takes a message */
    struct scheduler *scheduler;
    bool hears;      /* messages for it are taken */
    size_t n_wanted; /* ranks to wait for; 0: it joined */
    pid_t *pids;     /* [n_pids] started here; 0: has ended */
    size_t n_pids;
    uint32_t epoch;      /* that was followed */
    uint64_t live, seen; /* bit per seat: live then; live at any time since this rank came */
    atomic_bool dropped; /* this rank was given up and joined again; set on the fabric's thread */
    atomic_bool ending;  /* the group ends as a whole: who leaves is not lost */
    uint64_t known;      /* bit per seat: was live once; the fabric's thread alone */
    bool under_mpirun;   /* the ranks were not started here, but end with this one */
    struct metric *survived[2]; /* losses: by replicas, by loading as well; NULL: not counted */
    struct group_key key;
};

bool group_wanted(const struct group_options *options)
{
    return options->n_ranks > 1 || options->listen != NULL || options->join != NULL;
}

static bool starts_ranks(const struct group_options *o)
{
    return o->n_ranks > 1 && o->listen == NULL && o->join == NULL;
}

size_t group_ranks_here(const struct group_options *options)
{
    return options->n_here > 0 ? options->n_here : starts_ranks(options) ? options->n_ranks : 1;
}

int group_threads(const struct shared_options *options)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN), n_here = (long)group_ranks_here(&options->group);

    if (options->n_threads > 0 || n_here == 1)
        return options->n_threads;
    return cores > n_here ? (int)(cores / n_here) : 1;
}

bool group_mpirun(size_t *ret_rank, size_t *ret_size, size_t *ret_here)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE"),
               *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");

    if (rank == NULL || size == NULL)
        return false;
    if (!parse_size(size, 1, LIMIT_SEATS, ret_size) ||
        !parse_size(rank, 0, *ret_size - 1, ret_rank)) {
        LOG_WARNING(
            "mpirun says rank '%s' of '%s': a group has 1 to %d ranks, counted from 0; this "
            "process stays alone",
            rank, size, LIMIT_SEATS);
        return false;
    }
    if (here == NULL || !parse_size(here, 1, *ret_size, ret_here))
        *ret_here = 1;
    return true;
}

/* ---- what all ranks must agree on ---- */

static const char *placement_name(const struct group_options *o)
{
    return o->placement != NULL ? o->placement : "contiguous";
}

static bool is_file(const char *placement)
{
    return strcmp(placement, "contiguous") != 0 && strncmp(placement, "random:", 7) != 0;
}

/* The plan's file, when the placement is one. */
static enum ferry_status read_plan(json_t **ret_json, const struct group_options *o,
                                   struct ferry_error *err)
{
    const char *name = placement_name(o);
    char *text = NULL;
    size_t size = 0;

    if (!is_file(name))
        return FERRY_OK;
    enum ferry_status st = whole_file_read(&text, &size, name, LIMIT_JSON_FILE, err);
    if (st == FERRY_OK)
        st = json_parse(ret_json, text, size, LIMIT_JSON_VALUES, name, err);
    mem_free(text);
    return st;
}

static enum ferry_status placement_term(const struct group_options *o, const json_t *plan,
                                        char ret_text[TERM_MAX], struct ferry_error *err)
{
    char hex[65] = "";

    if (plan == NULL) {
        (void)snprintf(ret_text, TERM_MAX, "%.64s, replicas %zu", placement_name(o),
                       max_size(o->n_replicas, 1));
        return FERRY_OK;
    }
    struct hash *hash = hash_create();
    if (hash != NULL)
        hash_json(hash, plan);
    bool good = hash != NULL && hash_finish(hash, hex);
    hash_destroy(hash);
    (void)snprintf(ret_text, TERM_MAX, "plan %s", hex);
    return good ? FERRY_OK : FERRY_FAIL(err, FERRY_ERR_NOMEM, "placement: no memory");
}

static enum ferry_status make_placement(struct placement **ret, const struct group_options *o,
                                        json_t *plan, const struct model_config *c, size_t n_seats,
                                        struct ferry_error *err)
{
    size_t n_replicas = max_size(o->n_replicas, 1);
    const char *name = placement_name(o);

    if (n_replicas > n_seats)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "--replicas %zu: a group of %zu ranks has no room",
                          n_replicas, n_seats);
    size_t n_experts = c->router.n_experts, seed = 0;

    if (plan != NULL)
        return placement_from_json(ret, plan, name, c->layer_has_experts, c->n_layers, n_experts,
                                   n_seats, err);
    if (strcmp(name, "contiguous") == 0)
        return placement_contiguous(ret, c->n_layers, n_experts, n_seats, n_replicas, err);
    if (!parse_size(name + strlen("random:"), 0, SIZE_MAX, &seed))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "placement '%s': the seed is not a whole number",
                          name);
    return placement_random(ret, c->n_layers, n_experts, n_seats, n_replicas, seed, err);
}

enum ferry_status group_placement(struct placement **ret, const struct group_options *options,
                                  const struct model_config *config, struct ferry_error *err)
{
    json_t *plan = NULL;
    enum ferry_status st = read_plan(&plan, options, err);

    if (st == FERRY_OK)
        st = make_placement(ret, options, plan, config, max_size(options->n_ranks, 1), err);
    json_decref(plan);
    return st;
}

enum ferry_status group_key_read(struct group_key *key, const char *path, struct ferry_error *err)
{
    char *text = NULL;
    size_t size = 0, whole;

    key->n = 0;
    if (path == NULL)
        return FERRY_OK;
    enum ferry_status st = whole_file_read(&text, &size, path, GROUP_KEY_MAX + 2, err);
    if (st != FERRY_OK)
        return st;
    whole = size;
    while (size > 0 && (text[size - 1] == '\n' || text[size - 1] == '\r'))
        size--;
    if (size < GROUP_KEY_MIN || size > GROUP_KEY_MAX)
        st = FERRY_FAIL(err, FERRY_ERR_ARG,
                        "group key '%s' has %zu bytes, not %d to %d; make one with: openssl rand "
                        "-hex 32",
                        path, size, GROUP_KEY_MIN, GROUP_KEY_MAX);
    else
        memcpy(key->bytes, text, key->n = size);
    explicit_bzero(text, whole);
    mem_free(text);
    return st;
}

const char *group_listen_default(const char *join, const struct group_key *key)
{
    return join != NULL && key->n > 0 && !auth_is_loopback(join) ? "0.0.0.0:0" : "127.0.0.1:0";
}

/* ---- processes ---- */

/* The flags that make another process a rank of this group. */
struct command {
    char *args[ARGS_MAX];
    size_t n;
    char threads[16], chunk[24], context[24], replicas[24], ranks[24], parallel[24], batches[24],
        bundle[24], parent[24];
};

static void add(struct command *c, const char *flag, const char *value)
{
    c->args[c->n++] = (char *)(uintptr_t)flag;
    if (value != NULL)
        c->args[c->n++] = (char *)(uintptr_t)value;
}

static void make_command(struct command *c, const struct shared_options *o,
                         const struct model *model, const char *address)
{
    size_t step = model_options(model)->step_tokens;

    *c = (struct command){0};
    (void)snprintf(c->threads, sizeof c->threads, "%d", device_threads(model_device(model)));
    (void)snprintf(c->chunk, sizeof c->chunk, "%zu", step);
    (void)snprintf(c->context, sizeof c->context, "%zu", o->context);
    (void)snprintf(c->replicas, sizeof c->replicas, "%zu", max_size(o->group.n_replicas, 1));
    add(c, "ferry", NULL);
    add(c, "rank", NULL);
    add(c, o->model, NULL);
    add(c, "--join", address);
    add(c, "--threads", c->threads);
    add(c, "--prefill-chunk", c->chunk);
    if (o->context > 0) /* else the same default as here */
        add(c, "--context", c->context);
    add(c, "--kv", dtype_name(o->kv));
    add(c, "--cpu-level", cpu_level_name(o->level));
    add(c, "--combine", o->combine_bf16 ? "bf16" : "f32");
    add(c, "--replicas", c->replicas);
    (void)snprintf(c->ranks, sizeof c->ranks, "%zu", o->group.n_ranks);
    (void)snprintf(c->parallel, sizeof c->parallel, "%zu", o->group.parallel);
    add(c, "--ranks", c->ranks);
    add(c, "--parallel", c->parallel);
    if (o->group.placement != NULL)
        add(c, "--placement", o->group.placement);
    if (o->group.key_file != NULL)
        add(c, "--group-key-file", o->group.key_file);
    (void)snprintf(c->batches, sizeof c->batches, "%zu", o->micro_batches);
    if (o->micro_batches > 0) /* else by the roads, as here */
        add(c, "--micro-batches", c->batches);
    (void)snprintf(c->bundle, sizeof c->bundle, "%zu", o->bundle_bytes);
    if (o->bundle_bytes > 0)
        add(c, "--bundle-bytes", c->bundle);
    add(c, o->no_repack ? "--no-repack" : "--repack", NULL);
    (void)snprintf(c->parent, sizeof c->parent, "%ld", (long)getpid());
    add(c, "--with-parent", c->parent);
}

static enum ferry_status start_ranks(struct group *group, const struct shared_options *o,
                                     struct ferry_error *err)
{
    char address[TRANSPORT_ADDRESS_MAX];
    struct command command;

    fabric_address(group->fabric, address);
    make_command(&command, o, group->model, address);
    group->pids = mem_array(o->group.n_ranks - 1, sizeof *group->pids);
    if (group->pids == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "group: no memory");
    for (size_t i = 0; i + 1 < o->group.n_ranks; i++) {
        int code =
            posix_spawn(&group->pids[i], "/proc/self/exe", NULL, NULL, command.args, environ);
        if (code != 0)
            return FERRY_FAIL(err, FERRY_ERR_IO, "group: cannot start rank %zu of %zu: %s", i + 1,
                              o->group.n_ranks, strerror(code));
        group->n_pids = i + 1;
    }
    return FERRY_OK;
}

/* A started rank that has ended, or 0. */
static pid_t reap(struct group *group, int *ret_status)
{
    for (size_t i = 0; i < group->n_pids; i++) {
        pid_t pid = group->pids[i];
        if (pid > 0 && waitpid(pid, ret_status, WNOHANG) == pid) {
            group->pids[i] = 0;
            return pid;
        }
    }
    return 0;
}

static const char END[] = "end";

/* Tells every member that the group ends. */
static void tell_end(struct group *group)
{
    size_t n_seats = fabric_n_seats(group->fabric);

    atomic_store(&group->ending, true);
    for (size_t s = 0; s < n_seats; s++) {
        if ((int)s != fabric_seat(group->fabric))
            (void)fabric_send(group->fabric, (int)s, FABRIC_TOPIC_APP, END, sizeof END);
    }
}

static bool any_runs(struct group *group)
{
    int status;

    while (reap(group, &status) > 0)
        ;
    for (size_t i = 0; i < group->n_pids; i++) {
        if (group->pids[i] > 0)
            return true;
    }
    return false;
}

void group_see_off(const struct fabric *fabric, uint64_t timeout_ns)
{
    uint64_t until = clock_now_ns() + timeout_ns;
    uint64_t self = UINT64_C(1) << fabric_seat(fabric);

    while ((fabric_live(fabric) & ~self) != 0 && clock_now_ns() < until)
        (void)usleep(1000);
}

/* Asks, then terminates, then kills. */
static void end_ranks(struct group *group)
{
    static const struct {
        int signal;
        uint64_t wait_ns;
    } STEPS[] = {{SIGCONT, UINT64_C(500000000)},
                 {SIGTERM, UINT64_C(5000000000)},
                 {SIGKILL, UINT64_C(5000000000)}};

    bool ends_others = group->under_mpirun && group->n_wanted > 0; /* and cannot wait for them */
    if (group->fabric != NULL && (group->n_pids > 0 || ends_others))
        tell_end(group);
    if (group->fabric != NULL && ends_others)
        group_see_off(group->fabric, LEAVE_NS);
    for (size_t step = 0; step < 3 && any_runs(group); step++) {
        uint64_t until = clock_now_ns() + STEPS[step].wait_ns;
        for (size_t i = 0; i < group->n_pids; i++) {
            if (group->pids[i] > 0)
                (void)kill(group->pids[i], STEPS[step].signal);
        }
        while (any_runs(group) && clock_now_ns() < until)
            (void)usleep(1000);
    }
}

/* ---- the group ---- */

static enum ferry_status add_metrics(struct group *group, struct metric_registry *registry,
                                     struct ferry_error *err)
{
    static const char *const MEANS[2] = {"replicas", "file"};
    enum ferry_status st = FERRY_OK;

    for (size_t i = 0; i < 2 && registry != NULL && st == FERRY_OK; i++) {
        struct metric_label label = {"means", MEANS[i]};
        struct metric_spec spec = {.type = METRIC_TYPE_GAUGE,
                                   .name = "ferry_group_losses_survived",
                                   .help = "Ranks that may be lost now, whichever they are: until "
                                           "an expert has to be loaded, and by loading it.",
                                   .labels = &label,
                                   .n_labels = 1};
        st = metric_register(registry, &spec, &group->survived[i], err);
    }
    return st;
}

static void note_live(struct group *group, uint64_t live)
{
    group->live = live;
    metric_set(group->survived[0], placement_losses_survived(group->placement, live));
    metric_set(group->survived[1], __builtin_popcountll(live) - 1);
}

static void on_message(void *arg, int seat, uint32_t incarnation, const void *data, size_t n_bytes)
{
    struct group *group = arg;

    (void)seat;
    (void)incarnation;
    if (n_bytes == sizeof END && memcmp(data, END, sizeof END) == 0)
        atomic_store(&group->ending, true);
    fabric_wake(group->fabric);
}

static void on_engine_message(void *arg, int seat, uint32_t incarnation, const void *data,
                              size_t n_bytes)
{
    struct group *group = arg;

    (void)pthread_mutex_lock(&group->mutex);
    if (group->scheduler != NULL)
        scheduler_peer_message(group->scheduler, seat, incarnation, data, n_bytes);
    (void)pthread_mutex_unlock(&group->mutex);
}

void group_set_scheduler(struct group *group, struct scheduler *scheduler)
{
    if (group == NULL)
        return;
    (void)pthread_mutex_lock(&group->mutex);
    group->scheduler = scheduler;
    (void)pthread_mutex_unlock(&group->mutex);
    if (!group->hears) /* only now: the fabric keeps for it what the others have said before */
        fabric_on_message(group->fabric, FABRIC_TOPIC_ENGINE, on_engine_message, group);
    group->hears = true;
}

static void tell_dead(struct group *group, int seat, enum seat_state from)
{
    char address[TRANSPORT_ADDRESS_MAX];

    fabric_address(group->fabric, address);
    LOG_WARNING("group: seat %d is dead, was %s; 'ferry rank MODEL --join %s' takes its place",
                seat, seat_state_name(from), address);
}

static void on_change(void *arg, int seat, enum seat_state from, enum seat_state to)
{
    struct group *group = arg;
    uint64_t bit = UINT64_C(1) << seat;
    bool again = to == SEAT_LIVE && (group->known & bit) != 0;

    if (to == SEAT_LIVE)
        group->known |= bit;
    if (atomic_load(&group->ending))
        return;
    if (seat != fabric_seat(group->fabric)) {
        if (to == SEAT_DEAD)
            tell_dead(group, seat, from);
        else if (again || from == SEAT_SUSPECT || to == SEAT_SUSPECT || to == SEAT_DRAINING ||
                 from == SEAT_DRAINING)
            LOG_WARNING("group: seat %d is %s, was %s", seat, seat_state_name(to),
                        seat_state_name(from));
        return;
    }
    if (to == SEAT_JOINING) { /* not for the first time, or only just: the state before may be dead
                                 or empty, the table of the others does not say */
        if ((group->known & bit) != 0)
            LOG_WARNING("group: this rank (seat %d) was given up and joins again", seat);
        atomic_store(&group->dropped, true);
    } else if (again) {
        LOG_WARNING("group: this rank (seat %d) is live again", seat);
    }
    fabric_wake(group->fabric);
}

enum ferry_status group_open(struct group **ret_group, const struct shared_options *options,
                             struct model *model, struct ferry_error *err)
{
    const struct group_options *o = &options->group;
    struct group *group = mem_zero(sizeof *group);
    char placement[TERM_MAX] = "", step[32];
    json_t *plan = NULL;
    size_t n_cores = (size_t)sysconf(_SC_NPROCESSORS_ONLN);
    size_t n_threads = group_ranks_here(o) * (size_t)device_threads(model_device(model));

    if (o->listen != NULL && o->join == NULL && o->n_ranks == 0) {
        mem_free(group);
        return FERRY_FAIL(
            err, FERRY_ERR_ARG,
            "--listen founds a group: say of how many with --ranks N (mpirun with more "
            "than one rank does), or which one to --join");
    }
    if (group == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "group: no memory");
    group->model = model;
    group->under_mpirun = o->under_mpirun;
    (void)pthread_mutex_init(&group->mutex, NULL);
    enum ferry_status st = read_plan(&plan, o, err);
    if (st == FERRY_OK)
        st = placement_term(o, plan, placement, err);
    if (st == FERRY_OK)
        st = group_key_read(&group->key, o->key_file, err);
    (void)snprintf(step, sizeof step, "%zu", model_options(model)->step_tokens);
    const char *root = model_manifest_root(model);
    const struct fabric_term terms[] = {{"numerics", model_numerics(model)},
                                        {"tokens of a step (--prefill-chunk)", step},
                                        {"placement", placement},
                                        {"exchange protocol", EXCHANGE_PROTOCOL},
                                        {"manifest", root != NULL ? root : "none"}};
    struct fabric_options fabric = {
        .listen = o->listen != NULL ? o->listen : group_listen_default(o->join, &group->key),
        .join = o->join,
        .seat = o->seat - 1,
        .n_seats = o->n_ranks,
        .key = group->key.n > 0 ? group->key.bytes : NULL,
        .n_key = group->key.n,
        .terms = terms,
        .n_terms = sizeof terms / sizeof terms[0],
        .spin_ns = n_threads > n_cores ? 0 : SPIN_NS, /* who waits must not keep who works */
        .settles = true,
        .metrics = o->metrics};
    model_lanes(model, LANE_BYTES_MOST, &fabric.lanes);
    if (st == FERRY_OK)
        st = fabric_create(&group->fabric, &fabric, err);
    if (st == FERRY_OK) {
        fabric_on_message(group->fabric, FABRIC_TOPIC_APP, on_message, group);
        fabric_on_change(group->fabric, on_change, group);
        st = add_metrics(group, o->metrics, err);
        group->n_wanted = o->join == NULL ? o->n_ranks : 0;
    }
    if (st == FERRY_OK)
        st = make_placement(&group->placement, o, plan, model_config(model),
                            fabric_n_seats(group->fabric), err);
    json_decref(plan);
    if (st == FERRY_OK)
        st = model_join(model, group->fabric, group->placement, fabric_seat(group->fabric), err);
    if (st == FERRY_OK && starts_ranks(o))
        st = start_ranks(group, options, err);
    if (st != FERRY_OK) {
        group_close(group);
        return st;
    }
    *ret_group = group;
    return FERRY_OK;
}

enum ferry_status group_start(struct group *group, struct ferry_error *err)
{
    uint64_t until = clock_now_ns() + START_NS, told_ns = clock_now_ns() + TELL_NS;
    char address[TRANSPORT_ADDRESS_MAX];
    enum ferry_status st;
    int status = 0;

    fabric_ready(group->fabric);
    do {
        st =
            fabric_wait_live(group->fabric, max_size(group->n_wanted, 1), UINT64_C(200000000), err);
        pid_t pid = st != FERRY_OK ? reap(group, &status) : 0;
        if (pid > 0)
            return FERRY_FAIL(err, FERRY_ERR_PEER,
                              "group: a rank (process %ld) ended before it was ready, %s %d; its "
                              "own message says why",
                              (long)pid, WIFSIGNALED(status) ? "by signal" : "with code",
                              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        if (st == FERRY_ERR_TIMEOUT && clock_now_ns() > told_ns) {
            told_ns = UINT64_MAX;
            fabric_address(group->fabric, address);
            (void)fprintf(stderr,
                          "ferry: waiting for ranks: %d of %zu are live; others join at %s\n",
                          __builtin_popcountll(fabric_live(group->fabric)),
                          fabric_n_seats(group->fabric), address);
        }
    } while (st == FERRY_ERR_TIMEOUT && clock_now_ns() < until);
    group->epoch = fabric_epoch(group->fabric);
    note_live(group, fabric_live(group->fabric));
    group->seen = group->live;
    return st;
}

/* Eagerly, so that the first rows do not wait for it. */
static void load_lost(struct group *group, uint64_t live)
{
    /* Seats that have not come yet are not lost: what they will hold is loaded when it is asked
     * for.
     */
    uint64_t all = (UINT64_C(2) << (fabric_n_seats(group->fabric) - 1)) - 1,
             coming = all & ~group->seen, start = clock_now_ns();
    struct ferry_error err;
    size_t n = 0;

    if (model_load_missing(group->model, live | coming, &n, &err) != FERRY_OK)
        LOG_WARNING("group: experts of lost ranks: %s", err.msg);
    if (n > 0)
        LOG_WARNING("group: %zu experts of lost ranks were loaded in %.2f s", n,
                    (double)(clock_now_ns() - start) * 1e-9);
    model_unload_surplus(group->model, live | coming, &n);
}

void group_follow(struct group *group)
{
    uint32_t epoch = fabric_epoch(group->fabric);
    uint64_t live = fabric_live(group->fabric), self = UINT64_C(1) << fabric_seat(group->fabric);
    int status;

    group->seen |= live;
    if (atomic_exchange(&group->dropped, false))
        fabric_ready(group->fabric);
    if ((epoch == group->epoch && live == group->live) || atomic_load(&group->ending))
        return;
    while (reap(group, &status) > 0)
        ;
    if ((live & self) != 0 && live != group->live)
        load_lost(group, live);
    fabric_settle(group->fabric, epoch);
    group->epoch = epoch;
    note_live(group, live);
}

void group_follow_hook(void *arg)
{
    if (arg != NULL)
        group_follow(arg);
}

void group_close(struct group *group)
{
    if (group == NULL)
        return;
    end_ranks(group);
    fabric_destroy(group->fabric);
    placement_destroy(group->placement);
    (void)pthread_mutex_destroy(&group->mutex);
    mem_free(group->pids);
    explicit_bzero(&group->key, sizeof group->key);
    mem_free(group);
}

void group_leave(struct group *group)
{
    fabric_drain(group->fabric);
}

bool group_has_left(const struct group *group)
{
    struct fabric_view view;

    fabric_view(group->fabric, &view);
    return view.seats[fabric_seat(group->fabric)].state == SEAT_EMPTY;
}

bool group_ends(const struct group *group)
{
    return atomic_load(&group->ending);
}

struct fabric *group_fabric(struct group *group)
{
    return group->fabric;
}
