/* Tokens of chat templates: what tags eat of the text around them, numbers, strings, lines. */
#include "render.h"

#include "text/template_lex.h"

#include <string.h>

/* Expects the tokens as kinds and texts: data in quotes, names and strings bare. */
static void expect_tokens(const char *source, const char *want)
{
    struct tpl_pool pool;
    struct tpl_tokens tokens = {0};
    struct ferry_error err = {0};
    char got[1024] = "";
    size_t used = 0;

    tpl_pool_init(&pool, "test", 1 << 20);
    if (tpl_lex(&tokens, &pool, source, strlen(source), &err) != FERRY_OK)
        fail_msg("%s: %s", source, err.msg);
    for (size_t i = 0; i < tokens.n; i++) {
        const struct tpl_token *t = &tokens.tokens[i];
        if (t->kind == TOKEN_DATA)
            used += (size_t)snprintf(got + used, sizeof got - used, "'%.*s'@%d ", (int)t->size,
                                     t->text, t->line);
        else if (t->kind == TOKEN_NAME || t->kind == TOKEN_STRING)
            used += (size_t)snprintf(got + used, sizeof got - used, "%.*s ", (int)t->size, t->text);
        else if (t->kind == TOKEN_INT)
            used += (size_t)snprintf(got + used, sizeof got - used, "i%lld ", (long long)t->i);
        else if (t->kind == TOKEN_FLOAT)
            used += (size_t)snprintf(got + used, sizeof got - used, "f%g ", t->f);
        else if (t->kind != TOKEN_END)
            used += (size_t)snprintf(got + used, sizeof got - used, "%d ", (int)t->kind);
    }
    assert_string_equal(got, want);
    tpl_tokens_fini(&tokens);
    tpl_pool_fini(&pool);
}

static void cuts_text_and_tags(void **state)
{
    (void)state;
    expect_tokens("a{{ b }}c", "'a'@1 4 b 5 'c'@1 ");
    expect_tokens("a\n  {% b %}\nc\n", "'a\n'@1 2 b 3 'c'@3 ");
    expect_tokens("a\n  {%+ b %}\nc", "'a\n  '@1 2 b 3 'c'@3 ");
    expect_tokens("a \n {%- b -%} \n c", "'a'@1 2 b 3 'c'@3 ");
    expect_tokens("a {# x #}\nb{#- y -#} c", "'a '@1 'b'@2 'c'@2 ");
    expect_tokens("{% raw %}{{ a }}{% endraw %}", "'{{ a }}'@1 ");
    expect_tokens("a\r\nb\rc\n\n", "'a\nb\nc\n'@1 ");
}

static void reads_literals(void **state)
{
    (void)state;
    expect_tokens("{{ 1_0 1.5 2e3 a.1 'x\\n\\u00e9\\'' \"y\" }}",
                  "4 i10 f1.5 f2000 a 25 i1 x\n\303\251' y 5 ");
    expect_tokens("{{ 9223372036854775807 }}", "4 i9223372036854775807 5 ");
    expect_tokens("{{ {'a': {}} }}", "4 33 a 26 33 34 34 5 ");
}

static void refuses_what_has_no_end(void **state)
{
    (void)state;
    expect_create_error("a\n{{ 'b }}", FERRY_ERR_FORMAT, "line 2: a string without its end");
    expect_create_error("{# a", FERRY_ERR_FORMAT, "comment without its end");
    expect_create_error("{% raw %} a", FERRY_ERR_FORMAT, "raw without its endraw");
    expect_create_error("{{ a ! b }}", FERRY_ERR_FORMAT, "unexpected character '!'");
    expect_create_error("{{ (a] }}", FERRY_ERR_FORMAT, "unexpected ']'");
    expect_create_error("{{ 99999999999999999999 }}", FERRY_ERR_UNSUPPORTED, "number");
    expect_create_error("{{ 0x10 }}", FERRY_ERR_UNSUPPORTED, "number");
    expect_create_error("{{ '\\ud800' }}", FERRY_ERR_UNSUPPORTED, "escape");
    expect_create_error("{{ '\\N{DASH}' }}", FERRY_ERR_UNSUPPORTED, "escape");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_text_and_tags),
        cmocka_unit_test(reads_literals),
        cmocka_unit_test(refuses_what_has_no_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
