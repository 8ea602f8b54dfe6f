/* tools/tools.h - the verbs of `nereid` and what they share.
 *
 * Purpose   A verb is `int nrd_tool_<verb>(int argc, char **argv)` in its own file, argv[0] being the
 *           verb; it returns the exit status: 0 fine, 1 failed, 2 wrong usage.
 * Owner     The main thread.
 */
#ifndef NRD_TOOLS_TOOLS_H
#define NRD_TOOLS_TOOLS_H

#include "base/error.h"
#include "nereid/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int nrd_tool_convert(int argc, char **argv);
int nrd_tool_build(int argc, char **argv);
int nrd_tool_repo(int argc, char **argv);
int nrd_tool_serve(int argc, char **argv);
int nrd_tool_run(int argc, char **argv);
int nrd_tool_chat(int argc, char **argv);
int nrd_tool_top(int argc, char **argv);
int nrd_tool_bench(int argc, char **argv);
int nrd_tool_eval(int argc, char **argv);
int nrd_tool_inspect(int argc, char **argv);
int nrd_tool_tokenize(int argc, char **argv);
int nrd_tool_detokenize(int argc, char **argv);
int nrd_tool_fill_template(int argc, char **argv);

/* Is argv[*i] the option `name` ("--max_batch_size")? Hyphens and underscores are the same, and the
 * value may follow "=" or be the next word, which is then consumed (*i moves on). *out_value is NULL
 * when the value is missing. Otherwise returns false and changes nothing. */
bool nrd_tool_option(int argc, char **argv, int *i, const char *name, const char **out_value);

/* ---- options as a table (tools/options.c), for verbs with many ---- */

typedef enum {
    NRD_OPT_STR,     /* const char ** */
    NRD_OPT_INT,     /* int32_t * */
    NRD_OPT_NUM,     /* double * */
    NRD_OPT_FLAG,    /* bool *: present or not */
    NRD_OPT_SWITCH,  /* bool *: enable|true|yes|on|1 or disable|…; bare = enable */
    NRD_OPT_WORD,    /* const char **; bare = "enable" (plug-in switches of old programs) */
    NRD_OPT_IGNORED, /* takes a value where one follows; a line says that it has no effect */
    NRD_OPT_REFUSED, /* an error with the row's help as the reason */
} nrd_opt_kind;

typedef struct nrd_opt {
    const char *name;  /* "--max_batch_size"; hyphens and underscores inside mean the same */
    const char *alias; /* "-tp", another long name, or NULL */
    nrd_opt_kind kind;
    void *value;       /* by kind; holds the default before parsing */
    const char *arg;   /* name of the value in --help, or NULL */
    const char *help;  /* one sentence; NULL: not listed */
} nrd_opt;

/* Reads argv[1..]. Words that are no options go to `positional` (at most max_positional; their
 * number to *out_n). Gives -1 to go on; else the exit status: 0 after --help (printed to stdout:
 * usage, then the table), 2 after a wrong option (one line on stderr). */
int nrd_opts_parse(int argc, char **argv, const char *usage, const nrd_opt *opts, size_t n_opts,
                   const char **positional, size_t max_positional, size_t *out_n);

/* A word for --quantize, as type of linear weights: TensorRT-LLM's names (int8_wo, int4: q4_0, which
 * has a scale for each 32 columns) and type names. NULL, "auto", "none", "full_prec": NONE. */
nrd_error *nrd_tool_parse_quant(const char *word, nrd_dtype *out) NRD_MUST_USE;
/* "12.3 MB" into `out`. */
const char *nrd_human_bytes(uint64_t n, char out[32]);
/* Prints "nereid VERB: message", frees the error, gives 1; gives 0 for NULL. */
int nrd_tool_finish(const char *verb, nrd_error *err);

#endif
