/* Messages to ids. See chat.h. */
#include "text/chat.h"

#include "base/alloc.h"
#include "base/error.h"
#include "text/template.h"

#include <string.h>
#include <time.h>

struct chat {
    const struct tokenizer *tokenizer;
    struct template *template;
};

enum ferry_status chat_create(struct chat **ret_chat, const struct tokenizer *tokenizer,
                              const char *source, size_t n_bytes, struct ferry_error *err)
{
    if (source == NULL) {
        source = tokenizer_chat_template(tokenizer);
        if (source == NULL)
            return FERRY_FAIL(err, FERRY_ERR_NOT_FOUND,
                              "this checkpoint has no chat template; give one with "
                              "--chat-template, or use text completion");
        n_bytes = strlen(source);
    }
    struct chat *chat = mem_zero(sizeof *chat);
    if (chat == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "chat: no memory");
    chat->tokenizer = tokenizer;
    enum ferry_status st = template_create(&chat->template, source, n_bytes, err);
    if (st != FERRY_OK) {
        chat_destroy(chat);
        return st;
    }
    *ret_chat = chat;
    return FERRY_OK;
}

void chat_destroy(struct chat *chat)
{
    if (chat == NULL)
        return;
    template_destroy(chat->template);
    mem_free(chat);
}

bool chat_mentions(const struct chat *chat, const char *name)
{
    return template_mentions(chat->template, name);
}

/* Sets variable `name` to a token's text; absent when there is no such token: a client must not
 * supply what counts as the template's own. */
static bool set_token(json_t *variables, const char *name, const struct tokenizer *tokenizer,
                      int32_t id)
{
    size_t size = 0;

    if (id < 0) {
        (void)json_object_del(variables, name);
        return true;
    }
    const char *piece = tokenizer_piece(tokenizer, id, false, &size);
    return json_object_set_new(variables, name, json_stringn(piece, size)) == 0;
}

static int64_t local_now(void)
{
    time_t now = time(NULL);
    struct tm local;

    if (localtime_r(&now, &local) == NULL)
        return (int64_t)now;
    return (int64_t)now + local.tm_gmtoff;
}

enum ferry_status chat_encode(const struct chat *chat, const json_t *variables,
                              struct token_ids *ids, struct ferry_error *err)
{
    static const char *const OTHERS[] = {"pad_token", "unk_token", "sep_token", "cls_token",
                                         "mask_token"};
    struct template_limits limits = template_limits_default();
    struct rendered rendered = {0};
    /* A shallow copy; reading the caller's values is all that happens to them. */
    json_t *all = json_object();
    const char *key;
    json_t *value;
    bool ok = all != NULL;

    json_object_foreach((json_t *)(uintptr_t)variables, key, value) ok =
        ok && json_object_set(all, key, value) == 0;
    ok = ok && set_token(all, "bos_token", chat->tokenizer, tokenizer_bos(chat->tokenizer)) &&
         set_token(all, "eos_token", chat->tokenizer, tokenizer_eos(chat->tokenizer));
    for (size_t i = 0; ok && i < sizeof OTHERS / sizeof OTHERS[0]; i++)
        (void)json_object_del(all, OTHERS[i]);
    if (!ok) {
        json_decref(all);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "chat: no memory for its variables");
    }
    limits.now_s = local_now();
    enum ferry_status st = template_render(chat->template, all, &limits, &rendered, err);
    if (st == FERRY_OK)
        st = tokenizer_encode_rendered(chat->tokenizer, &rendered, ids, err);
    rendered_fini(&rendered);
    json_decref(all);
    return st;
}
