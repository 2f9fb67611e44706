/* mpi_baseline: dispatch and combine of one MoE layer over Open MPI, timed, for comparison with
 * Ferry's exchange.
 *
 * What: a round is what README.md here says: every rank's tokens go to their experts' ranks and
 *       come back as one sum per token. Rounds run back to back; expert compute is left out.
 *       Prints one JSON line per number of tokens, on rank 0.
 * Why here: a dependency of this benchmark only; nothing of Ferry needs MPI.
 * Must not know: Ferry's exchange. Ferry's kernel quantises, so that both do that alike.
 *
 * Usage: mpirun -n N mpi_baseline --mode A|B [--tokens 1,8,64] [--experts 64] [--top-k 8]
 *            [--hidden 2048] [--placement contiguous|random] [--combine f32|bf16]
 *            [--holder scaled|summed] [--road messages|alltoallv] [--stream-stores]
 *            [--seconds S | --rounds N] [--seed N] [--interface IF]
 * Exit 0 good, 1 failed (a wrong sum, too), 2 wrong usage. */
#include "baseline.h"

#include <errno.h>
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ROUNDS_LEAST = 20,
    ROUNDS_MOST = 2000,
    TOKENS_MAX = 1 << 16,
    CASES_MAX = 32,
    SCENES_MAX = 8
};

struct options {
    const struct mode *mode;
    struct shape shape;
    int tokens[CASES_MAX], n_cases;
    double seconds;
    int rounds;            /* 0: as many as fit into seconds */
    const char *interface; /* whose sent bytes are counted; NULL: none */
    double tolerance;
};

struct result {
    double us_p50, us_p10, us_p90, max_error, bytes_out, wire_bytes;
    int rounds;
};

/* ---- usage ---- */

static _Noreturn void usage(const char *flag, const char *wants, const char *got)
{
    fprintf(stderr, "mpi_baseline: %s wants %s, got '%s'\n", flag, wants, got == NULL ? "" : got);
    exit(2);
}

static double parse_number(const char *flag, const char *text, double min, double max)
{
    char wants[80], *end = NULL;
    const double value = text == NULL ? 0 : strtod(text, &end);

    snprintf(wants, sizeof wants, "a number %g..%g", min, max);
    if (text == NULL || end == text || *end != '\0' || !(value >= min && value <= max))
        usage(flag, wants, text);
    return value;
}

static int parse_int(const char *flag, const char *text, int min, int max)
{
    const double value = parse_number(flag, text, min, max);

    if (value != floor(value))
        usage(flag, "a whole number", text);
    return (int)value;
}

static void parse_tokens(struct options *opt, const char *text)
{
    char list[256], *part, *rest = NULL;

    opt->n_cases = 0;
    if (text == NULL || strlen(text) >= sizeof list)
        usage("--tokens", "numbers with commas", text);
    memcpy(list, text, strlen(text) + 1);
    for (part = strtok_r(list, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest)) {
        if (opt->n_cases == CASES_MAX)
            usage("--tokens", "at most 32 numbers", text);
        opt->tokens[opt->n_cases++] = parse_int("--tokens", part, 0, TOKENS_MAX);
    }
    if (opt->n_cases == 0)
        usage("--tokens", "numbers with commas", text);
}

/* True for the first word, false for the second; anything else is wrong usage. */
static bool parse_choice(const char *flag, const char *text, const char *yes, const char *no)
{
    char wants[64];

    if (text != NULL && strcmp(text, yes) == 0)
        return true;
    snprintf(wants, sizeof wants, "%s or %s", yes, no);
    if (text == NULL || strcmp(text, no) != 0)
        usage(flag, wants, text);
    return false;
}

static void parse_option(struct options *opt, const char *flag, const char *value)
{
    struct shape *shape = &opt->shape;

    if (strcmp(flag, "--mode") == 0)
        opt->mode = parse_choice(flag, value, "A", "B") ? &mode_a : &mode_b;
    else if (strcmp(flag, "--tokens") == 0)
        parse_tokens(opt, value);
    else if (strcmp(flag, "--experts") == 0)
        shape->experts = parse_int(flag, value, 1, EXPERTS_MAX);
    else if (strcmp(flag, "--top-k") == 0)
        shape->top_k = parse_int(flag, value, 1, TOP_K_MAX);
    else if (strcmp(flag, "--hidden") == 0)
        shape->hidden = parse_int(flag, value, 32, 65536);
    else if (strcmp(flag, "--placement") == 0)
        shape->random_placement = parse_choice(flag, value, "random", "contiguous");
    else if (strcmp(flag, "--combine") == 0)
        shape->combine_bf16 = parse_choice(flag, value, "bf16", "f32");
    else if (strcmp(flag, "--holder") == 0)
        shape->sum_experts = parse_choice(flag, value, "summed", "scaled");
    else if (strcmp(flag, "--road") == 0)
        shape->point_to_point = parse_choice(flag, value, "messages", "alltoallv");
    else if (strcmp(flag, "--seconds") == 0)
        opt->seconds = parse_number(flag, value, 0.01, 600);
    else if (strcmp(flag, "--rounds") == 0)
        opt->rounds = parse_int(flag, value, 1, 1000000);
    else if (strcmp(flag, "--seed") == 0)
        shape->seed = (uint64_t)parse_number(flag, value, 0, 0x1p53);
    else if (strcmp(flag, "--interface") == 0)
        opt->interface = value;
    else
        usage("mpi_baseline", "options that it knows (see the head of mpi_baseline.c)", flag);
}

static struct options parse_options(int argc, char **argv)
{
    struct options opt = {
        .shape = {.experts = 64, .top_k = 8, .hidden = 2048, .seed = 1, .point_to_point = true},
        .tokens = {1, 8, 64, 512, 4096},
        .n_cases = 5,
        .seconds = 1};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--stream-stores") == 0) {
            opt.shape.stream_stores = true;
        } else {
            parse_option(&opt, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
            i++;
        }
    }
    if (opt.mode == NULL)
        usage("--mode", "A or B", NULL);
    if (opt.shape.top_k > opt.shape.experts)
        usage("--top-k", "no more than --experts", "more");
    if (opt.shape.hidden % 32 != 0)
        usage("--hidden", "a multiple of 32", "another");
    opt.tolerance = opt.shape.combine_bf16 && opt.mode == &mode_b ? 0x1p-7 : 1e-5;
    return opt;
}

/* ---- a case ---- */

/* One processor per rank, in turn; Open MPI's own binding counts hosts, which may share processors
 * (tests/cluster). */
static void pin(int rank)
{
    cpu_set_t set;
    int n = 0, wanted;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    wanted = rank % CPU_COUNT(&set);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set) && n++ == wanted) {
            CPU_ZERO(&set);
            CPU_SET(cpu, &set);
            (void)sched_setaffinity(0, sizeof set, &set);
            return;
        }
    }
}

/* Largest difference between out and the direct sums of a scene, relative to the largest sum. */
static double check(const struct options *opt, void *state, int scene, bool computed,
                    const float *out)
{
    const struct shape *shape = &opt->shape;
    const size_t hidden = (size_t)shape->hidden;
    float *direct = memory_take(hidden * sizeof *direct);
    double worst = 0, largest = 1e-30;

    for (int t = 0; t < shape->tokens; t++) {
        opt->mode->direct(state, scene, t, computed, direct);
        for (size_t c = 0; c < hidden; c++) {
            const double difference = fabs((double)out[(size_t)t * hidden + c] - direct[c]);

            worst = difference <= worst ? worst : difference; /* a NaN wins */
            largest = fmax(largest, fabs((double)direct[c]));
        }
    }
    free(direct);
    return worst / largest;
}

static int compare_double(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Bytes that this host's interface has sent; counted by one rank of each host. */
static double sent_bytes(const struct options *opt)
{
    char path[128];
    double bytes = 0;
    MPI_Comm host;
    int rank_in_host;
    FILE *f;

    if (opt->interface == NULL)
        return 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &rank_in_host);
    MPI_Comm_free(&host);
    if (rank_in_host != 0)
        return 0;
    snprintf(path, sizeof path, "/sys/class/net/%s/statistics/tx_bytes", opt->interface);
    f = fopen(path, "r");
    if (f == NULL || fscanf(f, "%lf", &bytes) != 1) {
        fprintf(stderr, "mpi_baseline: cannot read %s: %s\n", path, strerror(errno));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    fclose(f);
    return bytes;
}

static int choose_rounds(const struct options *opt, double seconds_per_round)
{
    double rounds = opt->rounds > 0 ? opt->rounds : opt->seconds / seconds_per_round;

    if (opt->rounds == 0)
        rounds = fmin(fmax(rounds, ROUNDS_LEAST), ROUNDS_MOST);
    MPI_Bcast(&rounds, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return (int)rounds;
}

/* Percentiles of the rank whose median is the largest, on rank 0. */
static void slowest_rank(const struct shape *shape, double *seconds, int n, struct result *ret)
{
    double mine[3], all[3 * RANKS_MAX];

    qsort(seconds, (size_t)n, sizeof *seconds, compare_double);
    mine[0] = seconds[n / 2];
    mine[1] = seconds[n / 10];
    mine[2] = seconds[n * 9 / 10];
    MPI_Gather(mine, 3, MPI_DOUBLE, all, 3, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    ret->us_p50 = 0;
    for (int r = 0; shape->rank == 0 && r < shape->n_ranks; r++) {
        if (all[3 * r] * 1e6 > ret->us_p50) {
            ret->us_p50 = all[3 * r] * 1e6;
            ret->us_p10 = all[3 * r + 1] * 1e6;
            ret->us_p90 = all[3 * r + 2] * 1e6;
        }
    }
}

/* Warms up, then times rounds over the scenes in turn. */
static void time_rounds(const struct options *opt, void *state, int n_scenes, float *out,
                        struct result *ret)
{
    double begin, end, bytes = 0, wire, *seconds;
    int n_warm = 2 * n_scenes > 5 ? 2 * n_scenes : 5;

    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    for (int i = 0; i < n_warm; i++)
        opt->mode->round(state, i % n_scenes, false, out);
    ret->rounds = choose_rounds(opt, (MPI_Wtime() - begin) / n_warm);
    seconds = memory_take((size_t)ret->rounds * sizeof *seconds);
    MPI_Barrier(MPI_COMM_WORLD);
    wire = sent_bytes(opt);
    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    for (int i = 0; i < ret->rounds; i++) {
        opt->mode->round(state, i % n_scenes, false, out);
        end = MPI_Wtime();
        seconds[i] = end - begin;
        begin = end;
        bytes += (double)opt->mode->bytes_out(state);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    wire = (sent_bytes(opt) - wire) / ret->rounds / opt->shape.n_ranks;
    bytes = bytes / ret->rounds / opt->shape.n_ranks;
    MPI_Reduce(&wire, &ret->wire_bytes, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&bytes, &ret->bytes_out, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    slowest_rank(&opt->shape, seconds, ret->rounds, ret);
    free(seconds);
}

/* Checks every scene with computed experts, times, checks what the last round left. */
static struct result run_case(const struct options *opt)
{
    const struct shape *shape = &opt->shape;
    const size_t n = (size_t)shape->tokens * (size_t)shape->hidden;
    const int n_scenes = shape->tokens <= 8 ? SCENES_MAX : shape->tokens <= 64 ? 2 : 1;
    struct routing scenes[SCENES_MAX];
    struct result result = {0};
    float *x = memory_take(n * sizeof *x), *out = memory_take(n * sizeof *out);
    double worst = 0;
    void *state;

    tokens_draw(shape, shape->rank, x);
    for (int i = 0; i < n_scenes; i++)
        routing_draw(shape, (uint64_t)i, shape->rank, &scenes[i]);
    state = opt->mode->create(shape, scenes, n_scenes, x);
    for (int i = 0; i < n_scenes; i++) {
        opt->mode->round(state, i, true, out);
        worst = fmax(worst, check(opt, state, i, true, out));
    }
    memset(out, 0xff, n * sizeof *out); /* NaN: a sum that is not written shows */
    time_rounds(opt, state, n_scenes, out, &result);
    worst = fmax(worst, check(opt, state, (result.rounds - 1) % n_scenes, false, out));
    MPI_Allreduce(&worst, &result.max_error, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    opt->mode->destroy(state);
    for (int i = 0; i < n_scenes; i++)
        routing_free(&scenes[i]);
    free(x);
    free(out);
    return result;
}

static void print_result(const struct options *opt, const struct result *r)
{
    const struct shape *shape = &opt->shape;

    printf("{\"mode\": \"%s\", \"ranks\": %d, \"tokens\": %d, \"us_p50\": %.2f, \"us_p10\": %.2f, "
           "\"us_p90\": %.2f, \"bytes_out_per_rank\": %.0f, \"rounds\": %d, \"experts\": %d, "
           "\"top_k\": %d, \"hidden\": %d, \"placement\": \"%s\", \"combine\": \"%s\", "
           "\"max_error\": %.2g",
           opt->mode->name, shape->n_ranks, shape->tokens, r->us_p50, r->us_p10, r->us_p90,
           r->bytes_out, r->rounds, shape->experts, shape->top_k, shape->hidden,
           shape->random_placement ? "random" : "contiguous",
           opt->mode == &mode_a  ? "bf16"
           : shape->combine_bf16 ? "bf16"
                                 : "f32",
           r->max_error);
    if (opt->interface != NULL)
        printf(", \"wire_bytes_out_per_rank\": %.0f", r->wire_bytes);
    printf("}\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct options opt = parse_options(argc, argv);
    int bad = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &opt.shape.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &opt.shape.n_ranks);
    if (opt.shape.n_ranks > RANKS_MAX) {
        fprintf(stderr, "mpi_baseline: %d ranks, at most %d\n", opt.shape.n_ranks, RANKS_MAX);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    pin(opt.shape.rank);
    shape_place(&opt.shape);
    for (int i = 0; i < opt.n_cases; i++) {
        struct result result;

        opt.shape.tokens = opt.tokens[i];
        result = run_case(&opt);
        if (opt.shape.rank == 0)
            print_result(&opt, &result);
        if (!(result.max_error <= opt.tolerance)) {
            if (opt.shape.rank == 0)
                fprintf(stderr,
                        "mpi_baseline: mode %s, %d tokens: sums are off by %g, at most %g\n",
                        opt.mode->name, opt.shape.tokens, result.max_error, opt.tolerance);
            bad = 1;
        }
    }
    MPI_Finalize();
    return bad;
}
