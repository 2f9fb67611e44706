/* The syntax tree of a chat template: one kind of node for everything.
 *
 * Why one struct: trees are small (the largest template in use has some 3,000 nodes), and one shape
 * keeps parser and interpreter short. Nobody outside `text` includes this. */
#ifndef TEXT_TEMPLATE_AST_H
#define TEXT_TEMPLATE_AST_H

#include "text/template_value.h"

enum tpl_node_kind {
    /* expressions */
    NODE_CONST,    /* value */
    NODE_NAME,     /* value: the name; op: its number */
    NODE_LIST,     /* list */
    NODE_TUPLE,    /* list */
    NODE_DICT,     /* list: key, value, key, value ... */
    NODE_GETATTR,  /* a, value: the name */
    NODE_GETITEM,  /* a[b] */
    NODE_SLICE,    /* a:b:c, each may be NULL; only as b of GETITEM */
    NODE_CALL,     /* a(list) */
    NODE_FILTER,   /* a | op(list); a NULL: the text of a block */
    NODE_TEST,     /* a is op(list) */
    NODE_KEYWORD,  /* value = a; in lists of arguments */
    NODE_STAR,     /* *a */
    NODE_STARSTAR, /* **a */
    NODE_NEGATIVE, /* -a */
    NODE_POSITIVE, /* +a */
    NODE_NOT,
    NODE_BINARY,  /* a op b, op a token kind */
    NODE_COMPARE, /* a, then list of OPERAND */
    NODE_OPERAND, /* op a: a token kind, OPERAND_IN or OPERAND_NOT_IN */
    NODE_AND,
    NODE_OR,
    NODE_COND,  /* b if a else c; c may be NULL */
    NODE_NSREF, /* value.c, a target: a the name's node, value the member */
    /* statements */
    NODE_DATA,         /* value */
    NODE_OUTPUT,       /* a */
    NODE_IF,           /* a, body, orelse; op: it is an elif */
    NODE_FOR,          /* for a in b if c: body, orelse */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a = text of body through the filters b */
    NODE_MACRO,        /* op: number of its name; list of PARAM; body */
    NODE_PARAM,        /* op: number of its name; value: the name; a: default or NULL */
    NODE_CALL_BLOCK,   /* a: the call; list of PARAM; body */
    NODE_FILTER_BLOCK, /* b: filters; body */
    NODE_WITH,         /* list: target, value, target, value ...; body */
    NODE_SCOPE,        /* body, in a scope of its own (generation tags) */
    NODE_BREAK,
    NODE_CONTINUE,
};

enum { OPERAND_IN = 1000, OPERAND_NOT_IN };

struct tpl_node {
    enum tpl_node_kind kind;
    int line;
    int op;
    struct tpl_node *next; /* in a list */
    struct tpl_node *a;
    struct tpl_node *b;
    struct tpl_node *c;
    struct tpl_node *list;
    struct tpl_node *body;
    struct tpl_node *orelse;
    struct tpl_value value;
};

/* Numbers of names that the interpreter itself looks up; the parser enters them first. */
enum {
    NAME_LOOP,
    NAME_CALLER,
    NAME_VARARGS,
    NAME_KWARGS,
    NAME_RANGE, /* from here on: the globals, enum tpl_function in the same order */
    NAME_DICT,
    NAME_NAMESPACE,
    NAME_RAISE_EXCEPTION,
    NAME_STRFTIME_NOW,
    NAMES_KNOWN,
};

struct template
{
    struct tpl_pool pool; /* owns all that follows */
    struct tpl_node *body;
    struct tpl_value *names; /* [n_names] of variables */
    size_t n_names;
    size_t names_capacity;
};

#endif
