/* The expert-parallel group that a verb runs in: started on this machine by --ranks N, founded with
 * --listen, or joined with --join.
 *
 * Why here: every verb that runs a model may run it on several ranks, and none of them should know
 * how. It must not know what the ranks compute. */
#ifndef APP_GROUP_H
#define APP_GROUP_H

#include "engine/scheduler.h"
#include "fabric/fabric.h"
#include "ferry/status.h"
#include "model/model.h"

#include <stdbool.h>
#include <stddef.h>

struct group;

/* Flags of the group; part of struct shared_options. */
struct group_options {
    size_t n_ranks;        /* 0 or 1: alone, unless listen or join */
    size_t parallel;       /* answers at once of the ranks that are started; the verb's to set */
    size_t n_replicas;     /* seats that hold each expert; 0: 1 */
    const char *placement; /* "contiguous", "random:SEED" or a file; NULL: contiguous */
    const char *listen, *join;
    const char *key_file;
    int seat;                        /* wanted + 1; 0: any */
    size_t n_here;                   /* ranks that share this machine; 0: those started here */
    bool under_mpirun;               /* rank 0 founds, the others join it; all end together */
    struct metric_registry *metrics; /* the verb's to set: where the group is counted, or NULL */
};

/* Whether a group is asked for. */
bool group_wanted(const struct group_options *options);

struct shared_options;

/* Rank, size and ranks on this machine that mpirun gave this process. False: it did not start it,
 * or gave it none of 1..LIMIT_SEATS ranks, which a warning says. */
bool group_mpirun(size_t *ret_rank, size_t *ret_size, size_t *ret_here);

/* A group's secret. */
enum { GROUP_KEY_MIN = 16, GROUP_KEY_MAX = 4096 };
struct group_key {
    size_t n; /* bytes; 0: none */
    unsigned char bytes[GROUP_KEY_MAX];
};

/* The content of a regular file without its end of line; NULL: no key. Errors: those of
 * whole_file_read, FERRY_ERR_ARG (too short or too long). */
enum ferry_status group_key_read(struct group_key *key, const char *path,
                                 struct ferry_error *err) FERRY_MUST_CHECK;

/* Where a rank listens that was told nothing: on this machine alone, unless it joins, with a key, a
 * group beyond it; then at every address, and the others learn the best one. join: NULL for a
 * founder. */
const char *group_listen_default(const char *join, const struct group_key *key);

/* Ranks of the group that share this machine's memory, as far as is known. */
size_t group_ranks_here(const struct group_options *options);

/* Threads of each rank when the ranks of a group share this machine and no number was given. */
int group_threads(const struct shared_options *options);

/* Who will hold which expert in a group of these options, n_ranks seats. Errors: those of
 * whole_file_read, json_parse and placement_from_json; FERRY_ERR_ARG. */
enum ferry_status group_placement(struct placement **ret, const struct group_options *options,
                                  const struct model_config *config,
                                  struct ferry_error *err) FERRY_MUST_CHECK;

/* Founds or joins, starts the other ranks where --ranks asks for it, and tells the model what to
 * hold: between model_open and model_load. Errors: those of fabric_create, placement_from_json and
 * model_join; FERRY_ERR_IO (processes, files). */
enum ferry_status group_open(struct group **ret_group, const struct shared_options *options,
                             struct model *model, struct ferry_error *err) FERRY_MUST_CHECK;

/* After model_load: this rank is ready; founders and starters wait until all ranks are. Errors:
 * FERRY_ERR_TIMEOUT (err lists each seat), FERRY_ERR_PEER (a rank that was started has ended). */
enum ferry_status group_start(struct group *group, struct ferry_error *err) FERRY_MUST_CHECK;

/* Acts on what has changed: loads the experts of ranks that were lost, gives up those of ranks that
 * came back, becomes ready again after this rank itself was given up. Experts that cannot be loaded
 * now are tried again when they are asked for. Engine thread, between steps; cheap when nothing has
 * changed. */
void group_follow(struct group *group);

/* The same as a hook of a scheduler; arg: the group, or NULL for none. */
void group_follow_hook(void *arg);

/* Asks the others to take over what this rank holds. It is to serve and follow on until it has
 * left. */
void group_leave(struct group *group);
bool group_has_left(const struct group *group);

/* What was said last must still arrive: waits until the others have left. */
void group_see_off(const struct fabric *fabric, uint64_t timeout_ns);

/* Ends the ranks that were started, then leaves. After the model was destroyed. NULL is allowed. */
void group_close(struct group *group);

/* Messages of other ranks' engines go to this scheduler from now on; NULL: to nobody (before it is
 * destroyed, or when there will be none). Until the first call they are kept. A group that is NULL
 * is none. */
void group_set_scheduler(struct group *group, struct scheduler *scheduler);

/* Whether whoever started the group has ended it as a whole. */
bool group_ends(const struct group *group);

struct fabric *group_fabric(struct group *group);

#endif
