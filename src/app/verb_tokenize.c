/* ferry tokenize: text to ids, ids to text. */
#include "app/app.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"

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

static int print_text(const struct tokenize_options *o, const char *text, size_t size)
{
    if (!o->json)
        return fwrite(text, 1, size, stdout) == size ? EXIT_GOOD : EXIT_FAILED;
    return print_json(json_pack("{s:o}", "text", json_stringn(text, size)));
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
        st = tokenizer_decode(tokenizer, ids.ids, ids.count, false, &decoded, &decoded_size, err);
    if (st == FERRY_OK)
        *ret_code = o->decode ? print_text(o, decoded, decoded_size) : print_ids(o, &ids);
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
