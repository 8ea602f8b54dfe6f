/* SPDX-License-Identifier: Apache-2.0
 * Prompts for a text between two others.
 * Source: the formats of text/fim.c; files of a repository as Qwen2.5-Coder has them (Hui et al., 2024,
 * section 3.3). */
#include "frontends/openai/internal.h"

static nrd_error *add_text(const nrd_oai_model *m, const char *s, size_t n, const char *field, nrd_ids *out)
{
    if (n == 0) {
        return NULL;
    }
    NRD_TRY(nrd_oai_check_prompt(m, n, field));
    return nrd_tokenizer_encode(m->tokenizer, s, n, 0, out); /* marks within the text are text */
}

static nrd_error *add_part(const nrd_oai_model *m, int32_t mark, const nrd_json *text, const char *field, nrd_ids *out)
{
    if (mark >= 0) {
        nrd_ids_push(out, mark);
    }
    return text ? add_text(m, text->str, text->n, field, out) : NULL;
}

/* A file beside the one that is written: its name where the model has a mark for that, and its text. */
static nrd_error *add_file(const nrd_oai_model *m, const nrd_fim_tokens *f, const nrd_json *file, nrd_ids *out)
{
    const nrd_json *text = nrd_json_get(file, "text"), *name = nrd_json_get(file, "filename");
    nrd_str head = {0};

    if (!nrd_json_is(text, NRD_JSON_STRING) || (nrd_oai_given(name) && name->type != NRD_JSON_STRING)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "input_extra", "must be a list of objects with filename and text");
    }
    if (f->file >= 0) {
        nrd_ids_push(out, f->file);
        nrd_str_printf(&head, "%s\n", nrd_json_str(name, "tmp"));
    }
    nrd_error *err = nrd_str_error(&head);
    err = err ? err : add_text(m, nrd_str_cstr(&head), head.len, "input_extra", out);
    err = err ? err : add_text(m, text->str, text->n, "input_extra", out);
    nrd_str_fini(&head);
    return err;
}

static nrd_error *add_files(const nrd_oai_model *m, const nrd_fim_tokens *f, const nrd_json *files, nrd_ids *out)
{
    if (f->repo >= 0 && f->file >= 0) {
        nrd_ids_push(out, f->repo);
        NRD_TRY(add_text(m, "myproject\n", 10, "input_extra", out)); /* the name that llama.cpp gives it */
    }
    for (size_t i = 0; i < files->n; i++) {
        NRD_TRY(add_file(m, f, &files->child[i], out));
    }
    if (f->repo >= 0 && f->file >= 0) {
        nrd_ids_push(out, f->file);
        NRD_TRY(add_text(m, "filename\n", 9, "input_extra", out));
    }
    return NULL;
}

/* What the tokenizer puts before every text. */
static nrd_error *add_bos(const nrd_oai_model *m, nrd_ids *out)
{
    nrd_ids empty = {0};
    nrd_error *err = nrd_tokenizer_encode(m->tokenizer, "", 0, NRD_ENCODE_ADD_SPECIAL, &empty);
    if (!err && empty.n > 0 && empty.ids[0] == nrd_tokenizer_bos_id(m->tokenizer)) {
        nrd_ids_push(out, empty.ids[0]);
    }
    nrd_ids_fini(&empty);
    return err;
}

nrd_error *nrd_oai_fim_prompt(const nrd_oai_model *m, const nrd_oai_fim *fim, nrd_ids *out)
{
    nrd_fim_tokens f;

    if (!nrd_tokenizer_fim(m->tokenizer, &f)) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, fim->suffix_field,
                              "the model has no tokens for filling in the middle; one for code may");
    }
    if (nrd_oai_given(fim->files) && fim->files->type != NRD_JSON_ARRAY) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "input_extra", "must be a list of objects with filename and text");
    }
    NRD_TRY(add_bos(m, out));
    if (nrd_json_len(fim->files) > 0) {
        NRD_TRY(add_files(m, &f, fim->files, out));
    }
    if (f.suffix_first) {
        NRD_TRY(add_part(m, f.suffix, fim->suffix, fim->suffix_field, out));
        NRD_TRY(add_part(m, f.prefix, fim->prefix, fim->prefix_field, out));
    } else {
        NRD_TRY(add_part(m, f.prefix, fim->prefix, fim->prefix_field, out));
        NRD_TRY(add_part(m, f.suffix, fim->suffix, fim->suffix_field, out));
    }
    NRD_TRY(add_part(m, f.middle, fim->begun, "prompt", out));
    return nrd_ids_error(out);
}

nrd_error *nrd_oai_fim_ends(nrd_oai_request *r)
{
    nrd_fim_tokens f;
    for (size_t i = 0; nrd_tokenizer_fim(r->model->tokenizer, &f) && i < f.n_ends; i++) {
        nrd_ids_push(&r->stop_ids, f.ends[i]);
    }
    return nrd_ids_error(&r->stop_ids);
}
