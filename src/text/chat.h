/* From messages to token ids: the chat template and the tokenizer of a checkpoint together.
 *
 * Why here: the server and the terminal need the same ids for the same messages. It must not know
 * requests; messages are whatever JSON the template takes. Const after create; any thread. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "ferry/status.h"
#include "text/tokenizer.h"

#include <jansson.h>

struct chat;

/* source: another template than the checkpoint's own (NULL, 0: its own). The tokenizer is borrowed.
 * FERRY_ERR_NOT_FOUND: there is none; those of template_create. */
enum ferry_status chat_create(struct chat **ret_chat, const struct tokenizer *tokenizer,
                              const char *source, size_t n_bytes,
                              struct ferry_error *err) FERRY_MUST_CHECK;
void chat_destroy(struct chat *chat);

/* Appends the ids of a conversation. variables: an object with `messages` and what else the
 * template knows (tools, add_generation_prompt, ...); bos_token, eos_token and their like are the
 * tokenizer's, whatever it says. Errors: those of template_render (FERRY_ERR_ARG has the template's
 * own message) and of tokenizer_encode_rendered. */
enum ferry_status chat_encode(const struct chat *chat, const json_t *variables,
                              struct token_ids *ids, struct ferry_error *err) FERRY_MUST_CHECK;

/* Whether the template looks at a variable of this name at all. */
bool chat_mentions(const struct chat *chat, const char *name);

#endif
