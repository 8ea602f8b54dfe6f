/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/id.h"

#include "base/file.h"
#include "base/str.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define FORMS "ORG/NAME, ORG/NAME:QUANT, ORG/NAME@REVISION, hf:ORG/NAME or https://…/FILE.gguf"

static bool is_plain(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '_' || c == '-';
}

/* One part of "ORG/NAME". */
static bool is_name(const char *s, size_t n)
{
    if (n == 0 || n > NRD_HUB_MAX_NAME || s[0] == '.' || s[0] == '-' || s[n - 1] == '.' || s[n - 1] == '-') {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (!is_plain(s[i]) || (i > 0 && s[i] == s[i - 1] && (s[i] == '.' || s[i] == '-'))) {
            return false;
        }
    }
    return true;
}

static bool is_revision(const char *s)
{
    for (const char *p = s; *p; p++) {
        if (!is_plain(*p) && *p != '/') {
            return false;
        }
    }
    return nrd_path_stays_inside(s) && !strstr(s, "//") && !nrd_str_has_suffix(s, "/");
}

static bool is_word(const char *s)
{
    for (const char *p = s; *p; p++) {
        if (!is_plain(*p)) {
            return false;
        }
    }
    return *s != '\0';
}

static bool has_suffix_of_gguf(const char *s)
{
    const size_t n = strlen(s);
    return n > 5 && !strcasecmp(s + n - 5, ".gguf");
}

static bool is_address(const char *text)
{
    return nrd_str_has_prefix(text, "https://") || nrd_str_has_prefix(text, "http://");
}

/* Copies s[0..n); false: too long. */
static bool take(char *to, size_t room, const char *s, size_t n)
{
    if (n >= room) {
        return false;
    }
    memcpy(to, s, n);
    to[n] = '\0';
    return true;
}

/* "ORG/NAME[/FILE.gguf]" of [s, s + n); one_is_fine: "NAME" too. */
static bool split_repo(nrd_hub_id *id, const char *s, size_t n, bool one_is_fine)
{
    const char *end = s + n, *slash = memchr(s, '/', n);
    if (!slash) {
        return one_is_fine && is_name(s, n) && take(id->repo, sizeof id->repo, s, n);
    }
    const char *name = slash + 1, *next = memchr(name, '/', (size_t)(end - name));
    const char *name_end = next ? next : end;
    if (!is_name(s, (size_t)(slash - s)) || !is_name(name, (size_t)(name_end - name)) ||
        !take(id->repo, sizeof id->repo, s, (size_t)(name_end - s))) {
        return false;
    }
    if (!next) {
        return true;
    }
    return take(id->file, sizeof id->file, next + 1, (size_t)(end - next - 1)) && nrd_path_stays_inside(id->file) &&
           has_suffix_of_gguf(id->file);
}

/* What stands behind the name: ":QUANT" and "@REV", in any order. */
static bool split_marks(nrd_hub_id *id, const char *marks)
{
    while (*marks) {
        const char mark = *marks++;
        const size_t n = strcspn(marks, ":@");
        char *to = mark == ':' ? id->quant : id->rev;
        const size_t room = mark == ':' ? sizeof id->quant : sizeof id->rev;
        if (!take(to, room, marks, n) || !(mark == ':' ? is_word(to) : is_revision(to))) {
            return false;
        }
        marks += n;
    }
    return true;
}

static bool parse_name(nrd_hub_id *id, const char *text, bool one_is_fine)
{
    const size_t n = strcspn(text, ":@");
    return split_repo(id, text, n, one_is_fine) && split_marks(id, text + n);
}

/* Of the hub's own pages: "/ORG/NAME[/tree/REV]", "/ORG/NAME/(resolve|blob)/REV/FILE.gguf". */
static bool parse_page(nrd_hub_id *id, const char *path)
{
    const char *slash = strchr(path, '/'), *rest = slash ? strchr(slash + 1, '/') : NULL;
    const size_t n = rest ? (size_t)(rest - path) : strlen(path);
    static const char *const kinds[] = {"/tree/", "/resolve/", "/blob/"};

    if (!split_repo(id, path, n, false)) {
        return false;
    }
    if (!rest || !strcmp(rest, "/")) {
        return true;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (nrd_str_has_prefix(rest, kinds[i])) {
            const char *rev = rest + strlen(kinds[i]);
            const size_t n_rev = strcspn(rev, "/?");
            const char *file = rev[n_rev] == '/' ? rev + n_rev + 1 : "";
            if (!take(id->rev, sizeof id->rev, rev, n_rev) || !is_revision(id->rev) ||
                !take(id->file, sizeof id->file, file, strcspn(file, "?"))) {
                return false;
            }
            return i == 0 ? !id->file[0] : nrd_path_stays_inside(id->file) && has_suffix_of_gguf(id->file);
        }
    }
    return false;
}

static nrd_error *parse_address(nrd_hub_id *id, const char *text, const char *endpoint)
{
    const size_t n = strlen(endpoint), len = strcspn(text, "?#");

    if (strlen(text) > NRD_HUB_MAX_URL) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "an address of more than %d characters", NRD_HUB_MAX_URL);
    }
    if (!strncmp(text, endpoint, n) && text[n] == '/') {
        return parse_page(id, text + n + 1)
                   ? NULL
                   : nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is no model's address: expected %s/ORG/NAME or "
                                "%s/ORG/NAME/resolve/REVISION/FILE.gguf", text, endpoint, endpoint);
    }
    if (len < 5 || strncasecmp(text + len - 5, ".gguf", 5) != 0 || strpbrk(text, " \t\r\n\"\\")) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s': an address must be that of a GGUF file, …/FILE.gguf", text);
    }
    (void)take(id->url, sizeof id->url, text, strlen(text));
    id->rev[0] = '\0';
    return NULL;
}

bool nrd_hub_id_is(const char *text)
{
    nrd_hub_id id = {.repo = ""};
    if (nrd_str_has_prefix(text, "hf:") || is_address(text)) {
        return true;
    }
    return parse_name(&id, text, false) && !(has_suffix_of_gguf(id.repo) && !id.file[0]);
}

nrd_error *nrd_hub_id_parse(nrd_hub_id *out, const char *text, const char *endpoint)
{
    const bool is_hf = nrd_str_has_prefix(text, "hf:");

    *out = (nrd_hub_id){.rev = "main"};
    if (is_address(text)) {
        return parse_address(out, text, endpoint);
    }
    if (!parse_name(out, is_hf ? text + 3 : text, is_hf)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%.200s' is no model's name: expected " FORMS, text);
    }
    if (out->file[0] && out->quant[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%.200s' names a file and a type: leave one out", text);
    }
    return NULL;
}
