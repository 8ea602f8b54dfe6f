/* SPDX-License-Identifier: Apache-2.0 */
#include "cloud/list.h"

#include "base/mem.h"

#include <expat.h>
#include <string.h>

enum { MAX_PAGE = 32 << 20, MAX_TEXT = 8192, MAX_PAGES = 1000000, MAX_QUERY = 6 };

/* One page while it is read. The languages of the three stores differ in a few names only. */
typedef struct page {
    XML_Parser xml;
    bool folders;
    const char *prefix;
    nrd_cloud_visit visit;
    void *user;
    bool in_item;      /* an object or a folder */
    bool is_folder;
    nrd_str text;      /* of the innermost element so far */
    nrd_str name, etag, next;
    uint64_t size;
    bool is_truncated; /* the store says that more follows */
    bool is_stopped;   /* the visitor wants no more */
    nrd_error *err;
} page;

static bool is_one_of(const char *name, const char *a, const char *b)
{
    return strcmp(name, a) == 0 || strcmp(name, b) == 0;
}

static void stop(page *p, nrd_error *err)
{
    if (!p->err) {
        p->err = err;
    } else {
        nrd_error_free(err);
    }
    XML_StopParser(p->xml, XML_FALSE);
}

static void on_start(void *user, const XML_Char *name, const XML_Char **attributes)
{
    page *p = user;
    (void)attributes;
    nrd_str_clear(&p->text);
    if (is_one_of(name, "Contents", "Blob") || is_one_of(name, "CommonPrefixes", "BlobPrefix")) {
        p->in_item = true;
        p->is_folder = !is_one_of(name, "Contents", "Blob");
        p->size = 0;
        nrd_str_clear(&p->name);
        nrd_str_clear(&p->etag);
    }
}

static void emit(page *p)
{
    const char *name = nrd_str_cstr(&p->name);

    p->in_item = false;
    if (strlen(name) != p->name.len || !nrd_str_has_prefix(name, p->prefix)) {
        stop(p, nrd_errorf(NRD_ERR_INTERNAL, "the store lists '%s', which is not below '%s'", name, p->prefix));
        return;
    }
    name += strlen(p->prefix);
    if (p->is_folder != p->folders || !name[0]) {
        return; /* the folder itself may be an object */
    }
    if (p->is_folder) {
        p->name.data[p->name.len - 1] = '\0'; /* its slash */
    }
    if (!p->visit(p->user, name, p->size, nrd_str_cstr(&p->etag))) {
        p->is_stopped = true;
        XML_StopParser(p->xml, XML_FALSE);
    }
}

static void keep_text(page *p, nrd_str *to)
{
    nrd_str_clear(to);
    nrd_str_put(to, &p->text);
}

static void on_end(void *user, const XML_Char *name)
{
    page *p = user;
    unsigned long long n = 0;

    if (p->in_item && (is_one_of(name, "Key", "Name") || strcmp(name, "Prefix") == 0)) {
        keep_text(p, &p->name);
    } else if (p->in_item && is_one_of(name, "ETag", "Etag")) {
        keep_text(p, &p->etag);
    } else if (p->in_item && is_one_of(name, "Size", "Content-Length")) {
        if (!nrd_parse_u64(nrd_str_cstr(&p->text), &n) || n > INT64_MAX) {
            stop(p, nrd_errorf(NRD_ERR_INTERNAL, "the store lists '%s' with a size of '%s'", nrd_str_cstr(&p->name),
                               nrd_str_cstr(&p->text)));
        }
        p->size = n;
    } else if (!p->in_item && is_one_of(name, "NextContinuationToken", "NextMarker")) {
        keep_text(p, &p->next);
    } else if (!p->in_item && strcmp(name, "IsTruncated") == 0) {
        p->is_truncated = strcmp(nrd_str_cstr(&p->text), "true") == 0;
    } else if (is_one_of(name, "Contents", "Blob") || is_one_of(name, "CommonPrefixes", "BlobPrefix")) {
        emit(p);
    }
    nrd_str_clear(&p->text);
}

static void on_text(void *user, const XML_Char *s, int n)
{
    page *p = user;
    if (p->text.len + (size_t)n > MAX_TEXT) {
        stop(p, nrd_errorf(NRD_ERR_INTERNAL, "the store lists a name longer than %d bytes", (int)MAX_TEXT));
        return;
    }
    nrd_str_append(&p->text, s, (size_t)n);
}

/* Stores write none; one could define entities without end. */
static void on_doctype(void *user, const XML_Char *name, const XML_Char *a, const XML_Char *b, int c)
{
    (void)name, (void)a, (void)b, (void)c;
    stop(user, nrd_errorf(NRD_ERR_INTERNAL, "the store's list has a document type"));
}

static nrd_error *read_page(page *p, const nrd_str *body)
{
    p->xml = XML_ParserCreate(NULL);
    if (!p->xml) {
        return nrd_error_no_memory();
    }
    p->in_item = p->is_truncated = false;
    nrd_str_clear(&p->next);
    XML_SetUserData(p->xml, p);
    XML_SetElementHandler(p->xml, on_start, on_end);
    XML_SetCharacterDataHandler(p->xml, on_text);
    XML_SetStartDoctypeDeclHandler(p->xml, on_doctype);
    const enum XML_Status status = XML_Parse(p->xml, nrd_str_cstr(body), (int)body->len, XML_TRUE);
    nrd_error *err = p->err;
    p->err = NULL;
    if (!err && status != XML_STATUS_OK && !p->is_stopped) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "the store's list is no XML: %s", XML_ErrorString(XML_GetErrorCode(p->xml)));
    }
    const nrd_str *texts[] = {&p->name, &p->etag, &p->next, &p->text};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        err = err ? err : nrd_str_error(texts[i]);
    }
    XML_ParserFree(p->xml);
    return err;
}

static void add(nrd_cloud_request *r, nrd_sign_field *query, const char *name, const char *value)
{
    if (value[0]) {
        query[r->n_query++] = (nrd_sign_field){name, value};
    }
}

static nrd_error *ask_page(nrd_cloud_store *s, nrd_http_handle *h, page *p, const char *marker)
{
    const bool is_azure = nrd_cloud_store_place(s)->kind == NRD_CLOUD_AZURE;
    nrd_sign_field query[MAX_QUERY];
    nrd_cloud_request r = {.query = query, .max_body = MAX_PAGE};
    nrd_http_reply reply = {0};

    if (is_azure) { /* sorted, as they are signed */
        add(&r, query, "comp", "list");
        add(&r, query, "delimiter", p->folders ? "/" : "");
        add(&r, query, "marker", marker);
        add(&r, query, "prefix", p->prefix);
        add(&r, query, "restype", "container");
    } else {
        add(&r, query, "continuation-token", marker);
        add(&r, query, "delimiter", p->folders ? "/" : "");
        add(&r, query, "list-type", "2");
        add(&r, query, "prefix", p->prefix);
    }
    nrd_error *err = nrd_cloud_ask(s, h, &r, &reply);
    if (!err) {
        err = nrd_error_wrap(read_page(p, &reply.body), "%s", nrd_cloud_store_place(s)->address);
    }
    nrd_http_reply_fini(&reply);
    return err;
}

nrd_error *nrd_cloud_list(nrd_cloud_store *s, bool folders, nrd_cloud_visit visit, void *user)
{
    page p = {.folders = folders, .prefix = nrd_cloud_store_place(s)->prefix, .visit = visit, .user = user};
    nrd_http_handle *h = NULL;
    nrd_str marker = {0};
    nrd_error *err = nrd_http_handle_new(&h);

    for (int i = 0; !err; i++) {
        err = ask_page(s, h, &p, nrd_str_cstr(&marker));
        if (err || p.is_stopped || (p.next.len == 0 && !p.is_truncated)) {
            break;
        }
        if (p.next.len == 0 || strcmp(nrd_str_cstr(&p.next), nrd_str_cstr(&marker)) == 0 || i >= MAX_PAGES) {
            err = nrd_errorf(NRD_ERR_INTERNAL, "%s: the store's list does not go on", nrd_cloud_store_place(s)->address);
            break;
        }
        nrd_str_clear(&marker);
        nrd_str_put(&marker, &p.next);
        err = nrd_str_error(&marker);
    }
    nrd_http_handle_free(h);
    nrd_str_fini(&marker);
    nrd_str_fini(&p.text);
    nrd_str_fini(&p.name);
    nrd_str_fini(&p.etag);
    nrd_str_fini(&p.next);
    return err;
}
