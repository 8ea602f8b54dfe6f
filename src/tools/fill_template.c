/* nereid fill_template [-i] FILE SUBSTITUTIONS: the command line of tools/fill_template.py. */
#include "tools/template.h"
#include "tools/tools.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "Usage: nereid fill_template [-i] FILE NAME:VALUE[,NAME:VALUE…]\n"
    "Replaces ${NAME} in FILE; names that are not given stay as they are.\n\n"
    "  -i, --in_place   rewrite FILE (else the result goes to the standard output)\n"
    "A comma inside a value needs one backslash, a colon two: gpu_device_ids:0\\,1\n";

enum { MAX_TEMPLATE = 16 << 20 };

int nrd_tool_fill_template(int argc, char **argv)
{
    nrd_template_values values = {0};
    const char *file = NULL, *list = NULL;
    nrd_str out = {0};
    char *text = NULL;
    size_t n = 0;
    bool in_place = false;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help")) {
            fputs(help, stdout);
            return 0;
        }
        if (!strcmp(argv[i], "-i") || !strcmp(argv[i], "--in_place") ||
            !strcmp(argv[i], "--in-place")) {
            in_place = true;
        } else if (!file) {
            file = argv[i];
        } else if (!list) {
            list = argv[i];
        } else {
            file = NULL;
            break;
        }
    }
    if (!file || !list) {
        fputs(help, stderr);
        return 2;
    }
    nrd_template_set(&values, "max_queue_size", "0"); /* as the published tool fills it */
    nrd_error *err = nrd_template_set_list(&values, list);
    if (!err) {
        err = nrd_file_read(&text, &n, file, MAX_TEMPLATE);
    }
    if (!err) {
        nrd_template_fill(&values, text, n, &out);
        if (in_place) {
            err = nrd_file_write(file, nrd_str_cstr(&out), out.len);
        } else {
            fwrite(nrd_str_cstr(&out), 1, out.len, stdout);
        }
    }
    if (err) {
        fprintf(stderr, "nereid: %s\n", nrd_error_message(err));
    }
    int status = err ? 1 : 0;
    nrd_error_free(err);
    nrd_str_fini(&out);
    nrd_template_fini(&values);
    free(text);
    return status;
}
