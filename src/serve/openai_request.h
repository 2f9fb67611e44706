/* OpenAI's requests: from a body to checked settings.
 *
 * Why here: one place decides, for every field, whether it is used, refused or visibly ignored;
 * docs/api.md is its table. Pure: no sockets, no threads, no engine calls. It must not know how a
 * request is served.
 *
 * Bodies are hostile: size, nesting and number of values are bounded before anything is built, and
 * every number has a range. A field that is null counts as absent. */
#ifndef SERVE_OPENAI_REQUEST_H
#define SERVE_OPENAI_REQUEST_H

#include "engine/sampler.h"
#include "ferry/status.h"
#include "serve/openai_error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum openai_kind {
    OPENAI_CHAT,       /* POST /v1/chat/completions */
    OPENAI_COMPLETION, /* POST /v1/completions */
    OPENAI_TOKENIZE,   /* POST /tokenize, with prompt or messages */
    OPENAI_DETOKENIZE, /* POST /detokenize */
};

enum {
    OPENAI_BODY_MAX = 32 << 20,  /* bytes */
    OPENAI_VALUES_MAX = 1 << 18, /* JSON values of one body; half as many keys */
    OPENAI_CHOICES_MAX = 8,      /* n */
    OPENAI_PROMPTS_MAX = 16,     /* prompts of one completion request */
    OPENAI_ANSWERS_MAX = 64,     /* prompts times n */
    OPENAI_MESSAGES_MAX = 1 << 14,
    OPENAI_TOOLS_MAX = 128,
    OPENAI_STOPS_MAX = 16,
    OPENAI_STOP_BYTES_MAX = 1024, /* of one stop string */
    OPENAI_BIASES_MAX = 1024,
    OPENAI_TOP_LOGPROBS_MAX = 20,
    OPENAI_IGNORED_MAX = 32, /* names that X-Ignored-Params lists */
};

/* What the server has. Borrowed by openai_request_parse only. */
struct openai_limits {
    const char *const *models; /* [n_models] names that `model` may have, the first one preferred */
    size_t n_models;
    size_t n_vocab;     /* ids are in [0, n_vocab): as sampler_n_valid */
    bool has_bos;       /* an empty prompt still makes a token */
    bool strict_params; /* what would be ignored is an error */
    /* Whether the chat template looks at a variable (chat_mentions); NULL: at all of them. What it
     * does not look at is refused (tools) or listed as ignored. */
    bool (*template_knows)(const void *arg, const char *name);
    const void *template_arg;
};

/* Text or ids; text NULL: ids. */
struct openai_prompt {
    const char *text; /* [text_size], then a 0; user's text: no control tokens in it */
    size_t text_size;
    int32_t *ids; /* [n_ids] in [0, n_vocab) */
    size_t n_ids;
};

/* A checked request. Everything in it is its own and lives until openai_request_fini. */
struct openai_request {
    enum openai_kind kind;
    const char *model; /* as the client spelled it, or the first of the server's */

    json_t *variables; /* CHAT, and TOKENIZE with messages: for chat_encode; else NULL */
    struct openai_prompt
        *prompts; /* [n_prompts] else; DETOKENIZE: one of ids, which may be empty */
    size_t n_prompts;

    struct sampler_options sampling; /* biases are the request's; seed as below */
    bool has_seed;                   /* sampling.seed was given. If not, the server draws one below
                                        2^53, which every JSON reader can hold */
    size_t max_tokens;               /* of each answer; 0: as many as the context holds */
    size_t n_choices;                /* answers for each prompt */
    const char **stops;              /* [n_stops] */
    size_t n_stops;
    bool ignore_eos;
    bool logprobs;
    size_t n_top_logprobs;

    bool stream;
    bool include_usage; /* a stream ends with a chunk of usage */
    bool echo;          /* completions: the answer starts with the prompt */

    bool add_special_tokens;   /* TOKENIZE, COMPLETION: what the tokenizer puts around a text */
    bool return_token_strings; /* TOKENIZE */

    char *ignored; /* value of X-Ignored-Params, safe for a header; NULL: nothing was ignored */
    size_t n_bad_arguments; /* tool calls of the history whose arguments are no JSON object: the
                               template got them as the string that they are */

    json_t *json; /* the body, which most strings above belong to */
    struct logit_bias *biases;
};

/* Parses body [size]. On failure *ret is untouched and err (may be NULL) says what to answer: 400
 * with the field's name in param, 404 for a model that is not served, 503 out of memory. Any
 * thread. Memory beside the strings: 40 bytes for a number to 270 for an object, of which there are
 * fewer; 35 MB at the limit. */
enum ferry_status openai_request_parse(enum openai_kind kind, const void *body, size_t size,
                                       const struct openai_limits *limits,
                                       struct openai_request *ret,
                                       struct openai_error *err) FERRY_MUST_CHECK;

/* Frees all that is not a plain field: body, prompts, stop strings, biases. For a request whose
 * answer takes longer than these are needed. */
void openai_request_forget(struct openai_request *request);

/* Frees it all; {0} and a second call are allowed. */
void openai_request_fini(struct openai_request *request);

#endif
