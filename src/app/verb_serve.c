/* ferry serve: the OpenAI-compatible server. Flags, files and signals; everything else is in room
 * serve.
 */
#include "app/app.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/size.h"
#include "serve/auth.h"
#include "serve/server.h"
#include "text/chat.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    NAMES_MAX = 64,
    DEFAULT_PARALLEL = 16,
    DEFAULT_PORT = 8080,
    DEFAULT_DRAIN_S = 60,
    OTHER_FILES = 64, /* that are open beside connections, with room */
};

struct serve_options {
    struct shared_options shared;
    struct server_options server;
    size_t parallel, kv_tokens;
    const char *key_file, *template_file, *cert_file, *cert_key_file, *log_file;
    const char *hosts[NAMES_MAX + 1], *origins[NAMES_MAX + 1];
    size_t n_hosts, n_origins;
};

enum {
    KEY_HOST = 0x300,
    KEY_PORT,
    KEY_PARALLEL,
    KEY_KV_TOKENS,
    KEY_KEYS,
    KEY_INSECURE,
    KEY_ALLOW_HOST,
    KEY_ALLOW_ORIGIN,
    KEY_CERT,
    KEY_CERT_KEY,
    KEY_NAME,
    KEY_TEMPLATE,
    KEY_MAX_WAITING,
    KEY_QUEUE_S,
    KEY_DRAIN_S,
    KEY_STALL_S,
    KEY_KEEPALIVE_S,
    KEY_WEDGED_S,
    KEY_STRICT,
    KEY_NO_PREFIX,
    KEY_NO_VLLM,
    KEY_EXPERTS,
    KEY_LOG,
    KEY_LOG_PROBES,
    KEY_WORKERS,
    KEY_PER_PEER,
};

static const struct argp_option OPTIONS[] = {
    {"host", KEY_HOST, "ADDRESS", 0, "Address to listen on (default 127.0.0.1)", 1},
    {"port", KEY_PORT, "N", 0, "Port (default 8080; 0: any free one)", 1},
    {"parallel", KEY_PARALLEL, "N", 0, "Answers that are made at once (default 16)", 1},
    {"kv-tokens", KEY_KV_TOKENS, "N", 0,
     "Tokens that the KV cache holds for all of them (default: every answer's whole context, or "
     "what "
     "memory allows)",
     1},
    {"served-model-name", KEY_NAME, "NAME", 0,
     "What the API calls the model (default: its own name)", 1},
    {"chat-template", KEY_TEMPLATE, "F", 0,
     "Jinja template file to use instead of the checkpoint's own", 1},
    {"api-key-file", KEY_KEYS, "F", 0,
     "One key a line; every path but /health and /ready needs one", 2},
    {"insecure", KEY_INSECURE, NULL, 0, "Listen on a public address without keys", 2},
    {"allow-host", KEY_ALLOW_HOST, "NAME", 0,
     "Also answer requests for this Host name on a loopback address; may be repeated", 2},
    {"allow-origin", KEY_ALLOW_ORIGIN, "URL", 0,
     "Web pages that may ask ('*': all); may be repeated", 2},
    {"tls-cert", KEY_CERT, "F", 0, "PEM certificate chain", 2},
    {"tls-key", KEY_CERT_KEY, "F", 0, "PEM private key", 2},
    {"max-waiting", KEY_MAX_WAITING, "N", 0, "Answers that may wait (default 256; then 429)", 3},
    {"queue-seconds", KEY_QUEUE_S, "X", 0, "Longest wait (default: as long as the client)", 3},
    {"drain-seconds", KEY_DRAIN_S, "X", 0, "After SIGTERM, time for running answers (default 60)",
     3},
    {"stall-seconds", KEY_STALL_S, "X", 0, "A reader that takes nothing is dropped (default 30)",
     3},
    {"keepalive-seconds", KEY_KEEPALIVE_S, "X", 0,
     "A silent stream gets a comment so often (default 10)", 3},
    {"wedged-seconds", KEY_WEDGED_S, "X", 0,
     "/health is red when the engine was not seen for so long (default 60)", 3},
    {"strict-params", KEY_STRICT, NULL, 0, "Unknown fields of a request are errors", 3},
    {"no-prefix-cache", KEY_NO_PREFIX, NULL, 0, "Compute every prompt; no effect on answers", 3},
    {"no-vllm-metrics", KEY_NO_VLLM, NULL, 0, "Leave vLLM's names out of /metrics", 3},
    {"expert-metrics", KEY_EXPERTS, NULL, 0, "Show the load of every expert in /metrics", 3},
    {"access-log", KEY_LOG, "F", 0, "JSON lines, one a request ('-': standard output)", 3},
    {"log-probes", KEY_LOG_PROBES, NULL, 0, "Log /health, /ready and /metrics, too", 3},
    {"connections-per-peer", KEY_PER_PEER, "N", 0,
     "Connections from one address (default: all 1,024; set it when no proxy is in front)", 2},
    {"workers", KEY_WORKERS, "N", 0, "Threads that parse and tokenise (default 2)", 3},
    {0},
};

static size_t whole(struct argp_state *state, int key, const char *arg, size_t min, size_t max)
{
    size_t n = 0;

    if (!parse_size(arg, min, max, &n))
        flag_failure(state, OPTIONS, key, arg, "is not a whole number in %zu..%zu", min, max);
    return n;
}

/* Seconds in (0, a day]. */
static double seconds(struct argp_state *state, int key, const char *arg, bool zero)
{
    double x = 0;

    if (!parse_double(arg, &x) || !(x > 0 || (zero && x == 0)) || x > 86400)
        flag_failure(state, OPTIONS, key, arg, "is not a number of seconds up to 86400");
    return x;
}

static void name(struct argp_state *state, const char *arg, const char **list, size_t *n)
{
    if (*n == NAMES_MAX)
        argp_failure(state, EXIT_USAGE, 0, "more than %d names", NAMES_MAX);
    list[(*n)++] = arg;
}

static error_t parse_network(int key, char *arg, struct argp_state *state)
{
    struct serve_options *o = state->input;
    struct http_options *http = &o->server.http;

    switch (key) {
    case KEY_HOST:
        http->host = arg;
        return 0;
    case KEY_PORT:
        http->port = (unsigned)whole(state, key, arg, 0, 65535);
        return 0;
    case KEY_KEYS:
        o->key_file = arg;
        return 0;
    case KEY_INSECURE:
        http->insecure = true;
        return 0;
    case KEY_ALLOW_HOST:
        name(state, arg, o->hosts, &o->n_hosts);
        return 0;
    case KEY_ALLOW_ORIGIN:
        name(state, arg, o->origins, &o->n_origins);
        return 0;
    case KEY_CERT:
        o->cert_file = arg;
        return 0;
    case KEY_CERT_KEY:
        o->cert_key_file = arg;
        return 0;
    case KEY_STALL_S:
        http->stall_ms = (unsigned)(seconds(state, key, arg, false) * 1e3 + 1);
        return 0;
    case KEY_KEEPALIVE_S:
        http->keepalive_ms = (unsigned)(seconds(state, key, arg, false) * 1e3 + 1);
        return 0;
    case KEY_LOG:
        o->log_file = arg;
        return 0;
    case KEY_LOG_PROBES:
        http->log_probes = true;
        return 0;
    case KEY_PER_PEER:
        http->max_per_peer = whole(state, key, arg, 1, LIMIT_HTTP_CONNECTIONS);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct serve_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->shared;
        return 0;
    case KEY_PARALLEL:
        o->parallel = whole(state, key, arg, 1, LIMIT_SEQUENCES);
        return 0;
    case KEY_KV_TOKENS:
        o->kv_tokens = whole(state, key, arg, 1, (size_t)1 << 40);
        return 0;
    case KEY_NAME:
        if (arg[0] == 0)
            argp_failure(state, EXIT_USAGE, 0, "the name of the model is empty");
        o->server.model_name = arg;
        return 0;
    case KEY_TEMPLATE:
        o->template_file = arg;
        return 0;
    case KEY_MAX_WAITING:
        o->server.max_waiting = whole(state, key, arg, 1, 1 << 20);
        return 0;
    case KEY_QUEUE_S:
        o->server.queue_seconds = seconds(state, key, arg, false);
        return 0;
    case KEY_DRAIN_S:
        o->server.drain_seconds = seconds(state, key, arg, true);
        return 0;
    case KEY_WEDGED_S:
        o->server.wedged_seconds = seconds(state, key, arg, false);
        return 0;
    case KEY_STRICT:
        o->server.strict_params = true;
        return 0;
    case KEY_NO_PREFIX:
        o->server.no_prefix_cache = true;
        return 0;
    case KEY_NO_VLLM:
        o->server.no_vllm_metrics = true;
        return 0;
    case KEY_EXPERTS:
        o->server.expert_metrics = true;
        return 0;
    case KEY_WORKERS:
        o->server.n_workers = whole(state, key, arg, 1, 16);
        return 0;
    default:
        return parse_network(key, arg, state);
    }
}

/* Files that the server needs beside the model. {0} to start. */
struct files {
    struct auth *auth;
    char *cert, *cert_key;
    char *template_source;
    size_t template_size;
    int log_fd; /* -1: none, or standard output */
};

static enum ferry_status read_keys(const char *path, struct auth **ret_auth,
                                   struct ferry_error *err)
{
    char *text = NULL;
    size_t size = 0;
    enum ferry_status st = read_file(path, &text, &size, err);

    if (st == FERRY_OK)
        st = auth_create(ret_auth, text, size, err);
    if (text != NULL)
        explicit_bzero(text, size);
    mem_free(text);
    return st;
}

static enum ferry_status open_files(struct serve_options *o, struct files *f,
                                    struct ferry_error *err)
{
    enum ferry_status st = FERRY_OK;
    size_t size;

    if ((o->cert_file == NULL) != (o->cert_key_file == NULL))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "--tls-cert and --tls-key belong together");
    if (o->key_file != NULL)
        st = read_keys(o->key_file, &f->auth, err);
    if (st == FERRY_OK && o->cert_file != NULL)
        st = read_file(o->cert_file, &f->cert, &size, err);
    if (st == FERRY_OK && o->cert_file != NULL)
        st = read_file(o->cert_key_file, &f->cert_key, &size, err);
    if (st == FERRY_OK && o->template_file != NULL)
        st = read_file(o->template_file, &f->template_source, &f->template_size, err);
    o->server.http.log_fd = -1;
    if (st == FERRY_OK && o->log_file != NULL && strcmp(o->log_file, "-") == 0) {
        o->server.http.log_fd = STDOUT_FILENO;
    } else if (st == FERRY_OK && o->log_file != NULL) {
        /* A FIFO that nobody reads is an error then, and not waited for. */
        f->log_fd = open(o->log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0640);
        if (f->log_fd < 0)
            st = FERRY_FAIL(err, FERRY_ERR_IO, "cannot open the access log '%s': %s", o->log_file,
                            errno == ENXIO ? "nobody reads this FIFO; start its reader first"
                                           : strerror(errno));
        o->server.http.log_fd = f->log_fd;
    }
    o->server.http.auth = f->auth;
    o->server.http.tls_cert = f->cert;
    o->server.http.tls_key = f->cert_key;
    o->server.http.allowed_hosts = o->hosts;
    o->server.http.allowed_origins = o->n_origins > 0 ? o->origins : NULL;
    return st;
}

static void close_files(struct files *f)
{
    auth_destroy(f->auth);
    mem_free(f->cert);
    if (f->cert_key != NULL)
        explicit_bzero(f->cert_key, strlen(f->cert_key));
    mem_free(f->cert_key);
    mem_free(f->template_source);
    if (f->log_fd >= 0)
        (void)close(f->log_fd);
}

/* SIGTERM and SIGINT reach the server through this; NULL: there is none. Any thread may run the
 * handler, so whoever takes the server away waits until nobody is in it. */
static struct server *_Atomic serving;
static atomic_int n_in_handler;

static void on_signal(int sig)
{
    (void)sig;
    atomic_fetch_add(&n_in_handler, 1);
    struct server *server = atomic_load(&serving);
    if (server != NULL)
        server_stop(server);
    atomic_fetch_sub(&n_in_handler, 1);
}

static void set_handler(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};

    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
}

static void begin_signals(struct server *server)
{
    atomic_store(&serving, server);
    set_handler(on_signal);
}

/* The server is going down: a signal that comes now, or until the process is gone, has nothing more
 * to say and must not turn a clean end into a death by signal. So they stay ignored. */
static void end_signals(void)
{
    set_handler(SIG_IGN);
    atomic_store(&serving, NULL);
    while (atomic_load(&n_in_handler) > 0) /* a few instructions, and nothing can begin */
        (void)sched_yield();
}

static void print_ready(const struct serve_options *o, const struct loaded *l,
                        const struct server *server)
{
    const char *host = o->server.http.host != NULL ? o->server.http.host : "127.0.0.1";
    bool v6 = strchr(host, ':') != NULL;

    (void)fprintf(stderr,
                  "ferry: serving %s at http%s://%s%s%s:%u/v1 (loaded in %.1f s; %zu answers at "
                  "once, %zu tokens of context, %zu in the KV cache)\n",
                  o->server.model_name, o->cert_file != NULL ? "s" : "", v6 ? "[" : "", host,
                  v6 ? "]" : "", server_port(server), l->load_seconds, o->parallel,
                  engine_context(l->engine), engine_n_pages(l->engine) * KERNEL_KV_CHUNK);
}

static enum ferry_status open_chat(struct files *f, const struct tokenizer *tokenizer,
                                   struct chat **ret_chat, struct ferry_error *err)
{
    enum ferry_status st =
        chat_create(ret_chat, tokenizer, f->template_source, f->template_size, err);

    if (st == FERRY_OK || f->template_source != NULL)
        return st;
    /* Text completion works all the same. */
    LOG_WARNING("no chat completions: %s", err->msg);
    return FERRY_OK;
}

/* Every connection is a descriptor. Where the system allows fewer than are meant, the rest waits in
 * the kernel instead of failing at every accept, and the operator is told. */
static void fit_connections(struct http_options *http)
{
    size_t wanted = LIMIT_HTTP_CONNECTIONS + OTHER_FILES;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
        limit.rlim_cur >= wanted)
        return;
    http->max_connections =
        limit.rlim_cur > 2 * OTHER_FILES ? limit.rlim_cur - OTHER_FILES : limit.rlim_cur / 2 + 1;
    LOG_WARNING("%zu connections at once instead of %d: this process may have %llu files open "
                "(ulimit -n)",
                http->max_connections, (int)LIMIT_HTTP_CONNECTIONS,
                (unsigned long long)limit.rlim_cur);
}

static enum ferry_status serve(struct serve_options *o, struct ferry_error *err)
{
    struct load_request request = {.n_sequences = o->parallel,
                                   .kv_tokens = o->kv_tokens,
                                   .fit_kv = true,
                                   .tokenizer = true,
                                   .weights = true,
                                   .scheduler = true};
    struct files files = {.log_fd = -1};
    struct loaded loaded = {0};
    struct chat *chat = NULL;
    struct server *server = NULL;

    fit_connections(&o->server.http);
    o->shared.group.parallel = o->parallel;
    enum ferry_status st = metric_registry_create(&o->server.registry, err);
    o->shared.group.metrics = o->server.registry;
    if (st == FERRY_OK)
        st = open_files(o, &files, err);
    if (st == FERRY_OK)
        st = loaded_open(&loaded, &o->shared, &request, err);
    if (st == FERRY_OK)
        st = open_chat(&files, loaded.tokenizer, &chat, err);
    if (st == FERRY_OK && o->server.model_name == NULL)
        o->server.model_name = model_config(loaded.model)->name;
    o->server.follow = group_follow_hook;
    o->server.follow_arg = loaded.group;
    if (st == FERRY_OK)
        st = server_create(&server, loaded.engine, loaded.tokenizer, chat, &o->server, err);
    if (st == FERRY_OK) {
        group_set_scheduler(loaded.group, server_scheduler(server));
        begin_signals(server);
        print_ready(o, &loaded, server);
        st = server_run(server, err);
        end_signals();
    }
    group_set_scheduler(loaded.group, NULL);
    server_destroy(server);
    chat_destroy(chat);
    loaded_close(&loaded);
    metric_registry_destroy(o->server.registry);
    close_files(&files);
    return st;
}

int verb_serve(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&shared_argp, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        OPTIONS,  parse, "MODEL", "Serves a model through the OpenAI API until SIGTERM or Ctrl-C.",
        CHILDREN, NULL,  NULL};
    struct serve_options o = {
        .parallel = DEFAULT_PARALLEL,
        .server = {.http = {.port = DEFAULT_PORT, .log_fd = -1}, .drain_seconds = DEFAULT_DRAIN_S}};
    struct ferry_error err = {0};
    int code = EXIT_GOOD;

    if (!parse_flags(&ARGP, argc, argv, &o.shared, &o))
        return EXIT_USAGE;
    if (o.shared.json) {
        LOG_ERROR(
            "serve prints no JSON; its numbers are at /metrics, --access-log writes JSON lines");
        return EXIT_USAGE;
    }
    if (rank_under_mpirun(&o.shared, o.parallel, &code))
        return code;
    enum ferry_status st = serve(&o, &err);
    return st == FERRY_OK ? EXIT_GOOD : fail(st, &err);
}
