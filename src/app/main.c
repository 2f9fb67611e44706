/* The `ferry` command: picks the verb. One file per verb beside this one. */
#include "app/app.h"

#include "base/log.h"
#include "file/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct verb VERBS[] = {
    {"run", "talk to the model in the terminal, or answer once", verb_run},
    {"serve", "answer over HTTP: the OpenAI API", verb_serve},
    {"rank", "hold a share of the experts for a group of ranks", verb_rank},
    {"logits", "write f32 logits of given token ids to a safetensors file", verb_logits},
    {"tokenize", "text to token ids and back", verb_tokenize},
    {"eval", "perplexity and bits per byte of a text", verb_eval},
    {"inspect", "architecture, tensors, memory plan, checks", verb_inspect},
    {"bench", "prompt and generation speed beside the machine's limits", verb_bench},
    {"doctor", "what this machine offers and what Ferry will use", verb_doctor},
};

enum { N_VERBS = sizeof VERBS / sizeof VERBS[0] };

static void print_help(FILE *to)
{
    (void)fprintf(to,
                  "ferry " FERRY_VERSION ": an inference engine for Mixture-of-Experts models\n\n"
                  "usage: ferry VERB [options]    (ferry VERB --help tells the options)\n\n");
    for (int i = 0; i < N_VERBS; i++)
        (void)fprintf(to, "  %-10s %s\n", VERBS[i].name, VERBS[i].summary);
    (void)fprintf(to, "\nMODEL is a .gguf file (or the first of its shards) or a folder with "
                      "config.json and safetensors.\n"
                      "Exit codes: 0 good, 1 failed, 2 wrong usage, 130 interrupted.\n");
}

/* A closed standard stream would be the next file that is opened: a model's weights could be read
 * as a prompt, or messages be written into them. */
static void hold_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            _exit(EXIT_FAILED); /* nowhere to tell it */
    }
}

/* At exit, also from argp's --help: what was printed must have arrived (the disk may be full). A
 * verb that failed has said why. */
static void check_output(int code, void *unused)
{
    (void)unused;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || code != EXIT_GOOD)
        return;
    LOG_ERROR("cannot write to standard output: %s", strerror(errno));
    _exit(EXIT_FAILED);
}

int main(int argc, char **argv)
{
    hold_standard_streams();
    (void)on_exit(check_output, NULL);
    (void)signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error, reported like one */
    (void)signal(SIGXFSZ, SIG_IGN); /* so is a file that grows too large */
    if (fault_install() != 0)
        LOG_WARNING("no handler for shrinking files: %s", strerror(errno));
    argp_err_exit_status = EXIT_USAGE;
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return EXIT_GOOD;
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("ferry " FERRY_VERSION "\n");
        return EXIT_GOOD;
    }
    for (int i = 0; i < N_VERBS; i++) {
        if (strcmp(argv[1], VERBS[i].name) != 0)
            continue;
        char name[64];
        (void)snprintf(name, sizeof name, "ferry %s", VERBS[i].name);
        argv[1] = name; /* argp prints it in usage lines */
        return VERBS[i].main(argc - 1, argv + 1);
    }
    (void)fprintf(stderr, "ferry: error: there is no verb '%s'; 'ferry --help' lists them\n",
                  argv[1]);
    return EXIT_USAGE;
}
