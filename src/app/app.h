/* What the verbs of the `ferry` command share: options, loading, output.
 *
 * Why here: one file per verb stays about that verb. Only this room prints and exits. */
#ifndef APP_APP_H
#define APP_APP_H

#include "app/group.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "ferry/status.h"
#include "text/tokenizer.h"

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes of the command. */
enum { EXIT_GOOD = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* A verb: gets its own argc/argv (argv[0] is "ferry VERB"), returns an exit code. */
struct verb {
    const char *name;
    const char *summary;
    int (*main)(int argc, char **argv);
};

int verb_run(int argc, char **argv);
int verb_serve(int argc, char **argv);
int verb_rank(int argc, char **argv);
int verb_logits(int argc, char **argv);
int verb_tokenize(int argc, char **argv);
int verb_eval(int argc, char **argv);
int verb_inspect(int argc, char **argv);
int verb_bench(int argc, char **argv);
int verb_doctor(int argc, char **argv);

/* Flags of every verb that runs a model. Precedence: flag, then FERRY_*, then the default. */
struct shared_options {
    const char *model;    /* MODEL argument */
    int n_threads;        /* 0: all */
    size_t prefill_chunk; /* 0: default, SIZE_MAX: all */
    enum cpu_level level;
    enum dtype kv;
    bool no_repack, combine_bf16;
    size_t context;       /* 0: default */
    size_t micro_batches; /* 0: by the roads */
    size_t bundle_bytes;  /* 0: default */
    struct group_options group;
    bool json;
    const char *bad_variable, *bad_why; /* first FERRY_* that was refused, NULL: none */
};

/* argp child that parses them; its input is a struct shared_options. _init sets defaults and reads
 * FERRY_*. */
extern const struct argp shared_argp;
void shared_options_init(struct shared_options *options);

/* All flags of a verb: `input` is what its own parser fills, `shared` lies in it. False after a
 * message when they cannot be used; a FERRY_* with a wrong value is named after --help had its
 * turn.
 */
bool parse_flags(const struct argp *argp, int argc, char **argv, struct shared_options *shared,
                 void *input);

/* For verbs that run a model, after parse_flags. Under mpirun: makes rank 0 the founder that runs
 * the verb, and does the work of every other rank until rank 0 ends; `parallel`: answers at once
 * that are made there, 0: none. True: the verb is over, with *ret_code. */
bool rank_under_mpirun(struct shared_options *shared, size_t parallel, int *ret_code);

/* Whole-number and list parsing for flags: false when the text is not exactly that. */
bool parse_size(const char *text, size_t min, size_t max, size_t *ret);
bool parse_double(const char *text, double *ret);

/* Numbers with commas between them, 1 to `most`; ret_values [most] may change all the same. */
bool parse_sizes(const char *text, size_t min, size_t max, size_t most, size_t *ret_values,
                 size_t *ret_n);

/* Ends the program with EXIT_USAGE: the value of flag `key` of these options is refused. */
void flag_failure(const struct argp_state *state, const struct argp_option *options, int key,
                  const char *value, const char *format, ...) FERRY_PRINTF(5, 6);

/* Token ids, separated by commas or white space, appended. FERRY_ERR_FORMAT names the place. */
enum ferry_status parse_ids(const char *text, size_t n_bytes, struct token_ids *ids,
                            struct ferry_error *err);

/* What --ids (list) and --ids-file (path) name; exactly one of them is NULL. Errors of parse_ids
 * and read_file. */
enum ferry_status read_ids(const char *list, const char *path, struct token_ids *ids,
                           struct ferry_error *err);

/* A whole file, 0-terminated, freed with mem_free. "-" is standard input. */
enum ferry_status read_file(const char *path, char **ret_text, size_t *ret_size,
                            struct ferry_error *err);

/* Everything a verb needs from a model, in one place. {0} to start; loaded_close takes any
 * half-built state. */
struct loaded {
    struct checkpoint *checkpoint;
    struct device *device;
    struct model *model;
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct group *group;                /* NULL: one rank */
    struct ferry_error tokenizer_error; /* why there is none though any_tokenizer asked for one;
                                           FERRY_ERR_NOT_FOUND: the checkpoint has none */
    double load_seconds;
};

struct load_request {
    size_t n_sequences; /* 0: no engine */
    size_t context;     /* tokens that one sequence needs; 0: --context or the default */
    size_t kv_tokens;   /* that the KV cache holds; 0: whole contexts of all sequences */
    bool fit_kv;        /* kv_tokens 0: as many as memory allows, at least one whole context */
    bool tokenizer;     /* wanted; without one the load fails */
    bool any_tokenizer; /* wanted if the checkpoint has one */
    bool weights;       /* false: only bound, for inspect */
    bool scheduler;     /* group_set_scheduler will be called; else the group has none */
};

enum ferry_status loaded_open(struct loaded *loaded, const struct shared_options *options,
                              const struct load_request *request, struct ferry_error *err);
void loaded_close(struct loaded *loaded);

/* Prints "ferry: error: ..." and returns EXIT_FAILED. Wrong flags are EXIT_USAGE, found before
 * anything is loaded. */
int fail(enum ferry_status status, const struct ferry_error *err);

/* Prints one JSON value and a newline on stdout, then frees it. Returns an exit code (1 when stdout
 * is broken). */
int print_json(json_t *json);

/* A "Key:  123 kB" line of a /proc file, in kB; 0 when absent. */
uint64_t proc_kb(const char *path, const char *key);

/* "4.2 GB"; text holds at least 32 bytes. */
const char *bytes_text(double n_bytes, char text[32]);

/* Bytes per nanosecond (GB/s) that the device's threads read from memory, best of three; 0 when
 * there is no memory for it. */
double read_bandwidth(struct device *device);

/* A file being written; f is the verb's to write to. {0} to start; one at a time. */
struct output {
    FILE *f;
    char place[4096]; /* where it goes when it is complete; empty: written in place */
};

/* Starts the file at path: beside its place until it is complete, and removed when a signal ends
 * the program before. Devices and pipes are written as they are; a link stays, its target is
 * replaced. Errors: FERRY_ERR_ARG (a folder; a file of `source`), FERRY_ERR_IO. */
enum ferry_status output_open(struct output *output, const char *path,
                              const struct checkpoint *source, struct ferry_error *err);

/* Puts the file in its place when st is FERRY_OK, else removes what was written of it. Returns st,
 * or FERRY_ERR_IO. Takes any half-built state. */
enum ferry_status output_close(struct output *output, const char *path, enum ferry_status st,
                               struct ferry_error *err);

#endif
