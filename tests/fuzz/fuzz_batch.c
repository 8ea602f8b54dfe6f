/* SPDX-License-Identifier: Apache-2.0
 * Files of batches: the first byte is the limit of a line, the rest the file. Lines and their places are those that a plain
 * search finds; what is accepted as a request has its fields; answers that are made of it are read again, with their ids. */
#include "frontends/openai/batch_line.h"
#include "json_swap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_INPUT = 1 << 17 };

static bool is_blank(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!strchr(" \t\r", p[i]) || !p[i]) {
            return false;
        }
    }
    return true;
}

static void check_request(const nrd_batch_text *t, nrd_str *answers, nrd_batch_ids *ids)
{
    nrd_batch_line line;
    nrd_error *err = nrd_batch_line_read(&line, t, -1);
    bool fresh;

    if (err && (!nrd_error_reason(err) || t->n == 0)) {
        abort();
    }
    if (!err && (!line.custom_id || !line.custom_id[0] || !nrd_batch_endpoint(line.endpoint) ||
                 !nrd_json_is(line.body, NRD_JSON_OBJECT) || nrd_json_bool(nrd_json_get(line.body, "stream"), false))) {
        abort();
    }
    if (line.custom_id) {
        nrd_error_free(nrd_batch_ids_add(ids, line.custom_id, &fresh));
        if (!nrd_batch_ids_have(ids, line.custom_id)) {
            abort();
        }
    }
    nrd_str body = {0};
    if (!err) {
        nrd_json_put(&body, line.body, -1);
        nrd_error_free(nrd_batch_put_answer(answers, NULL, line.custom_id, 200, &body));
    } else {
        nrd_error_free(nrd_batch_put_error(answers, NULL, line.custom_id, nrd_error_reason(err), nrd_error_message(err)));
    }
    nrd_str_fini(&body);
    nrd_error_free(err);
    nrd_batch_line_fini(&line);
}

/* Every id of the requests is one of the answers. */
static void check_answers(const nrd_str *answers, const nrd_batch_ids *asked, int n_lines)
{
    const int fd = memfd_create("answers", 0);
    nrd_batch_ids found = {.n = 0};
    nrd_batch_counts counts = {0};
    if (fd < 0 || (answers->len > 0 && write(fd, answers->data, answers->len) != (ssize_t)answers->len)) {
        abort();
    }
    nrd_error_free(nrd_batch_ids_read(&found, fd, &counts, NULL, NULL));
    if (found.n != asked->n || counts.ok + counts.failed > n_lines || counts.nameless > counts.failed) {
        abort();
    }
    nrd_batch_ids_fini(&found);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0 || n > MAX_INPUT) {
        return 0;
    }
    const size_t max = 1024u + 64u * data[0];
    const char *text = (const char *)data + 1, *p = text, *end = text + n - 1;
    const int fd = memfd_create("lines", 0);
    nrd_batch_reader r = {.fd = fd, .max_line = max};
    nrd_batch_ids ids = {.n = 0};
    nrd_str answers = {0};
    int n_lines = 0;
    bool more = true;

    if (fd < 0 || write(fd, text, n - 1) != (ssize_t)(n - 1)) {
        abort();
    }
    while (more) {
        nrd_batch_text t;
        const char *eol = NULL;
        if (nrd_batch_next(&r, &t, NULL, &more)) {
            abort();
        }
        for (; p < end; p = eol + 1) { /* the next line that is not empty */
            eol = memchr(p, '\n', (size_t)(end - p));
            eol = eol ? eol : end;
            if (!is_blank(p, (size_t)(eol - p))) {
                break;
            }
        }
        if (more != (p < end)) {
            abort();
        }
        if (more) {
            const size_t len = (size_t)(eol - p);
            if (t.offset != (uint64_t)(p - text) || t.too_long != (len > max) || (!t.too_long && t.n != len) || t.n > len ||
                memcmp(t.text, p, t.too_long && t.n > 1024 ? 1024 : t.n) != 0) {
                abort();
            }
            check_request(&t, &answers, &ids);
            n_lines++;
            p = eol + 1;
        }
    }
    check_answers(&answers, &ids, n_lines);
    nrd_batch_reader_fini(&r);
    nrd_batch_ids_fini(&ids);
    nrd_str_fini(&answers);
    close(fd);
    return 0;
}
