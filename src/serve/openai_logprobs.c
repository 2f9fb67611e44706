/* Log-probabilities. See openai_logprobs.h. */
#include "serve/openai_logprobs.h"

#include "base/size.h"
#include "text/unicode.h"

#include <stdbool.h>
#include <string.h>

static const char *piece_of(const struct tokenizer *tokenizer, int32_t id, size_t *ret_size)
{
    *ret_size = 0;
    return tokenizer == NULL ? "" : tokenizer_piece(tokenizer, id, false, ret_size);
}

void openai_write_token_text(struct json_writer *w, const struct tokenizer *tokenizer, int32_t id)
{
    static const char DIGITS[] = "0123456789abcdef";
    size_t size;
    const char *piece = piece_of(tokenizer, id, &size);

    json_put_raw(w, "\"", 1);
    for (size_t i = 0; i < size;) {
        size_t valid = utf8_valid_size(piece + i, size - i);
        json_put_chars(w, piece + i, valid);
        i += valid;
        if (i < size) { /* the backslash is part of the text, so it is escaped */
            unsigned char byte = (unsigned char)piece[i++];
            json_put_raw(w, (char[]){'\\', '\\', 'x', DIGITS[byte >> 4], DIGITS[byte & 15]}, 5);
        }
    }
    json_put_raw(w, "\"", 1);
}

static const struct logprobs *at(const struct openai_tokens *tokens, size_t i)
{
    return tokens->tokens != NULL ? tokens->tokens[i].logprobs : &tokens->logprobs[i];
}

static void put_separator(struct json_writer *w, bool *first)
{
    if (!*first)
        json_put_raw(w, ",", 1);
    *first = false;
}

/* ---- chat ---- */

/* The members token, logprob and bytes, after the opening brace. */
static void put_members(struct json_writer *w, const struct tokenizer *tokenizer,
                        const struct token_logprob *token)
{
    size_t size;
    const char *piece = piece_of(tokenizer, token->id, &size);

    json_put_text(w, "{\"token\":");
    openai_write_token_text(w, tokenizer, token->id);
    json_put_text(w, ",\"logprob\":");
    json_put_float(w, token->logprob);
    json_put_text(w, ",\"bytes\":[");
    for (size_t i = 0; i < size; i++) {
        if (i > 0)
            json_put_raw(w, ",", 1);
        json_put_uint(w, (unsigned char)piece[i]);
    }
    json_put_raw(w, "]", 1);
}

void openai_write_chat_logprobs(struct json_writer *w, const struct tokenizer *tokenizer,
                                const struct openai_tokens *tokens, size_t n_top)
{
    bool first = true;

    json_put_text(w, "{\"content\":[");
    for (size_t i = 0; i < tokens->n; i++) {
        const struct logprobs *l = at(tokens, i);
        if (l == NULL)
            continue;
        put_separator(w, &first);
        put_members(w, tokenizer, &l->chosen);
        json_put_text(w, ",\"top_logprobs\":[");
        for (size_t j = 0; j < min_size(n_top, l->n_top); j++) {
            if (j > 0)
                json_put_raw(w, ",", 1);
            put_members(w, tokenizer, &l->top[j]);
            json_put_raw(w, "}", 1);
        }
        json_put_text(w, "]}");
    }
    json_put_text(w, "],\"refusal\":null}");
}

/* ---- text completions ---- */

static bool same_text(const struct tokenizer *tokenizer, int32_t a, int32_t b)
{
    size_t a_size;
    size_t b_size;
    const char *a_piece = piece_of(tokenizer, a, &a_size);
    const char *b_piece = piece_of(tokenizer, b, &b_size);

    return a == b || (a_size == b_size && memcmp(a_piece, b_piece, a_size) == 0);
}

static void put_entry(struct json_writer *w, const struct tokenizer *tokenizer,
                      const struct token_logprob *token, bool *first)
{
    put_separator(w, first);
    openai_write_token_text(w, tokenizer, token->id);
    json_put_raw(w, ":", 1);
    json_put_float(w, token->logprob);
}

/* An object by text: names must not repeat. */
static void put_top(struct json_writer *w, const struct tokenizer *tokenizer,
                    const struct logprobs *l, size_t n_top)
{
    bool first = true;
    bool chosen = false; /* its text is among the names */

    n_top = min_size(n_top, l->n_top);
    json_put_raw(w, "{", 1);
    for (size_t i = 0; i < n_top; i++) {
        bool repeated = false;
        for (size_t j = 0; j < i; j++)
            repeated = repeated || same_text(tokenizer, l->top[i].id, l->top[j].id);
        chosen = chosen || same_text(tokenizer, l->top[i].id, l->chosen.id);
        if (!repeated)
            put_entry(w, tokenizer, &l->top[i], &first);
    }
    if (!chosen)
        put_entry(w, tokenizer, &l->chosen, &first);
    json_put_raw(w, "}", 1);
}

/* Characters of the answer that begin in the token: special tokens are not shown. */
static size_t count_characters(const struct tokenizer *tokenizer, int32_t id)
{
    size_t size = 0;
    const char *piece = tokenizer == NULL ? "" : tokenizer_piece(tokenizer, id, true, &size);
    size_t n = 0;

    for (size_t i = 0; i < size; i++)
        n += ((unsigned char)piece[i] & 0xC0) != 0x80;
    return n;
}

void openai_write_completion_logprobs(struct json_writer *w, const struct tokenizer *tokenizer,
                                      const struct openai_tokens *tokens, size_t n_top,
                                      size_t *text_offset)
{
    static const char *const NAMES[] = {"{\"tokens\":[", "],\"token_logprobs\":[",
                                        "],\"top_logprobs\":[", "],\"text_offset\":["};

    for (size_t part = 0; part < 4; part++) {
        bool first = true;
        json_put_text(w, NAMES[part]);
        for (size_t i = 0; i < tokens->n; i++) {
            const struct logprobs *l = at(tokens, i);
            if (l == NULL)
                continue;
            put_separator(w, &first);
            if (part == 0)
                openai_write_token_text(w, tokenizer, l->chosen.id);
            else if (part == 1)
                json_put_float(w, l->chosen.logprob);
            else if (part == 2)
                put_top(w, tokenizer, l, n_top);
            else {
                json_put_uint(w, *text_offset);
                *text_offset += count_characters(tokenizer, l->chosen.id);
            }
        }
    }
    json_put_text(w, "]}");
}
