/* SPDX-License-Identifier: Apache-2.0
 * nereid deploy: a repository for every row of a matrix, and a table of what became of them. */
#include "tools/deploy_make.h"
#include "tools/tools.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid deploy [MATRIX.json] [options]\n"
    "Makes a model repository of every model, precision, batch size and pair of lengths:\n"
    "OUTPUT/ensemble_models/MODEL_PRECISION_tpT_ppP_islI_oslO_bsB, for tritonserver "
    "--model-repository and\n"
    "nereid serve. What is ready is kept, what was interrupted or is of other options is made "
    "again, what fails\n"
    "does not stop the others. MATRIX.json has lists models, precisions, batch_sizes, lengths, "
    "set, build, and\n"
    "device, output_dir, tp_size, pp_size; lists given as options take the place of its own.\n";

typedef struct options {
    nrd_deploy_matrix given;
    bool dry_run, json;
} options;

static nrd_error *add(void *values, const char *name, const char *value)
{
    static const char *const keys[][2] = {
        {"model", "models"}, {"precision", "precisions"}, {"batch_size", "batch_sizes"}};
    options *o = values;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        name = !strcmp(name, keys[i][0]) ? keys[i][1] : name;
    }
    return nrd_deploy_matrix_add(&o->given, name, value);
}

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
#define LIST(name_, alias_, arg_, def_, help_)                                                     \
    {                                                                                              \
        .name = name_, .form = NRD_OPT_CUSTOM, .parse = add, .alias = alias_, .arg = arg_,         \
        .help = help_, .def = def_                                                                 \
    }
static const nrd_opt rows[] = {
    LIST("model", "--models", "[NAME=]PATH", NULL,
         "a Hugging Face folder, a GGUF file or the name of a model; NAME: the last part of PATH; "
         "may be repeated"),
    LIST("precision", "--precisions", "NAME[,NAME…]", "auto",
         "auto: as the model has it; fp32, fp16, bf16, or types of linear weights: fp8, int8_wo, "
         "q4_k, …"),
    LIST("batch_size", "--batch_sizes", "N[,N…]", "8",
         "the engine's and the models' largest batch"),
    LIST("lengths", NULL, "INPUT,OUTPUT …", "2048,1024",
         "pairs of tokens of the prompt and of the answer"),
    LIST("set", NULL, "NAME:VALUE[,…]", NULL,
         "values for the repositories (nereid help repo); may be repeated"),
    LIST("build", NULL, "OPTION[=VALUE]", NULL,
         "an option for nereid build, for example --build --kv_cache_dtype=fp8; may be repeated"),
    OPT(STR, "output_dir", "-o --workspace", given.output_dir, "DIR", ".",
        "where everything is made"),
    OPT(STR, "device", NULL, given.device, "NAME", "auto",
        "what the engines are for: auto, cpu or cuda"),
    {.name = "tp_size",
     .form = NRD_OPT_INT,
     .offset = offsetof(options, given.tp_size),
     .min = 1,
     .max = NRD_DEPLOY_MAX_RANKS,
     .arg = "N",
     .def = "1",
     .help = "tensor-parallel ranks of models that do not say"},
    {.name = "pp_size",
     .form = NRD_OPT_INT,
     .offset = offsetof(options, given.pp_size),
     .min = 1,
     .max = NRD_DEPLOY_MAX_RANKS,
     .arg = "N",
     .def = "1",
     .help = "pipeline stages of models that do not say"},
    OPT(FLAG, "dry_run", "-n", dry_run, NULL, NULL,
        "say what is ready and what would be made, write nothing"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "print a list of objects, one for each repository, instead of the table"),
};
const nrd_tool_table nrd_deploy_table = NRD_TOOL_TABLE("deploy", usage, rows, 1);

/* Calls visit for every row, models first, so that rows that share a checkpoint follow each other. */
typedef void visitor(nrd_deploy_maker *k, const nrd_deploy_row *row, void *arg);

static void for_rows(nrd_deploy_maker *k, const nrd_deploy_matrix *m, visitor *visit, void *arg)
{
    for (size_t d = 0; d < m->n_models; d++) {
        for (size_t p = 0; p < m->n_precisions; p++) {
            for (size_t b = 0; b < m->n_batch_sizes; b++) {
                for (size_t l = 0; l < m->n_lengths; l++) {
                    visit(k, &(nrd_deploy_row){d, p, m->batch_sizes[b], m->lengths[l]}, arg);
                }
            }
        }
    }
}

typedef struct report {
    nrd_str table, list; /* list: members of a JSON list */
    size_t n_rows, i, n_failed;
    bool dry_run;
} report;

static void put_row(report *r, nrd_deploy_maker *k, const nrd_deploy_row *row, const char *name,
                    uint64_t ns, const char *status)
{
    char size[32] = "-";
    const uint64_t bytes = nrd_deploy_engine_bytes(k, row);
    if (bytes > 0) {
        nrd_human_bytes(bytes, size);
    }
    nrd_str_printf(&r->table, "%-56s %9s %8.1f  %s\n", name, size, (double)ns / 1e9, status);
    nrd_str_puts(&r->list, r->list.len ? ", {\"repository\": " : "{\"repository\": ");
    nrd_json_put_cstr(&r->list, name);
    nrd_str_printf(&r->list, ", \"bytes\": %llu, \"seconds\": ", (unsigned long long)bytes);
    nrd_json_put_double(&r->list, (double)ns / 1e9);
    nrd_str_puts(&r->list, ", \"status\": ");
    nrd_json_put_cstr(&r->list, status);
    nrd_str_putc(&r->list, '}');
}

static void visit_row(nrd_deploy_maker *k, const nrd_deploy_row *row, void *arg)
{
    report *r = arg;
    const uint64_t start = nrd_now_ns();
    const char *missing = nrd_deploy_missing(k, row);
    char *name = nrd_deploy_row_name(k, row), *status = NULL;

    r->i++;
    if (!missing) {
        status = nrd_xstrdup("ready");
    } else if (r->dry_run) {
        status = nrd_xasprintf("to make: %s", missing);
    } else {
        fprintf(stderr, "[%zu/%zu] %s: %s\n", r->i, r->n_rows, name, missing);
        nrd_error *err = nrd_deploy_make(k, row);
        status = err ? nrd_xasprintf("failed: %s", nrd_error_message(err)) : nrd_xstrdup("made");
        r->n_failed += err != NULL;
        nrd_error_free(err);
    }
    put_row(r, k, row, name, nrd_now_ns() - start, status);
    free(status);
    free(name);
}

static nrd_error *write_summary(const nrd_deploy_matrix *m, const report *r)
{
    char *file = nrd_path_join(m->output_dir, "summary.txt");
    nrd_error *err = nrd_file_write(file, nrd_str_cstr(&r->table), r->table.len);
    free(file);
    return err;
}

/* *out_failed: rows that failed. */
static nrd_error *deploy(const nrd_deploy_matrix *m, bool dry_run, bool json, size_t *out_failed)
{
    report r = {.n_rows = m->n_models * m->n_precisions * m->n_batch_sizes * m->n_lengths,
                .dry_run = dry_run};
    nrd_deploy_maker *k = NULL;

    NRD_TRY(nrd_deploy_maker_new(&k, m, dry_run));
    nrd_str_printf(&r.table, "%-56s %9s %8s  %s\n", "repository", "engine", "seconds", "status");
    for_rows(k, m, visit_row, &r);
    if (json) {
        printf("[%s]\n", nrd_str_cstr(&r.list));
    } else {
        fputs(nrd_str_cstr(&r.table), stdout);
    }
    nrd_error *err = dry_run ? NULL : write_summary(m, &r);
    *out_failed = r.n_failed;
    nrd_str_fini(&r.table);
    nrd_str_fini(&r.list);
    nrd_deploy_maker_free(k);
    return err;
}

int nrd_tool_deploy(int argc, char **argv)
{
    options *o = nrd_xcalloc(1, sizeof *o);
    nrd_deploy_matrix *m = nrd_xcalloc(1, sizeof *m);
    const char *file = NULL;
    size_t n_failed = 0;

    nrd_deploy_matrix_init(&o->given);
    nrd_deploy_matrix_init(m);
    int status = nrd_tool_parse(&nrd_deploy_table, argc, argv, o, &file, NULL);
    if (status < 0) {
        nrd_error *err = file ? nrd_deploy_matrix_read(m, file) : NULL;
        if (!err) {
            nrd_deploy_matrix_override(m, &o->given);
            err = nrd_deploy_matrix_finish(m);
        }
        if (err) {
            status = nrd_tool_finish("deploy", err) + 1; /* wrong usage: nothing was tried */
        } else {
            status = nrd_tool_finish("deploy", deploy(m, o->dry_run, o->json, &n_failed));
            status = n_failed > 0 ? 1 : status;
        }
    }
    nrd_deploy_matrix_fini(m);
    nrd_deploy_matrix_fini(&o->given);
    free(m);
    free(o);
    return status;
}
