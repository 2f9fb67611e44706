/* ferry tokenize: text to ids, ids to text. */
#include "app/app.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "text/utf8.h"

#include <stdio.h>
#include <string.h>

struct tokenize_options {
    const char *model, *text, *text_file, *ids;
    bool decode, special, json, add_special;
};

enum { KEY_TEXT = 0x200, KEY_TEXT_FILE, KEY_IDS, KEY_DECODE, KEY_SPECIAL, KEY_ADD, KEY_JSON };

static const struct argp_option OPTIONS[] = {
    {"text", KEY_TEXT, "TEXT", 0, "The text", 1},
    {"text-file", KEY_TEXT_FILE, "F", 0, "File with the text; '-' is standard input", 1},
    {"decode", KEY_DECODE, NULL, 0, "The other way: the text is a list of ids", 1},
    {"ids", KEY_IDS, "1,2,3", 0, "Ids to decode (implies --decode)", 1},
    {"special", KEY_SPECIAL, NULL, 0,
     "Control tokens in the text are recognised (never do this with a user's text)", 1},
    {"add-special", KEY_ADD, NULL, 0, "Add what the tokenizer adds around a text (BOS, EOS)", 1},
    {"json", KEY_JSON, NULL, 0, "Print JSON", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct tokenize_options *o = state->input;

    switch (key) {
    case KEY_TEXT:
        o->text = arg;
        return 0;
    case KEY_TEXT_FILE:
        o->text_file = arg;
        return 0;
    case KEY_IDS:
        o->ids = arg;
        o->decode = true;
        return 0;
    case KEY_DECODE:
        o->decode = true;
        return 0;
    case KEY_SPECIAL:
        o->special = true;
        return 0;
    case KEY_ADD:
        o->add_special = true;
        return 0;
    case KEY_JSON:
        o->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (o->model != NULL)
            return ARGP_ERR_UNKNOWN;
        o->model = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int print_ids(const struct tokenize_options *o, const struct token_ids *ids)
{
    if (!o->json) {
        for (size_t i = 0; i < ids->count; i++)
            (void)printf(i > 0 ? " %d" : "%d", ids->ids[i]);
        (void)printf("\n");
        return EXIT_GOOD;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < ids->count; i++)
        (void)json_array_append_new(list, json_integer(ids->ids[i]));
    return print_json(json_pack("{s:o}", "ids", list));
}

/* Ids may end inside of a character: JSON gets U+FFFD for what is no UTF-8, plain output the bytes.
 */
static enum ferry_status print_text(const struct tokenize_options *o, const char *text, size_t size,
                                    int *ret_code, struct ferry_error *err)
{
    struct text_stream stream;
    const char *part = NULL;
    size_t part_size = 0;

    if (!o->json) {
        *ret_code = fwrite(text, 1, size, stdout) == size ? EXIT_GOOD : EXIT_FAILED;
        return FERRY_OK;
    }
    enum ferry_status st = text_stream_init(&stream, NULL, 0, err);
    if (st != FERRY_OK)
        return st;
    char *whole = mem_alloc(3 * size + 4); /* U+FFFD has 3 bytes */
    size_t n = 0;
    if (whole == NULL)
        st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenize: no memory for the text");
    for (int end = 0; end < 2 && st == FERRY_OK; end++) {
        st = end == 0 ? text_stream_push(&stream, text, size, &part, &part_size, err)
                      : text_stream_finish(&stream, &part, &part_size, err);
        if (st == FERRY_OK && part_size > 0)
            memcpy(whole + n, part, part_size);
        n += st == FERRY_OK ? part_size : 0;
    }
    if (st == FERRY_OK)
        *ret_code = print_json(json_pack("{s:o}", "text", json_stringn(whole, n)));
    mem_free(whole);
    text_stream_fini(&stream);
    return st;
}

/* An id that the vocabulary does not have would vanish from the text. */
static enum ferry_status check_ids(const struct tokenizer *tokenizer, const struct token_ids *ids,
                                   struct ferry_error *err)
{
    for (size_t i = 0; i < ids->count; i++) {
        if ((size_t)ids->ids[i] >= tokenizer_n_vocab(tokenizer))
            return FERRY_FAIL(err, FERRY_ERR_ARG, "token id %d is not in 0..%zu", ids->ids[i],
                              tokenizer_n_vocab(tokenizer) - 1);
    }
    return FERRY_OK;
}

static enum ferry_status convert(const struct tokenize_options *o,
                                 const struct tokenizer *tokenizer, const char *text, size_t size,
                                 int *ret_code, struct ferry_error *err)
{
    struct token_ids ids = {0};
    char *decoded = NULL;
    size_t decoded_size = 0;

    enum ferry_status st =
        o->decode ? parse_ids(text, size, &ids, err)
                  : tokenizer_encode(tokenizer, text, size, o->add_special, o->special, &ids, err);
    if (st == FERRY_OK && o->decode)
        st = check_ids(tokenizer, &ids, err);
    if (st == FERRY_OK && o->decode)
        st = tokenizer_decode(tokenizer, ids.ids, ids.count, false, &decoded, &decoded_size, err);
    if (st == FERRY_OK && o->decode)
        st = print_text(o, decoded, decoded_size, ret_code, err);
    else if (st == FERRY_OK)
        *ret_code = print_ids(o, &ids);
    mem_free(decoded);
    token_ids_fini(&ids);
    return st;
}

int verb_tokenize(int argc, char **argv)
{
    static const struct argp ARGP = {OPTIONS, parse, "MODEL", "Text to token ids and back.",
                                     NULL,    NULL,  NULL};
    struct tokenize_options o = {0};
    struct checkpoint *checkpoint = NULL;
    struct tokenizer *tokenizer = NULL;
    struct ferry_error err = {0};
    char *file = NULL;
    int code = EXIT_GOOD;

    if (argp_parse(&ARGP, argc, argv, 0, NULL, &o) != 0)
        return EXIT_USAGE;
    if (o.model == NULL || (o.text != NULL) + (o.text_file != NULL) + (o.ids != NULL) != 1) {
        LOG_ERROR("tokenize needs MODEL and one of --text, --text-file and --ids");
        return EXIT_USAGE;
    }
    const char *text = o.text != NULL ? o.text : o.ids;
    size_t size = text != NULL ? strlen(text) : 0;
    enum ferry_status st = FERRY_OK;
    if (o.text_file != NULL) {
        st = read_file(o.text_file, &file, &size, &err);
        text = file;
    }
    if (st == FERRY_OK)
        st = checkpoint_open(&checkpoint, o.model, &err);
    if (st == FERRY_OK)
        st = tokenizer_create(&tokenizer, checkpoint, &err);
    if (st == FERRY_OK)
        st = convert(&o, tokenizer, text, size, &code, &err);
    tokenizer_destroy(tokenizer);
    checkpoint_close(checkpoint);
    mem_free(file);
    return st == FERRY_OK ? code : fail(st, &err);
}
