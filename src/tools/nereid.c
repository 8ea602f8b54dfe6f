/* nereid: one program, one verb for everything besides the server itself. */
#include "tools/tools.h"

#include "base/leftovers.h"
#include "nereid/executor.h"

#include <stdio.h>
#include <string.h>

/* What the build has beside the engine. */
#ifdef NRD_HAVE_PYTHON
#define SERVER_FEATURES "python-backend"
#else
#define SERVER_FEATURES "no-python-backend(Python.h)"
#endif

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} verbs[] = {
    {"serve", nrd_tool_serve, "serve a model: converts, builds and writes a repository if needed"},
    {"run", nrd_tool_run, "generate text at the terminal"},
    {"chat", nrd_tool_chat, "talk with a model at the terminal"},
    {"top", nrd_tool_top, "what a server does, live in the terminal"},
    {"convert", nrd_tool_convert, "Hugging Face folder or GGUF -> checkpoint folder"},
    {"build", nrd_tool_build, "checkpoint, Hugging Face folder or GGUF -> engine folder"},
    {"repo", nrd_tool_repo, "engine + tokenizer -> five-model repository"},
    {"inspect", nrd_tool_inspect, "what is in a checkpoint, GGUF, engine or tokenizer"},
    {"tokenize", nrd_tool_tokenize, "text lines -> token ids"},
    {"detokenize", nrd_tool_detokenize, "token ids -> text lines"},
    {"eval", nrd_tool_eval, "perplexity, log probabilities"},
    {"bench", nrd_tool_bench, "throughput and latency of an engine"},
    {"fill_template", nrd_tool_fill_template, "replace ${NAME} in a config.pbtxt"},
};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

static void usage(FILE *f)
{
    fputs("Usage: nereid VERB [options]\n\n", f);
    for (int i = 0; i < N_VERBS; i++) {
        fprintf(f, "  %-14s %s\n", verbs[i].name, verbs[i].summary);
    }
    fputs("\n  nereid VERB --help    options of a verb\n  nereid --version      version and what "
          "this build has\n",
          f);
}

/* "fill-template" is "fill_template". */
static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b)) {
            return false;
        }
    }
    return *a == *b;
}

bool nrd_tool_option(int argc, char **argv, int *i, const char *name, const char **out_value)
{
    const char *a = argv[*i], *b = name;
    while (*a && *b && (*a == '-' ? '_' : *a) == (*b == '-' ? '_' : *b)) {
        a++;
        b++;
    }
    if (*b || (*a && *a != '=')) {
        return false;
    }
    if (*a == '=') {
        *out_value = a + 1;
    } else {
        *out_value = *i + 1 < argc ? argv[++*i] : NULL;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("nereid %s\n%s %s\n", nrd_version(), nrd_features(), SERVER_FEATURES);
        return 0;
    }
    for (int i = 0; i < N_VERBS; i++) {
        if (same_name(verbs[i].name, argv[1])) {
            nrd_leftovers_remove_on_signals();
            return verbs[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "nereid: unknown verb '%s'\n\n", argv[1]);
    usage(stderr);
    return 2;
}
