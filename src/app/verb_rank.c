/* ferry rank: one rank of an expert-parallel group, without a front door of its own. The ranks that
 * mpirun started with another verb become the same. */
#include "app/app.h"
#include "app/group.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static const uint64_t LOOK_NS = UINT64_C(200000000);
static const uint64_t DRAIN_LOOK_NS = UINT64_C(20000000);
static const uint64_t DRAIN_NS = UINT64_C(10000000000);

struct rank_options {
    struct shared_options shared;
    size_t parent; /* process that started this rank and ends it; 0: a person or mpirun did */
    size_t parallel;
};

enum { KEY_WITH_PARENT = 0x200, KEY_PARALLEL, PARALLEL_DEFAULT = 16 };

static const struct argp_option OPTIONS[] = {
    {"parallel", KEY_PARALLEL, "N", 0,
     "Answers that are made here at once for front doors elsewhere (default 16); 0: only experts "
     "work here",
     0},
    {"with-parent", KEY_WITH_PARENT, "PID", OPTION_HIDDEN,
     "End when the process that started it ends", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct rank_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->shared;
        return 0;
    case KEY_PARALLEL:
        if (!parse_size(arg, 0, LIMIT_SEQUENCES, &options->parallel))
            flag_failure(state, OPTIONS, key, arg, "is not a whole number in 0..%d",
                         LIMIT_SEQUENCES);
        return 0;
    case KEY_WITH_PARENT:
        if (!parse_size(arg, 1, INT32_MAX, &options->parent))
            flag_failure(state, OPTIONS, key, arg, "is no process");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child CHILDREN[] = {{&shared_argp, 0, NULL, 0}, {0}};
static const struct argp ARGP = {
    .options = OPTIONS,
    .parser = parse,
    .args_doc = "MODEL --join HOST:PORT",
    .doc =
        "Holds a share of MODEL's experts for a group that 'ferry serve --listen' or another "
        "verb with --ranks has founded, until it is told to stop (SIGTERM).\v"
        "All ranks need the same model and the same numeric flags; a rank with others is refused "
        "with the difference.",
    .children = CHILDREN,
};

static volatile sig_atomic_t n_stops;

static void on_signal(int signal)
{
    (void)signal;
    n_stops = n_stops < 2 ? n_stops + 1 : 2;
}

/* Says once that this rank is ready to work, for whoever started it by hand. */
static void say_ready(const struct rank_options *options, const struct loaded *loaded, bool *said)
{
    struct fabric *fabric = group_fabric(loaded->group);
    char address[TRANSPORT_ADDRESS_MAX];

    if (*said || options->parent != 0 || (fabric_live(fabric) >> fabric_seat(fabric) & 1) == 0)
        return;
    *said = true;
    fabric_address(fabric, address);
    (void)fprintf(stderr, "ferry: seat %d of %zu is live at %s (loaded in %.1f s)\n",
                  fabric_seat(fabric), fabric_n_seats(fabric), address, loaded->load_seconds);
}

static enum ferry_status open_scheduler(struct loaded *loaded, struct scheduler **ret_scheduler,
                                        struct ferry_error *err)
{
    const struct scheduler_options options = {.follow = group_follow_hook,
                                              .follow_arg = loaded->group};
    enum ferry_status st =
        scheduler_create(ret_scheduler, loaded->engine, loaded->tokenizer, &options, err);

    if (st == FERRY_OK)
        group_set_scheduler(loaded->group, *ret_scheduler);
    return st;
}

/* One step of answers that front doors have sent here, or a while of serving rows. */
static enum ferry_status work(struct loaded *loaded, struct scheduler *scheduler, uint64_t wait_ns,
                              struct ferry_error *err)
{
    bool idle = true;
    enum ferry_status st = FERRY_OK;

    if (scheduler == NULL) {
        (void)model_serve(loaded->model, wait_ns, true);
        group_follow(loaded->group);
        return st;
    }
    st = scheduler_step(scheduler, &idle, err);
    if (st == FERRY_OK && idle)
        scheduler_wait(scheduler, wait_ns);
    return st;
}

/* A rank that was told to stop leaves once others hold its experts: no row has to be sent again.
 * Not when its group ends anyway, or when the process that started it has gone and took the front
 * door with it; a second signal, or DRAIN_NS, ends the wait. */
static void leave(const struct rank_options *options, struct loaded *loaded,
                  struct scheduler *scheduler)
{
    struct ferry_error err;
    uint64_t until = clock_now_ns() + DRAIN_NS;

    if (group_ends(loaded->group) || (options->parent != 0 && (size_t)getppid() != options->parent))
        return;
    group_leave(loaded->group);
    while (n_stops < 2 && !group_ends(loaded->group) && !group_has_left(loaded->group)) {
        if (clock_now_ns() > until) {
            LOG_WARNING("the group did not take over what this rank holds within %llu s; it leaves "
                        "all the same, as if it had died",
                        (unsigned long long)(DRAIN_NS / UINT64_C(1000000000)));
            return;
        }
        if (work(loaded, scheduler, DRAIN_LOOK_NS, &err) != FERRY_OK)
            return;
    }
}

/* Ends with the process that started it. False: that has ended before. */
static bool begin_with_parent(const struct rank_options *options)
{
    struct sigaction action = {.sa_handler = SIG_IGN}; /* Ctrl-C is for that process */

    if (options->parent == 0)
        return true;
    (void)sigaction(SIGINT, &action, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    return (size_t)getppid() == options->parent;
}

/* From when the rank is a member on: it leaves in order. Before, a signal ends it at once. */
static void begin_signals(const struct rank_options *options)
{
    struct sigaction action = {.sa_handler = on_signal};

    (void)sigaction(SIGTERM, &action, NULL);
    if (options->parent == 0)
        (void)sigaction(SIGINT, &action, NULL);
}

static int run_rank(const struct rank_options *options)
{
    struct load_request request = {.n_sequences = options->parallel,
                                   .fit_kv = true,
                                   .any_tokenizer = true,
                                   .weights = true,
                                   .scheduler = options->parallel > 0};
    struct loaded loaded = {0};
    struct ferry_error err = {0};
    struct scheduler *scheduler = NULL;
    bool said = false;

    if (!begin_with_parent(options))
        return EXIT_FAILED;
    enum ferry_status st = loaded_open(&loaded, &options->shared, &request, &err);
    if (st == FERRY_OK)
        begin_signals(options);
    if (st == FERRY_OK && options->parallel > 0)
        st = open_scheduler(&loaded, &scheduler, &err);
    while (st == FERRY_OK && n_stops == 0 && !group_ends(loaded.group)) {
        st = work(&loaded, scheduler, LOOK_NS, &err);
        say_ready(options, &loaded, &said);
    }
    if (st == FERRY_OK)
        leave(options, &loaded, scheduler);
    group_set_scheduler(loaded.group, NULL);
    scheduler_destroy(scheduler);
    int code = st == FERRY_OK ? EXIT_GOOD : fail(st, &err);
    loaded_close(&loaded);
    return code;
}

bool rank_under_mpirun(struct shared_options *shared, size_t parallel, int *ret_code)
{
    struct group_options *group = &shared->group;
    size_t rank, size, n_here;

    if (group->n_ranks > 0 || group->join != NULL || !group_mpirun(&rank, &size, &n_here) ||
        size == 1)
        return false;
    if (group->listen == NULL) {
        LOG_ERROR("under mpirun give --listen HOST:PORT, where rank 0 listens and the others join "
                  "(or --ranks 1 for none of this)");
        *ret_code = EXIT_USAGE;
        return true;
    }
    if (group->seat > 0) {
        LOG_ERROR("under mpirun a rank's seat is its number there; leave --seat out");
        *ret_code = EXIT_USAGE;
        return true;
    }
    group->n_ranks = size;
    group->n_here = n_here;
    group->seat = (int)rank + 1;
    group->under_mpirun = true;
    if (rank == 0)
        return false;
    group->join = group->listen;
    group->listen = NULL;
    const struct rank_options options = {.shared = *shared, .parallel = parallel};
    *ret_code = run_rank(&options);
    return true;
}

int verb_rank(int argc, char **argv)
{
    struct rank_options options = {.parallel = PARALLEL_DEFAULT};

    if (!parse_flags(&ARGP, argc, argv, &options.shared, &options))
        return EXIT_USAGE;
    if (!group_wanted(&options.shared.group)) {
        LOG_ERROR("--join is missing: a rank belongs to a group");
        return EXIT_USAGE;
    }
    if (options.parent != 0) /* the others were started here, too */
        options.shared.group.n_here = options.shared.group.n_ranks;
    return run_rank(&options);
}
