/* tools/tools.h - the verbs of `nereid` and what they share.
 *
 * Purpose   A verb is `int nrd_tool_<verb>(int argc, char **argv)` in its own file, argv[0] being the
 *           verb; it returns the exit status: 0 fine, 1 failed, 2 wrong usage.
 * Owner     The main thread.
 */
#ifndef NRD_TOOLS_TOOLS_H
#define NRD_TOOLS_TOOLS_H

#include <stdbool.h>

int nrd_tool_convert(int argc, char **argv);
int nrd_tool_build(int argc, char **argv);
int nrd_tool_repo(int argc, char **argv);
int nrd_tool_serve(int argc, char **argv);
int nrd_tool_run(int argc, char **argv);
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
/* The same for an option without a value. */
bool nrd_tool_flag(char **argv, int i, const char *name);

#endif
