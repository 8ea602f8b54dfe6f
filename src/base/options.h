/* SPDX-License-Identifier: Apache-2.0
 * base/options.h - command lines from tables.
 *
 * Purpose   A program lists its options as rows: name, form, the field that takes the value, default
 *           and one sentence. Reading, help, documentation and completion come from the same rows.
 * Owner     Rows are constant. Reading writes the caller's struct and belongs to one thread.
 * Errors    Reading stops at the first fault and says what it is; the program words it.
 */
#ifndef NRD_BASE_OPTIONS_H
#define NRD_BASE_OPTIONS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    NRD_OPT_FLAG,   /* bool: given or not */
    NRD_OPT_BOOL,   /* bool: true, on, 1 or false, off, 0 */
    NRD_OPT_SWITCH, /* bool: these words, or enable, yes, auto, or disable, no; bare: true */
    NRD_OPT_STR,    /* const char *, borrows from argv */
    NRD_OPT_WORD,   /* the same; bare: "enable" (plug-in switches of old programs) */
    NRD_OPT_OWNED,  /* char *, owned; what it held is freed */
    NRD_OPT_INT,    /* int32_t within min..max */
    NRD_OPT_I64,    /* int64_t within min..max */
    NRD_OPT_NUM,    /* double within min..max */
    NRD_OPT_CUSTOM, /* parse() reads the value */
    NRD_OPT_CALL,   /* no value; parse() is called with NULL */
} nrd_opt_form;

typedef enum {
    NRD_OPT_USED,
    NRD_OPT_NO_EFFECT, /* accepted with or without a value; the program may say so */
    NRD_OPT_REFUSED,   /* a fault; help is the reason */
} nrd_opt_state;

/* values: the caller's struct; name: the row's. */
typedef nrd_error *nrd_opt_parser(void *values, const char *name, const char *value);

typedef struct nrd_opt {
    const char *group; /* heading above it in help, or NULL */
    const char *name;  /* without the hyphens before it; inside, '-' and '_' are the same */
    nrd_opt_form form;
    size_t offset;     /* of the field in the caller's struct */
    int64_t min, max;  /* of numbers; 0, 0: what the type holds */
    const char *arg;   /* how help shows the value; NULL or "": it has none */
    nrd_opt_parser *parse;
    const char *help;  /* one sentence or two; NULL: not listed */
    const char *alias; /* other spellings with their hyphens, "-o --out_dir", or NULL */
    const char *def;   /* the default in words, or NULL */
    const char *env;   /* environment variable that stands in where the option is not given, or NULL */
    nrd_opt_state state;
    bool once;         /* a second time is a fault instead of another value */
} nrd_opt;

/* Rows of a struct `type`. */
#define NRD_OPT_ROW(type, form_, name_, alias_, field, arg_, def_, help_)                          \
    {.name = name_, .form = NRD_OPT_##form_, .offset = offsetof(type, field), .arg = arg_,         \
     .help = help_, .alias = alias_, .def = def_}
#define NRD_OPT_WITHOUT_EFFECT(name_, alias_, help_)                                               \
    {.name = name_, .form = NRD_OPT_WORD, .help = help_, .alias = alias_, .state = NRD_OPT_NO_EFFECT}
#define NRD_OPT_REFUSAL(name_, alias_, why)                                                        \
    {.name = name_, .form = NRD_OPT_WORD, .help = why, .alias = alias_, .state = NRD_OPT_REFUSED}

typedef struct nrd_opt_set {
    const nrd_opt *rows;
    size_t n;
    size_t max_words;                     /* words that are no options */
    bool has_help;                        /* --help and -h end reading as NRD_OPT_HELP */
    bool takes_prefixes;                  /* the unique beginning of a name is enough, as getopt_long */
    void (*ignored)(const nrd_opt *row);  /* a row without effect was given; may be NULL */
} nrd_opt_set;

typedef enum {
    NRD_OPT_FINE,
    NRD_OPT_HELP,
    NRD_OPT_UNKNOWN,
    NRD_OPT_AMBIGUOUS,   /* several names begin so */
    NRD_OPT_STRAY_WORD,  /* more than max_words */
    NRD_OPT_VALUE_MISSING,
    NRD_OPT_VALUE_EXTRA, /* --flag=value */
    NRD_OPT_VALUE_WRONG, /* not of the form */
    NRD_OPT_VALUE_RANGE, /* outside of min..max */
    NRD_OPT_TWICE,
    NRD_OPT_NOT_SUPPORTED, /* a refused row */
    NRD_OPT_FAILED,        /* parse() did not like it: see error */
} nrd_opt_fault_kind;

typedef struct nrd_opt_fault {
    nrd_opt_fault_kind kind;
    const nrd_opt *row;      /* NULL: unknown, ambiguous or a stray word */
    const char *word;        /* of argv, [n_word] without "=value" */
    size_t n_word;
    const char *value;       /* NULL: none */
    const nrd_opt *nearest;  /* of an unknown one: the row that was probably meant, or NULL */
    nrd_error *error;        /* of FAILED; owned by the caller */
} nrd_opt_fault;

/* Reads argv[1..argc) into `values`; words that are no options go to words[0..*n_words), which may be
 * NULL where max_words is 0. */
nrd_opt_fault nrd_opts_read(const nrd_opt_set *set, void *values, int argc, char *const *argv,
                            const char **words, size_t *n_words);

/* The row that word[0..n) ("--name", "-n") names; NULL: none. */
const nrd_opt *nrd_opts_find(const nrd_opt *rows, size_t n_rows, const char *word, size_t n);
/* The row whose name is closest to word[0..n); NULL: none is close. */
const nrd_opt *nrd_opts_nearest(const nrd_opt *rows, size_t n_rows, const char *word, size_t n);
/* How many letters must be put, dropped, changed or swapped with the next to make a of b; '-' and '_'
 * are the same. At most 64 letters are looked at. */
int nrd_opts_distance(const char *a, size_t na, const char *b);
/* May the row stand alone, must it have a value? */
bool nrd_opt_needs_value(const nrd_opt *row);
bool nrd_opt_may_have_value(const nrd_opt *row);
/* "a whole number", "true or false"; of the row's form. */
const char *nrd_opt_expected(const nrd_opt *row);

#endif
