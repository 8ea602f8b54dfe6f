/* SPDX-License-Identifier: Apache-2.0
 * nereid fill_template [-i] FILE SUBSTITUTIONS: the command line of tools/fill_template.py. */
#include "tools/template.h"
#include "tools/tools.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid fill_template [-i] FILE NAME:VALUE[,NAME:VALUE…]\n"
    "Replaces ${NAME} in FILE; names that are not given stay as they are, but for a few that stand where\n"
    "only a value may (max_queue_size, logits_datatype, …). A comma inside a value needs one backslash,\n"
    "a colon two: gpu_device_ids:0\\,1\n";

typedef struct options {
    bool in_place;
} options;

static const nrd_opt rows[] = {
    NRD_OPT_ROW(options, FLAG, "in_place", "-i", in_place, NULL, NULL,
                "rewrite FILE (else the result goes to the standard output)"),
};
const nrd_tool_table nrd_fill_template_table = NRD_TOOL_TABLE("fill_template", usage, rows, 2);

/* max_queue_size as the published tool fills it. The others came later than some guides, which leave them
 * out, and a configuration with ${NAME} in their place does not load. */
static const struct {
    const char *name, *value;
} defaults[] = {
    {"max_queue_size", "0"},
    {"max_queue_delay_microseconds", "0"},
    {"triton_backend", "tensorrtllm"},
    {"logits_datatype", "TYPE_FP32"},
    {"encoder_input_features_data_type", "TYPE_FP16"},
    {"preprocessing_instance_count", "1"},
    {"postprocessing_instance_count", "1"},
    {"bls_instance_count", "1"},
};

enum { MAX_TEMPLATE = 16 << 20 };

/* The Python form of tensorrt_llm is a file of the published repository, which a copy of these templates lacks. */
static void choose_backend(nrd_template_values *v, const char *file)
{
    const char *backend = nrd_template_get(v, "triton_backend");
    if (!backend || strcmp(backend, "python") != 0) {
        return;
    }
    char *folder = nrd_path_dir(file);
    char *model = nrd_path_join(folder, "1/model.py");
    if (!nrd_path_exists(model)) {
        fprintf(stderr, "nereid fill_template: triton_backend:python needs the file '%s', which is not there: tensorrtllm stands "
                "in its place\n", model);
        nrd_template_set(v, "triton_backend", "tensorrtllm");
    }
    free(model);
    free(folder);
}

int nrd_tool_fill_template(int argc, char **argv)
{
    nrd_template_values values = {0};
    options o = {0};
    const char *words[2];
    nrd_str out = {0};
    char *text = NULL;
    size_t n_words = 0, n = 0;
    int status = nrd_tool_parse(&nrd_fill_template_table, argc, argv, &o, words, &n_words);

    if (status >= 0) {
        return status;
    }
    if (n_words != 2) {
        fputs("nereid fill_template: FILE and NAME:VALUE are needed (see --help)\n", stderr);
        return 2;
    }
    const char *file = words[0], *list = words[1];
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) {
        nrd_template_set(&values, defaults[i].name, defaults[i].value);
    }
    nrd_error *err = nrd_template_set_list(&values, list);
    if (!err) {
        err = nrd_file_read(&text, &n, file, MAX_TEMPLATE);
    }
    if (!err) {
        if (strstr(text, "${triton_backend}")) {
            choose_backend(&values, file);
        }
        nrd_template_fill(&values, text, n, &out);
        if (o.in_place) {
            err = nrd_file_write(file, nrd_str_cstr(&out), out.len);
        } else {
            fwrite(nrd_str_cstr(&out), 1, out.len, stdout);
        }
    }
    status = nrd_tool_finish("fill_template", err);
    nrd_str_fini(&out);
    nrd_template_fini(&values);
    free(text);
    return status;
}
