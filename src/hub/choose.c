/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/choose.h"

#include "base/file.h"
#include "base/parts.h"
#include "base/str.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Types as they stand in names; in this order they are taken where none is asked for: small and good first. */
static const char *const types[] = {"Q4_K_M", "Q4_K_S", "Q5_K_M", "Q5_K_S", "Q4_0", "Q4_1",   "Q6_K",   "Q8_0",
                                    "Q5_0",   "Q5_1",   "IQ4_XS", "IQ4_NL", "Q4_K", "Q5_K",   "Q3_K_L", "Q3_K_M",
                                    "Q3_K_S", "Q3_K",   "Q2_K_L", "Q2_K",   "MXFP4", "BF16", "F16",   "F32"};
enum { N_TYPES = sizeof types / sizeof *types };

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcasecmp(s + n - m, end);
}

bool nrd_hub_is_weights(const char *name)
{
    const char *base = nrd_path_base(name);
    return ends_with(base, ".gguf") && !strcasestr(base, "mmproj") && !strcasestr(base, "imatrix");
}

/* `word` in `text`, between what are no letters, digits or '_'. */
static bool has_word(const char *text, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = text; (p = strcasestr(p, word)) != NULL; p++) {
        const char before = p == text ? '-' : p[-1], after = p[n];
        if (!isalnum((unsigned char)before) && before != '_' && !isalnum((unsigned char)after) && after != '_') {
            return true;
        }
    }
    return false;
}

void nrd_hub_type_of_name(const char *name, char out[32])
{
    out[0] = '\0';
    for (size_t i = 0; i < N_TYPES && !out[0]; i++) {
        if (has_word(name, types[i])) {
            snprintf(out, 32, "%s", types[i]);
        }
    }
}

bool nrd_hub_is_first_part(const char *name)
{
    size_t at = 0;
    return nrd_parts_of_name(name, &at) == 0 || !strncmp(name + at, "-00001-", 7);
}

/* A GGUF file with all of its parts. */
static nrd_error *take_gguf(const char *first, const char *const *names, size_t n, bool *wanted)
{
    size_t at = 0, mine = 0;
    const size_t parts = nrd_parts_of_name(first, &at);
    size_t found = 0;

    for (size_t i = 0; i < n; i++) {
        wanted[i] = parts ? nrd_parts_of_name(names[i], &mine) == parts && mine == at && !strncmp(names[i], first, at)
                          : !strcmp(names[i], first);
        found += wanted[i];
    }
    if (parts && found != parts) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' has %zu parts, of which there are %zu", first, parts, found);
    }
    return NULL;
}

/* The vision tower beside a GGUF file: of several that of 16 bits. */
static void take_mmproj(const char *model, const char *const *names, size_t n, bool *wanted)
{
    static const char *const usual[] = {"F16", "BF16", "F32", "Q8_0", ""};
    const size_t folder = (size_t)(nrd_path_base(model) - model);

    for (size_t k = 0; k < sizeof usual / sizeof *usual; k++) {
        for (size_t i = 0; i < n; i++) {
            const char *base = nrd_path_base(names[i]);
            if ((size_t)(base - names[i]) == folder && !strncmp(names[i], model, folder) && ends_with(base, ".gguf") &&
                strcasestr(base, "mmproj") && (!*usual[k] || has_word(base, usual[k]))) {
                wanted[i] = true;
                return;
            }
        }
    }
}

/* A model's file, its other parts, and its vision tower. */
static nrd_error *take_model(const char *first, const char *const *names, size_t n, bool *wanted)
{
    NRD_TRY(take_gguf(first, names, n, wanted));
    if (nrd_hub_is_weights(first)) {
        take_mmproj(first, names, n, wanted);
    }
    return NULL;
}

/* The first file of a type that is there; NULL: none. */
static const char *find_type(const char *type, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (nrd_hub_is_weights(names[i]) && nrd_hub_is_first_part(names[i]) && has_word(names[i], type)) {
            return names[i];
        }
    }
    return NULL;
}

static nrd_error *no_type(const nrd_hub_id *id, const char *const *names, size_t n)
{
    nrd_str found = {0};
    for (size_t i = 0; i < N_TYPES; i++) {
        if (find_type(types[i], names, n)) {
            nrd_str_printf(&found, "%s%s", found.len ? ", " : "", types[i]);
        }
    }
    nrd_error *err = nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no GGUF file of type %s; it has %s", id->repo, id->quant,
                                found.len ? nrd_str_cstr(&found) : "none of a known type");
    nrd_str_fini(&found);
    return err;
}

static const char *usual_gguf(const char *const *names, size_t n)
{
    for (size_t i = 0; i < N_TYPES; i++) {
        const char *found = find_type(types[i], names, n);
        if (found) {
            return found;
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (nrd_hub_is_weights(names[i]) && nrd_hub_is_first_part(names[i])) {
            return names[i];
        }
    }
    return NULL;
}

/* ---- folders ---- */

static bool is_safetensors(const char *name)
{
    return ends_with(name, ".safetensors") && strncmp(name, "consolidated", 12) != 0 &&
           strncmp(name, "adapter_", 8) != 0;
}

static bool is_torch(const char *name)
{
    return nrd_str_has_prefix(name, "pytorch_model") && ends_with(name, ".bin");
}

/* What a model's folder needs besides its weights. */
static bool is_small(const char *name)
{
    static const char *const whole[] = {"config.json", "generation_config.json", "model.safetensors.index.json",
                                        "pytorch_model.bin.index.json", "vocab.json", "vocab.txt", "merges.txt",
                                        "quantize_config.json", "quant_config.json", "hf_quant_config.json", "quanto_qmap.json",
                                        "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
                                        "chat_template.json", "preprocessor_config.json", "processor_config.json",
                                        "spiece.model", "source.spm", "target.spm", "sentencepiece.bpe.model", "qwen.tiktoken", "tiktoken.model",
                                        "README.md"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        if (!strcmp(name, whole[i])) {
            return true;
        }
    }
    return nrd_str_has_prefix(name, "tokenizer") && (ends_with(name, ".json") || ends_with(name, ".model"));
}

/* A file's name in the model's folder, or, in_parts, in that of one of its parts; NULL: it is in another one. */
static const char *name_in(const char *name, bool in_parts)
{
    static const char *const parts[] = {"llm/", "vision_tower/", "mm_projector/"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts && in_parts; i++) {
        if (nrd_str_has_prefix(name, parts[i])) {
            name += strlen(parts[i]);
            break;
        }
    }
    return strchr(name, '/') ? NULL : name;
}

/* false: there is no model of this form. Of VILA each part has a folder. */
static bool take_folder(const char *const *names, size_t n, bool *wanted)
{
    bool has_config = false, has_safetensors = false, has_torch = false, in_parts = false;
    for (size_t i = 0; i < n; i++) {
        in_parts = in_parts || !strcmp(names[i], "llm/config.json");
        has_config = has_config || !strcmp(names[i], "config.json");
    }
    for (size_t i = 0; i < n; i++) {
        const char *name = name_in(names[i], in_parts);
        has_safetensors = has_safetensors || (name && is_safetensors(name));
        has_torch = has_torch || (name && is_torch(name));
    }
    for (size_t i = 0; i < n; i++) {
        const char *name = name_in(names[i], in_parts);
        wanted[i] = name && (is_small(name) || (has_safetensors ? is_safetensors(name) : is_torch(name)));
    }
    return has_config && (has_safetensors || has_torch);
}

nrd_error *nrd_hub_choose(const nrd_hub_id *id, const char *const *names, size_t n, bool *wanted,
                          const char **out_model)
{
    *out_model = NULL;
    if (id->file[0]) {
        for (size_t i = 0; i < n && !*out_model; i++) {
            *out_model = !strcmp(names[i], id->file) ? names[i] : NULL;
        }
        return *out_model ? take_model(*out_model, names, n, wanted)
                          : nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no file '%s'", id->repo, id->file);
    }
    if (id->quant[0]) {
        *out_model = find_type(id->quant, names, n);
        return *out_model ? take_model(*out_model, names, n, wanted) : no_type(id, names, n);
    }
    if (take_folder(names, n, wanted)) {
        return NULL;
    }
    *out_model = usual_gguf(names, n);
    return *out_model ? take_model(*out_model, names, n, wanted)
                      : nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no model: neither config.json with safetensors or "
                                   "pytorch_model.bin, nor a GGUF file", id->repo);
}
