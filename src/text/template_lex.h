/* Jinja source to tokens, with the white-space rules trim_blocks and lstrip_blocks switched on.
 *
 * Why here: what a tag eats of the text around it is decided here and nowhere else. It must not
 * know the grammar. Nobody outside `text` includes this. */
#ifndef TEXT_TEMPLATE_LEX_H
#define TEXT_TEMPLATE_LEX_H

#include "text/template_value.h"

enum tpl_token_kind {
    TOKEN_END,
    TOKEN_DATA, /* text between tags */
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_FLOORDIV,
    TOKEN_POW,
    TOKEN_EQ,
    TOKEN_NE,
    TOKEN_LE,
    TOKEN_GE,
    TOKEN_LT,
    TOKEN_GT,
    TOKEN_ASSIGN,
    TOKEN_ADD,
    TOKEN_SUB,
    TOKEN_MUL,
    TOKEN_DIV,
    TOKEN_MOD,
    TOKEN_TILDE,
    TOKEN_DOT,
    TOKEN_COLON,
    TOKEN_PIPE,
    TOKEN_COMMA,
    TOKEN_LPAREN,
    TOKEN_RPAREN,
    TOKEN_LBRACKET,
    TOKEN_RBRACKET,
    TOKEN_LBRACE,
    TOKEN_RBRACE,
};

struct tpl_token {
    enum tpl_token_kind kind;
    int line;
    const char *text; /* DATA, NAME, STRING (escapes undone): in the pool; others: in the source */
    size_t size;
    int64_t i; /* INT */
    double f;  /* FLOAT */
};

/* Tokens of one template, ended by TOKEN_END; {0} to start, tpl_tokens_fini to free. */
struct tpl_tokens {
    struct tpl_token *tokens;
    size_t n;
    size_t capacity;
};

/* Cuts source [n_bytes]. Texts live in the pool. Errors: FERRY_ERR_FORMAT, FERRY_ERR_UNSUPPORTED
 * (an escape or number that is not handled), FERRY_ERR_LIMIT (LIMIT_TEMPLATE_SOURCE, nesting),
 * FERRY_ERR_NOMEM. */
enum ferry_status tpl_lex(struct tpl_tokens *ret, struct tpl_pool *pool, const char *source,
                          size_t n_bytes, struct ferry_error *err) FERRY_MUST_CHECK;
void tpl_tokens_fini(struct tpl_tokens *tokens);

/* How messages name a kind of token: "end of print statement", "'=='". */
const char *tpl_token_name(enum tpl_token_kind kind);

#endif
