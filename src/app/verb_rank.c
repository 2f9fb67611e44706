/* ferry rank: one rank of an expert-parallel group, without a front door of its own. */
#include "app/app.h"
#include "app/group.h"
#include "base/clock.h"
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
    bool with_parent;
};

enum { KEY_WITH_PARENT = 0x200 };

static const struct argp_option OPTIONS[] = {
    {"with-parent", KEY_WITH_PARENT, NULL, OPTION_HIDDEN,
     "End when the process that started it ends", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct rank_options *options = state->input;

    (void)arg;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->shared;
        return 0;
    case KEY_WITH_PARENT:
        options->with_parent = true;
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

    if (*said || options->with_parent || (fabric_live(fabric) >> fabric_seat(fabric) & 1) == 0)
        return;
    *said = true;
    fabric_address(fabric, address);
    (void)fprintf(stderr, "ferry: seat %d of %zu is live at %s (loaded in %.1f s)\n",
                  fabric_seat(fabric), fabric_n_seats(fabric), address, loaded->load_seconds);
}

/* A rank that was told to stop leaves once others hold its experts: no row has to be sent again.
 * Not when its group ends anyway, or when the process that started it has gone and took the front
 * door with it; a second signal, or DRAIN_NS, ends the wait. */
static void leave(const struct rank_options *options, struct loaded *loaded, pid_t parent)
{
    uint64_t until = clock_now_ns() + DRAIN_NS;

    if (group_ends(loaded->group) || (options->with_parent && getppid() != parent))
        return;
    group_leave(loaded->group);
    while (n_stops < 2 && !group_ends(loaded->group) && !group_has_left(loaded->group)) {
        if (clock_now_ns() > until) {
            LOG_WARNING("the group did not take over what this rank holds within %llu s; it leaves "
                        "all the same, as if it had died",
                        (unsigned long long)(DRAIN_NS / UINT64_C(1000000000)));
            return;
        }
        (void)model_serve(loaded->model, DRAIN_LOOK_NS, true);
        group_follow(loaded->group);
    }
}

int verb_rank(int argc, char **argv)
{
    struct rank_options options = {0};
    struct loaded loaded = {0};
    struct load_request request = {.weights = true};
    struct ferry_error err = {0};
    struct sigaction action = {.sa_handler = on_signal};
    pid_t parent = getppid();
    bool said = false;

    if (!parse_flags(&ARGP, argc, argv, &options.shared, &options))
        return EXIT_USAGE;
    if (!group_wanted(&options.shared.group)) {
        LOG_ERROR("--join is missing: a rank belongs to a group");
        return EXIT_USAGE;
    }
    (void)sigaction(SIGTERM, &action, NULL);
    if (options.with_parent) {
        action.sa_handler = SIG_IGN; /* Ctrl-C is for the process that started it */
        (void)sigaction(SIGINT, &action, NULL);
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (parent == 1 || getppid() != parent)
            return EXIT_FAILED; /* it ended before the line above */
    } else {
        (void)sigaction(SIGINT, &action, NULL);
    }
    enum ferry_status st = loaded_open(&loaded, &options.shared, &request, &err);
    while (st == FERRY_OK && n_stops == 0 && !group_ends(loaded.group)) {
        (void)model_serve(loaded.model, LOOK_NS, true);
        group_follow(loaded.group);
        say_ready(&options, &loaded, &said);
    }
    if (st == FERRY_OK)
        leave(&options, &loaded, parent);
    int code = st == FERRY_OK ? EXIT_GOOD : fail(st, &err);
    loaded_close(&loaded);
    return code;
}
