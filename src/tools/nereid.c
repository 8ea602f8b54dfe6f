/* nereid - one program for everything besides the server. The table below is the list of verbs; a
 * verb is a file src/tools/<verb>.c. Verbs are weak references, so that a build without a room (or
 * a verb) still links and says what it lacks. */
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>

#define WEAK __attribute__((weak))
WEAK int nrd_tool_build(int argc, char **argv);
WEAK int nrd_tool_convert(int argc, char **argv);
WEAK int nrd_tool_inspect(int argc, char **argv);
WEAK int nrd_tool_repo(int argc, char **argv);
WEAK int nrd_tool_tokenize(int argc, char **argv);
WEAK int nrd_tool_detokenize(int argc, char **argv);
WEAK int nrd_tool_run(int argc, char **argv);
WEAK int nrd_tool_eval(int argc, char **argv);
WEAK int nrd_tool_serve(int argc, char **argv);

typedef struct {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *help;
} verb;

static void print_help(const verb *verbs, size_t n)
{
    printf("Usage: nereid VERB [options]      (nereid VERB --help tells a verb's options)\n\n");
    for (size_t i = 0; i < n; i++) {
        if (verbs[i].main) {
            printf("  %-12s %s\n", verbs[i].name, verbs[i].help);
        }
    }
}

int main(int argc, char **argv)
{
    const verb verbs[] = {
        {"convert", nrd_tool_convert, "model (Hugging Face folder or GGUF) to a checkpoint folder"},
        {"build", nrd_tool_build, "checkpoint, model folder or GGUF to an engine folder"},
        {"inspect", nrd_tool_inspect, "tells what a file or folder is and what is in it"},
        {"repo", nrd_tool_repo, "writes a model repository for an engine and its tokenizer"},
        {"run", nrd_tool_run, "generates text with an engine"},
        {"eval", nrd_tool_eval, "perplexity, scores and summaries"},
        {"tokenize", nrd_tool_tokenize, "text to token ids"},
        {"detokenize", nrd_tool_detokenize, "token ids to text"},
        {"serve", nrd_tool_serve, "starts the server for a model"},
    };
    const size_t n = sizeof verbs / sizeof verbs[0];

    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
        !strcmp(argv[1], "help")) {
        print_help(verbs, n);
        return argc < 2 ? 2 : 0;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("nereid " NRD_VERSION "\n");
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (strcmp(argv[1], verbs[i].name)) {
            continue;
        }
        if (!verbs[i].main) {
            fprintf(stderr, "nereid: this build has no verb '%s'\n", argv[1]);
            return 2;
        }
        return verbs[i].main(argc - 1, argv + 1);
    }
    fprintf(stderr, "nereid: unknown verb '%s' (see --help)\n", argv[1]);
    return 2;
}
