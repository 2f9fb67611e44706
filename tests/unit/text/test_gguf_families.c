/* Every family cuts text where the reference does (a file made by it); names that are not known. */
#include "../unit.h"

#include "text/gguf_families.h"
#include "text/pretoken.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 4096, FAMILIES_IN_FILE = 9 };

/* Pieces that are still expected, as the file lists their lengths. */
struct expected {
    const char *sizes;
    const char *next; /* where the next piece begins */
};

static enum ferry_status compare(void *arg, const char *piece, size_t n_bytes)
{
    struct expected *e = arg;
    char *end;

    assert_ptr_equal(piece, e->next);
    assert_int_equal(strtoul(e->sizes, &end, 10), n_bytes);
    e->sizes = end;
    e->next = piece + n_bytes;
    return FERRY_OK;
}

/* Pre-tokenizer of a family; the caller destroys the patterns. */
static void make(const char *name, size_t n, struct pretokenizer *ret)
{
    const struct gguf_family *family = gguf_family_find(name, n);

    assert_non_null(family);
    *ret = (struct pretokenizer){.n_steps = 0};
    for (int k = 0; k < GGUF_PATTERNS_MAX && family->patterns[k] != NULL; k++) {
        struct pretoken_step *step = &ret->steps[ret->n_steps++];
        struct ferry_error err = {0};
        *step = (struct pretoken_step){.kind = PRETOKEN_SPLIT, .behavior = PRETOKEN_ISOLATED};
        if (regex_create(&step->regex, family->patterns[k], strlen(family->patterns[k]), &err) !=
            FERRY_OK)
            fail_msg("%s: %s", name, err.msg);
    }
    assert_true(ret->n_steps > 0);
}

static size_t read_hex(const char *line, char *ret)
{
    size_t n = 0;
    unsigned value;

    while (sscanf(line + 2 * n, "%2x", &value) == 1)
        ret[n++] = (char)value;
    return n;
}

static void cuts_where_the_reference_does(void **state)
{
    static char line[LINE_MAX_BYTES];
    struct pretokenizer made[FAMILIES_IN_FILE];
    struct pretoken_scratch scratch = {0};
    struct regex_matcher *matcher = NULL;
    char text[LINE_MAX_BYTES];
    size_t n_text = 0;
    int n_made = 0;
    int n_checked = 0;
    FILE *file = fopen(FERRY_SOURCE_DIR "/tests/oracle/tokenizer/pieces.txt", "r");

    (void)state;
    assert_non_null(file);
    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    int which = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *space = strchr(line, ' ');
        if (line[0] == '#')
            continue;
        if (space == NULL) {
            n_text = read_hex(line, text);
            which = 0;
            continue;
        }
        assert_true(which < FAMILIES_IN_FILE);
        if (which == n_made)
            make(line, (size_t)(space - line), &made[n_made++]);
        struct expected e = {space, text};
        assert_int_equal(
            pretoken_run(&made[which++], &scratch, matcher, text, n_text, true, compare, &e, NULL),
            FERRY_OK);
        assert_ptr_equal(e.next, text + n_text);
        assert_int_equal(strspn(e.sizes, "\n"), strlen(e.sizes));
        n_checked++;
    }
    assert_int_equal(n_checked, 260 * FAMILIES_IN_FILE);
    for (int i = 0; i < n_made; i++) {
        for (int k = 0; k < made[i].n_steps; k++)
            regex_destroy(made[i].steps[k].regex);
    }
    pretoken_scratch_fini(&scratch);
    regex_matcher_destroy(matcher);
    (void)fclose(file);
}

static void unknown_names_are_not_guessed(void **state)
{
    char list[256];
    char small[16];

    (void)state;
    assert_null(gguf_family_find("dbrx", 4));
    assert_null(gguf_family_find("qwen", 4));
    assert_null(gguf_family_find("qwen22", 6));
    assert_null(gguf_family_find("", 0));
    gguf_family_list(list, sizeof list);
    assert_non_null(strstr(list, "qwen2, "));
    assert_non_null(strstr(list, "deepseek-llm"));
    gguf_family_list(small, sizeof small);
    assert_string_equal(small, "gpt-2, default");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_where_the_reference_does),
        cmocka_unit_test(unknown_names_are_not_guessed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
