/* Chat templates as callers see them: what is trusted, limits, failed allocations, hostile sources,
 * and control tokens that come from the template only. */
#include "render.h"
#include "small.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

static void says_who_wrote_each_byte(void **state)
{
    (void)state;
    expect_marked("<s>{{ x }}</s>", "{'x':'user'}", "[<s>]user[</s>]");
    expect_marked("{{ bos_token }}{{ x }}{{ eos_token }}",
                  "{'bos_token':'<s>','x':'u','eos_token':'</s>'}", "[<s>]u[</s>]");
    expect_marked("{{ '<|' + x + '|>' }}", "{'x':'u'}", "[<|]u[|>]");
    expect_marked("{{ '<|' ~ x ~ 1 ~ n ~ '|>' }}", "{'x':'u','n':7}", "[<|]u[1]7[|>]");
    expect_marked("{{ ('  a' + x + 'b  ')|trim }}", "{'x':' u '}", "[a] u [b]");
    expect_marked("{{ ('abc' + x)[::-1] }}", "{'x':'uvw'}", "wvu[cba]");
    expect_marked("{{ ('abc' + x)[2:5] }}", "{'x':'uvw'}", "[c]uv");
    expect_marked("{{ ('ab' + x).upper() }}", "{'x':'uß'}", "[AB]USS");
    expect_marked("{{ x.replace('u', '<b>') }}", "{'x':'aua'}", "a[<b>]a");
    expect_marked("{{ 'aXa'.replace('X', x) }}", "{'x':'u'}", "[a]u[a]");
    expect_marked("{{ [x, '|', y]|join(',') }}", "{'x':'u','y':'v'}", "u[,|,]v");
    expect_marked("{{ (x ~ '|y').split('|')[1] }}{{ (x ~ '|y').split('|')[0] }}", "{'x':'u'}",
                  "[y]u");
    expect_marked("{% for c in 'a' ~ x %}{{ c }}{% endfor %}", "{'x':'u'}", "[a]u");
    expect_marked("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(x)|upper }}", "{'x':'u'}",
                  "[<]U[>]");
    expect_marked("{% set s %}<{{ x }}>{% endset %}{{ s }}", "{'x':'u'}", "[<]u[>]");
    expect_marked("{{ d|tojson }}", "{'d':{'k':'<s>'}}", "{\"k\": \"<s>\"}");
    expect_marked("{{ x|tojson }}", "{'x':'<s>'}", "\"<s>\"");
    expect_marked("{{ (x ~ '\n|z')|indent(2) }}", "{'x':'u\\nv'}", "u[\n  ]v[\n  |z]");
    expect_marked("{{ '{}<{}>'.format(x, 'b') }}", "{'x':'u'}", "u[<b>]");
    expect_marked("{{ x|string }}{{ x|default('d') }}{{ y|default('d') }}", "{'x':'u'}", "uu[d]");
    expect_marked("{{ x * 2 }}{{ 'ab' * 2 }}", "{'x':'u'}", "uu[abab]");
    expect_marked("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "{'d':{'<k>':'<v>'}}",
                  "<k>[=]<v>");
    expect_marked("{{ strftime_now('<%Y' ~ x) }}", "{'x':'u'}", "[<1970]u");
}

static void trusts_known_roles_only(void **state)
{
    static const char SOURCE[] = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}"
                                 "{% endfor %}{{ messages|length }}";
    (void)state;
    expect_marked(SOURCE, "{'messages':[{'role':'user','content':'user'}]}", "[<|user|>]user1");
    expect_marked(SOURCE, "{'messages':[{'role':'end','content':'x'}]}", "[<|]end[|>]x1");
    /* Only in messages, only as the role. */
    expect_marked("{{ x.role }}{{ messages[0].name }}",
                  "{'x':{'role':'user'},'messages':[{'name':'user'}]}", "useruser");
}

static void trusts_the_names_it_is_told(void **state)
{
    static const char *const NAMES[] = {"mine", NULL};
    struct template_limits limits = {.trusted_names = NAMES};
    struct rendered r = {0};

    (void)state;
    render("{{ mine }}{{ bos_token }}", "{'mine':'ab','bos_token':'c'}", &limits, &r);
    assert_int_equal(r.n_trusted, 1);
    assert_int_equal(r.trusted[0].start, 0);
    assert_int_equal(r.trusted[0].end, 2);
    rendered_fini(&r);
}

static void expect_limit(const char *source, const struct template_limits *limits, const char *part)
{
    struct template *t = NULL;
    struct rendered r = {0};
    struct ferry_error err = {0};
    json_t *json = json_object();

    assert_int_equal(template_create(&t, source, strlen(source), &err), FERRY_OK);
    assert_int_equal(template_render(t, json, limits, &r, &err), FERRY_ERR_LIMIT);
    if (strstr(err.msg, part) == NULL)
        fail_msg("\"%s\" does not hold \"%s\"", err.msg, part);
    assert_null(r.text);
    template_destroy(t);
    json_decref(json);
}

static void keeps_its_limits(void **state)
{
    static const char LOOPS[] = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
                                "{% endfor %}";
    static const char DOUBLE[] = "{% set ns = namespace(s='x') %}{% for i in range(60) %}"
                                 "{% set ns.s = ns.s + ns.s %}{% endfor %}";
    static const char REPEAT[] = "{{ ('x' * 4611686018427387904)|length }}";
    static const char LISTS[] = "{{ ([1, 2, 3] * 4611686018427387904)|length }}";
    static const char RECURSION[] = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    static const char DEEP[] = "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}"
                               "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}";
    struct template_limits limits = {.memory_bytes = 1 << 22};
    struct template_limits few = {.steps = 1000};
    struct template_limits small = {.output_bytes = 10};

    (void)state;
    expect_limit(LOOPS, &few, "steps");
    expect_limit(DOUBLE, &limits, "bytes");
    expect_limit(REPEAT, &limits, "limit");
    expect_limit(LISTS, &limits, "limit");
    expect_limit(RECURSION, NULL, "deep");
    expect_limit(DEEP, NULL, "deep");
    expect_limit("{% set ns = namespace(l=[]) %}{% for i in range(5000) %}"
                 "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson }}",
                 NULL, "deep");
    expect_limit("12345678901", &small, "longer than 10");
    expect_limit("{{ 9223372036854775 * 100000 }}", NULL, "64 bits");
    expect_limit("{{ range(100001) }}", NULL, "limit 100000");
}

/* Source of n times `piece`. */
static char *repeated(const char *piece, size_t n)
{
    size_t size = strlen(piece);
    char *text = malloc(n * size + 1);

    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * size, piece, size);
    text[n * size] = 0;
    return text;
}

static void refuses_deep_sources(void **state)
{
    static const char *const PIECES[] = {"{{ (((((((((",        "{{[[[[[[[[[[[",    "{% if 1 %}",
                                         "{{ 1 }}{{ - - - - -", "{% for a in b %}", "{% set x %}",
                                         "{{ not not not"};
    static const char CHAIN[] = " + 1";

    (void)state;
    for (size_t i = 0; i < COUNT_OF(PIECES); i++) {
        struct template *t = NULL;
        struct ferry_error err = {0};
        char *text = repeated(PIECES[i], 5000);
        assert_int_not_equal(template_create(&t, text, strlen(text), &err), FERRY_OK);
        assert_null(t);
        assert_true(err.msg[0] != 0);
        free(text);
    }
    char *text = repeated(CHAIN, 5000);
    memcpy(text, "{{1", 3);
    expect_create_error(text, FERRY_ERR_LIMIT, "deep");
    free(text);
    text = repeated("{{a}}", (LIMIT_TEMPLATE_SOURCE + 10) / 5);
    expect_create_error(text, FERRY_ERR_LIMIT, "bytes of source");
    free(text);
    text = repeated("{{a}}", LIMIT_TEMPLATE_SOURCE / 5 - 1);
    expect_create_error(text, FERRY_ERR_LIMIT, "nodes");
    free(text);
    expect_create_error("\xff", FERRY_ERR_FORMAT, "not UTF-8");
}

static void every_allocation_may_fail(void **state)
{
    static const char SOURCE[] =
        "{% macro m(a, b=[1]) %}{{ a ~ b }}{% endmacro %}{% for x in range(3) if x %}{{ m(x) }}"
        "{{ {'a': x}|tojson(indent=2) }}{{ 'a,b'.split(',')|join('-') }}{% endfor %}";
    struct ferry_error err = {0};
    json_t *json = json_pack("{s:[s]}", "messages", "x");
    enum ferry_status st = FERRY_ERR_NOMEM;
    int n_failed = 0;

    (void)state;
    for (uint64_t n = 1; n <= 20; n++) { /* arenas try again with less: some failures are healed */
        struct template *t = NULL;
        struct rendered r = {0};
        mem_fail_after(n);
        st = template_create(&t, SOURCE, strlen(SOURCE), &err);
        if (st == FERRY_OK)
            st = template_render(t, json, NULL, &r, &err);
        mem_fail_after(0);
        if (st != FERRY_OK)
            assert_int_equal(st, FERRY_ERR_NOMEM);
        n_failed += st != FERRY_OK;
        rendered_fini(&r);
        template_destroy(t);
    }
    assert_int_equal(st, FERRY_OK);
    assert_true(n_failed >= 4);
    json_decref(json);
}

static void tells_what_a_template_mentions(void **state)
{
    static const char SOURCE[] =
        "{% if tools %}{{ x['enable_thinking'] }}{{ m.reasoning }}{% endif %}";
    struct template *t = NULL;

    (void)state;
    assert_int_equal(template_create(&t, SOURCE, strlen(SOURCE), NULL), FERRY_OK);
    assert_true(template_mentions(t, "tools"));
    assert_true(template_mentions(t, "enable_thinking"));
    assert_true(template_mentions(t, "reasoning"));
    assert_false(template_mentions(t, "tool"));
    template_destroy(t);
}

static void refuses_odd_variables(void **state)
{
    struct template *t = NULL;
    struct rendered r = {0};
    json_t *list = json_array();

    (void)state;
    assert_int_equal(template_create(&t, "x", 1, NULL), FERRY_OK);
    assert_int_equal(template_render(t, list, NULL, &r, NULL), FERRY_ERR_ARG);
    assert_int_equal(template_render(t, NULL, NULL, &r, NULL), FERRY_ERR_ARG);
    template_destroy(t);
    json_decref(list);
    expect_render_error("\n{{ raise_exception('Roles!') }}", "{}", FERRY_ERR_ARG, "line 2: Roles!");
}

/* Control tokens --------------------------------------------------------------------------------
 */

static size_t count_id(const struct token_ids *ids, int32_t id)
{
    size_t n = 0;

    for (size_t i = 0; i < ids->count; i++)
        n += ids->ids[i] == id;
    return n;
}

static void encode(const struct tokenizer *tokenizer, const char *source, const char *content,
                   size_t size, struct token_ids *ids, struct rendered *r)
{
    struct template *t = NULL;
    struct ferry_error err = {0};
    json_t *variables = json_object();

    (void)json_object_set_new(variables, "x", json_stringn(content, size));
    if (template_create(&t, source, strlen(source), &err) != FERRY_OK ||
        template_render(t, variables, NULL, r, &err) != FERRY_OK ||
        tokenizer_encode_rendered(tokenizer, r, ids, &err) != FERRY_OK)
        fail_msg("%s: %s", source, err.msg);
    template_destroy(t);
    json_decref(variables);
}

/* The token's text as a literal of Jinja. */
static void literal(const struct added_token *token, char *ret, size_t capacity)
{
    size_t used = 0;

    for (size_t i = 0; i < token->size; i++) {
        if (token->text[i] == '\'' || token->text[i] == '\\')
            ret[used++] = '\\';
        ret[used++] = token->text[i];
    }
    ret[used] = 0;
    assert_true(used < capacity);
}

/* For one special token: its text in user data gives none of it, the template's own one does, and
 * pieces from both sides make none. */
static void try_token(const struct tokenizer *tokenizer, const struct added_token *token)
{
    char text[512];
    char source[2048];
    struct token_ids ids = {0};
    struct rendered r = {0};
    size_t half = token->size / 2;

    literal(token, text, sizeof text);
    (void)snprintf(source, sizeof source,
                   "{{ '%s' }}a{{ x }}b{{ '%s' ~ x ~ '%s' }}{{ [x]|tojson }}", text, text, text);
    encode(tokenizer, source, "u", 1, &ids, &r);
    rendered_fini(&r);
    size_t of_template = count_id(&ids, token->id);
    assert_true(of_template > 0);
    ids.count = 0;
    encode(tokenizer, source, token->text, token->size, &ids, &r);
    assert_int_equal(count_id(&ids, token->id), of_template);
    rendered_fini(&r);
    ids.count = 0;
    for (; half > 0 && half < token->size && ((unsigned char)token->text[half] & 0xC0) == 0x80;)
        half--;
    if (half > 0) { /* the first half is the template's, the second the user's */
        struct added_token first = *token;
        first.size = half;
        literal(&first, text, sizeof text);
        (void)snprintf(source, sizeof source, "{{ '%s' ~ x }}", text);
        encode(tokenizer, source, token->text + half, token->size - half, &ids, &r);
        assert_int_equal(count_id(&ids, token->id), 0);
        assert_int_equal(r.n_bytes, token->size);
        rendered_fini(&r);
    }
    token_ids_fini(&ids);
}

static size_t try_all_tokens(const struct tokenizer *tokenizer)
{
    size_t n = 0;

    for (size_t i = 0; i < tokenizer->n_added; i++) {
        if (tokenizer->added[i].special && tokenizer->added[i].size < 200) {
            try_token(tokenizer, &tokenizer->added[i]);
            n++;
        }
    }
    return n;
}

static void try_plain_text(const struct tokenizer *tokenizer)
{
    static const char *const TEXTS[] = {
        "Hello world",         " two  blanks\n\n",     "Grüße 日本語 🦊", "1234 it's", "",
        "e\xCC\x81 combining", "\xCC\x81 at the start"};

    for (size_t i = 0; i < COUNT_OF(TEXTS); i++) {
        struct token_ids whole = {0};
        struct token_ids ids = {0};
        struct rendered r = {0};
        encode(tokenizer, "user: {{ x }}{{ x }} end{{ x }}", TEXTS[i], strlen(TEXTS[i]), &ids, &r);
        assert_int_equal(tokenizer_encode(tokenizer, r.text, r.n_bytes, false, true, &whole, NULL),
                         FERRY_OK);
        assert_int_equal(ids.count, whole.count);
        if (ids.count > 0)
            assert_memory_equal(ids.ids, whole.ids, ids.count * sizeof *ids.ids);
        rendered_fini(&r);
        token_ids_fini(&ids);
        token_ids_fini(&whole);
    }
}

static void only_the_template_writes_control_tokens(void **state)
{
    /* 256: as in most files; 257: longer than 256; 258: looked for in normalised text; 259, 260:
     * take the blanks around them; 261: no control token. */
    static const char ADDED[] =
        "{\"id\":256,\"content\":\"<|e|>\",\"special\":true,\"normalized\":false},"
        "{\"id\":257,\"content\":\"<|e|>x\",\"special\":true,\"normalized\":false},"
        "{\"id\":258,\"content\":\"<Norm é>\",\"special\":true,\"normalized\":true},"
        "{\"id\":259,\"content\":\"<l>\",\"special\":true,\"normalized\":false,\"lstrip\":true},"
        "{\"id\":260,\"content\":\"<r>\",\"special\":true,\"normalized\":false,\"rstrip\":true},"
        "{\"id\":261,\"content\":\"<plain>\",\"special\":false,\"normalized\":false}";
    static const char *const NORMALIZERS[] = {
        NULL, "{\"type\":\"NFC\"}", "{\"type\":\"NFD\"}", "{\"type\":\"Lowercase\"}",
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"_\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}]}"};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(NORMALIZERS); i++) {
        struct small small = {.normalizer = NORMALIZERS[i],
                              .pre_tokenizer = BYTE_LEVEL,
                              .decoder = BYTE_LEVEL_DECODER,
                              .added = ADDED};
        struct tokenizer *tokenizer = small_tokenizer(&small);
        struct token_ids ids = {0};
        struct rendered r = {0};
        assert_int_equal(try_all_tokens(tokenizer), 5);
        try_plain_text(tokenizer);
        /* What users write must not hide the template's token either. */
        encode(tokenizer, "<|e|>{{ x }}", "x", 1, &ids, &r);
        assert_int_equal(count_id(&ids, 256), 1);
        assert_int_equal(count_id(&ids, 257), 0);
        rendered_fini(&r);
        ids.count = 0;
        encode(tokenizer, "{{ x }}<|e|>{{ x }}", "<plain>\xCC\x81", 9, &ids, &r);
        assert_int_equal(count_id(&ids, 256), 1);
        assert_int_equal(count_id(&ids, 261), 2);
        rendered_fini(&r);
        token_ids_fini(&ids);
        tokenizer_destroy(tokenizer);
    }
}

static void joined_marks_cost_one_stretch_only(void **state)
{
    static const char ADDED[] =
        "{\"id\":256,\"content\":\"<n>\",\"special\":true,\"normalized\":true}";
    struct small small = {.normalizer = "{\"type\":\"NFC\"}",
                          .pre_tokenizer = BYTE_LEVEL,
                          .decoder = BYTE_LEVEL_DECODER,
                          .added = ADDED};
    struct tokenizer *tokenizer = small_tokenizer(&small);
    struct token_ids ids = {0};
    struct rendered r = {0};

    (void)state;
    /* NFC joins the user's mark with the template's e: the tokens on both sides stay. */
    encode(tokenizer, "<n>{{ x }}<n>e{{ x }}<n>{{ x }}<n>", "\xCC\x81", 2, &ids, &r);
    assert_true(count_id(&ids, 256) >= 2);
    rendered_fini(&r);
    ids.count = 0;
    encode(tokenizer, "<n>e\xCC\x81{{ x }}<n>", "a<n>", 4, &ids, &r);
    assert_int_equal(count_id(&ids, 256), 2);
    rendered_fini(&r);
    token_ids_fini(&ids);
    tokenizer_destroy(tokenizer);
}

static char *read_file(const char *path, size_t *ret_size)
{
    FILE *f = fopen(path, "rb");
    char *text = malloc(1 << 22);

    assert_non_null(f);
    assert_non_null(text);
    *ret_size = fread(text, 1, 1 << 22, f);
    (void)fclose(f);
    return text;
}

static void holds_for_the_demo_model(void **state)
{
    struct tokenizer *tokenizer = NULL;
    struct ferry_error err = {0};
    size_t size;
    char *json = read_file(FERRY_SOURCE_DIR "/models/demo/tokenizer.json", &size);

    (void)state;
    if (tokenizer_create_json(&tokenizer, json, size, NULL, 0, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    assert_true(try_all_tokens(tokenizer) > 0);
    try_plain_text(tokenizer);
    tokenizer_destroy(tokenizer);
    free(json);
}

static void refuses_text_that_is_no_utf8(void **state)
{
    struct small small = {.pre_tokenizer = BYTE_LEVEL, .decoder = BYTE_LEVEL_DECODER};
    struct tokenizer *tokenizer = small_tokenizer(&small);
    char text[] = "a\xff";
    struct rendered r = {.text = text, .n_bytes = 2};
    struct token_ids ids = {0};

    (void)state;
    assert_int_equal(tokenizer_encode_rendered(tokenizer, &r, &ids, NULL), FERRY_ERR_FORMAT);
    assert_int_equal(ids.count, 0);
    tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_who_wrote_each_byte),
        cmocka_unit_test(trusts_known_roles_only),
        cmocka_unit_test(trusts_the_names_it_is_told),
        cmocka_unit_test(keeps_its_limits),
        cmocka_unit_test(refuses_deep_sources),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(tells_what_a_template_mentions),
        cmocka_unit_test(refuses_odd_variables),
        cmocka_unit_test(only_the_template_writes_control_tokens),
        cmocka_unit_test(joined_marks_cost_one_stretch_only),
        cmocka_unit_test(holds_for_the_demo_model),
        cmocka_unit_test(refuses_text_that_is_no_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
