/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/openai/batch_record.h"

#include "base/clock.h"
#include "base/limits.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PAIRS = 16, MAX_KEY = 64, MAX_VALUE = 512, MAX_WINDOW_SECS = 7 * 86400 };

/* The names of the states, and where their times are told. */
static const char *const states[][2] = {
    {"validating", NULL},             {"in_progress", "in_progress_at"}, {"finalizing", "finalizing_at"},
    {"cancelling", "cancelling_at"}, {"completed", "completed_at"},     {"failed", "failed_at"},
    {"cancelled", "cancelled_at"},   {"expired", "expired_at"},
};

bool nrd_batch_has_ended(const nrd_batch_record *b)
{
    return b->state >= NRD_BATCH_COMPLETED;
}

void nrd_batch_reach(nrd_batch_record *b, nrd_batch_state s)
{
    b->state = s;
    b->at[s] = (int64_t)(nrd_wall_ns() / 1000000000u);
}

void nrd_batch_add_fault(nrd_batch_record *b, const char *code, const char *message, const char *field, uint64_t line)
{
    if (b->n_faults++ >= NRD_LIMIT_BATCH_ERRORS) {
        return;
    }
    nrd_str_puts(&b->faults, b->faults.len ? ",{\"code\":" : "{\"code\":");
    nrd_json_put_cstr(&b->faults, code);
    nrd_str_puts(&b->faults, ",\"message\":");
    nrd_json_put_cstr(&b->faults, message);
    nrd_str_puts(&b->faults, ",\"param\":");
    if (field) {
        nrd_json_put_cstr(&b->faults, field);
    } else {
        nrd_str_puts(&b->faults, "null");
    }
    nrd_str_puts(&b->faults, ",\"line\":");
    if (line > 0) {
        nrd_str_printf(&b->faults, "%llu}", (unsigned long long)line);
    } else {
        nrd_str_puts(&b->faults, "null}");
    }
}

/* ---- writing ---- */

static void put_text(nrd_str *out, const char *name, const char *text)
{
    nrd_str_printf(out, ",\"%s\":", name);
    if (text[0]) {
        nrd_json_put_cstr(out, text);
    } else {
        nrd_str_puts(out, "null");
    }
}

void nrd_batch_put(nrd_str *out, const nrd_batch_record *b, bool inside)
{
    nrd_str_printf(out, "{\"id\":\"%s\",\"object\":\"batch\",\"endpoint\":\"%s\"", b->id, nrd_batch_endpoint(b->endpoint));
    put_text(out, "input_file_id", b->input);
    put_text(out, "output_file_id", b->output);
    put_text(out, "error_file_id", b->errors_file);
    put_text(out, "completion_window", b->window);
    nrd_str_printf(out, ",\"status\":\"%s\",\"created_at\":%lld,\"expires_at\":%lld", states[b->state][0], (long long)b->created,
                   (long long)b->expires);
    for (int s = 1; s < NRD_BATCH_N_STATES; s++) {
        nrd_str_printf(out, b->at[s] ? ",\"%s\":%lld" : ",\"%s\":null", states[s][1], (long long)b->at[s]);
    }
    nrd_str_printf(out, ",\"request_counts\":{\"total\":%lld,\"completed\":%lld,\"failed\":%lld}", (long long)b->total,
                   (long long)b->completed, (long long)b->failed);
    const nrd_batch_usage *u = &b->usage;
    nrd_str_printf(out, ",\"usage\":{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu},\"output_tokens\":%llu,"
                        "\"output_tokens_details\":{\"reasoning_tokens\":%llu},\"total_tokens\":%llu}",
                   (unsigned long long)u->input, (unsigned long long)u->cached, (unsigned long long)u->output,
                   (unsigned long long)u->reasoning, (unsigned long long)(u->input + u->output));
    nrd_str_printf(out, ",\"metadata\":%s", b->metadata.len ? nrd_str_cstr(&b->metadata) : "null");
    if (b->faults.len > 0 || b->faults.no_memory) {
        nrd_str_puts(out, ",\"errors\":{\"object\":\"list\",\"data\":[");
        nrd_str_put(out, &b->faults);
        nrd_str_puts(out, "]}");
    } else {
        nrd_str_puts(out, ",\"errors\":null");
    }
    if (inside) {
        nrd_str_printf(out, ",\"owner\":\"%s\",\"output_draft\":\"%s\",\"error_draft\":\"%s\",\"output_secs\":%lld", b->owner,
                       b->output_draft, b->error_draft, (long long)b->output_secs);
    }
    nrd_str_putc(out, '}');
}

/* ---- reading what was written ---- */

static void take_text(const nrd_json *record, const char *name, char *out, size_t n)
{
    snprintf(out, n, "%s", nrd_json_get_str(record, name, ""));
}

bool nrd_batch_take(nrd_batch_record *b, const nrd_json *r)
{
    const nrd_json *counts = nrd_json_get(r, "request_counts");
    const nrd_json *metadata = nrd_json_get(r, "metadata"), *faults = nrd_json_get(nrd_json_get(r, "errors"), "data");

    memset(b, 0, sizeof *b);
    take_text(r, "id", b->id, sizeof b->id);
    take_text(r, "owner", b->owner, sizeof b->owner);
    take_text(r, "input_file_id", b->input, sizeof b->input);
    take_text(r, "output_file_id", b->output, sizeof b->output);
    take_text(r, "error_file_id", b->errors_file, sizeof b->errors_file);
    take_text(r, "output_draft", b->output_draft, sizeof b->output_draft);
    take_text(r, "error_draft", b->error_draft, sizeof b->error_draft);
    take_text(r, "completion_window", b->window, sizeof b->window);
    b->endpoint = nrd_batch_endpoint_of(nrd_json_get_str(r, "endpoint", ""));
    b->state = NRD_BATCH_N_STATES;
    for (int s = 0; s < NRD_BATCH_N_STATES; s++) {
        b->state = !strcmp(nrd_json_get_str(r, "status", ""), states[s][0]) ? (nrd_batch_state)s : b->state;
        b->at[s] = s > 0 ? nrd_json_get_int(r, states[s][1], 0) : 0;
    }
    b->created = nrd_json_get_int(r, "created_at", 0);
    b->expires = nrd_json_get_int(r, "expires_at", 0);
    b->total = nrd_json_get_int(counts, "total", 0);
    b->completed = nrd_json_get_int(counts, "completed", 0);
    b->failed = nrd_json_get_int(counts, "failed", 0);
    nrd_batch_add_usage(&b->usage, r); /* it stands there as in an answer */
    b->output_secs = nrd_json_get_int(r, "output_secs", 0);
    if (nrd_json_is(metadata, NRD_JSON_OBJECT)) {
        nrd_json_put(&b->metadata, metadata, -1);
    }
    for (size_t i = 0; i < nrd_json_len(faults); i++) {
        nrd_str_puts(&b->faults, i ? "," : "");
        nrd_json_put(&b->faults, nrd_json_at(faults, i), -1);
        b->n_faults++;
    }
    if (!nrd_file_is_id(b->id, "batch_") || b->endpoint < 0 || b->state == NRD_BATCH_N_STATES || b->metadata.no_memory ||
        b->faults.no_memory) {
        nrd_batch_record_fini(b);
        return false;
    }
    return true;
}

/* ---- reading a request ---- */

static nrd_error *bad(const char *field, const char *message)
{
    return nrd_error_at(nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s", field, message), field);
}

static nrd_error *read_window(nrd_batch_record *b, const nrd_json *v)
{
    static const char *const message = "must be a number with s, m, h or d, up to 7d; OpenAI's clients send 24h";
    const char *text = nrd_json_str(v, "");
    const size_t n = strlen(text);
    char digits[NRD_BATCH_WINDOW];
    long long count = 0;

    if (!nrd_json_is(v, NRD_JSON_STRING) || n < 2 || n >= sizeof digits || strspn(text, "0123456789") != n - 1) {
        return bad("completion_window", message);
    }
    memcpy(digits, text, n - 1);
    digits[n - 1] = '\0';
    const char unit = text[n - 1];
    const long long secs = unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : unit == 'd' ? 86400 : 0;
    if (secs == 0 || !nrd_parse_i64(digits, &count) || count < 1 || count > MAX_WINDOW_SECS / secs) {
        return bad("completion_window", message);
    }
    snprintf(b->window, sizeof b->window, "%s", text);
    b->created = (int64_t)(nrd_wall_ns() / 1000000000u);
    b->expires = b->created + count * secs;
    return NULL;
}

static nrd_error *read_metadata(nrd_batch_record *b, const nrd_json *v)
{
    if (!v || v->type == NRD_JSON_NULL) {
        return NULL;
    }
    if (v->type != NRD_JSON_OBJECT || v->n > MAX_PAIRS) {
        return bad("metadata", "must be an object of at most 16 strings");
    }
    for (size_t i = 0; i < v->n; i++) {
        if (v->child[i].key_len > MAX_KEY || v->child[i].type != NRD_JSON_STRING || v->child[i].n > MAX_VALUE) {
            return bad("metadata", "names have at most 64 bytes, values are strings of at most 512");
        }
    }
    nrd_json_put(&b->metadata, v, -1);
    return nrd_str_error(&b->metadata);
}

static nrd_error *read_expiry(nrd_batch_record *b, const nrd_json *v)
{
    if (!v || v->type == NRD_JSON_NULL) {
        return NULL;
    }
    b->output_secs = nrd_json_get_int(v, "seconds", -1);
    if (strcmp(nrd_json_get_str(v, "anchor", ""), "created_at") != 0 || b->output_secs < 3600 || b->output_secs > 2592000) {
        return bad("output_expires_after", "must be {\"anchor\": \"created_at\", \"seconds\": 3600 to 2592000}");
    }
    return NULL;
}

nrd_error *nrd_batch_read(nrd_batch_record *b, const nrd_json *body)
{
    static const char *const known[] = {"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"};
    const nrd_json *input = nrd_json_get(body, "input_file_id"), *endpoint = nrd_json_get(body, "endpoint");

    memset(b, 0, sizeof *b);
    for (size_t i = 0; i < body->n; i++) {
        bool found = false;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
            found = found || !strcmp(body->child[i].key, known[k]);
        }
        if (!found) {
            return nrd_error_at(nrd_errorf(NRD_ERR_INVALID_ARG, "%.64s: a batch has no such field", body->child[i].key),
                                body->child[i].key);
        }
    }
    if (!nrd_json_is(input, NRD_JSON_STRING) || !input->str[0]) {
        return bad("input_file_id", "must be the id of an uploaded file");
    }
    snprintf(b->input, sizeof b->input, "%s", nrd_file_is_id(input->str, "file-") ? input->str : "-");
    b->endpoint = nrd_batch_endpoint_of(nrd_json_str(endpoint, ""));
    if (b->endpoint < 0) {
        return nrd_error_at(nrd_errorf(NRD_ERR_INVALID_ARG, "endpoint: must be %s", nrd_batch_endpoints()), "endpoint");
    }
    nrd_error *err = read_window(b, nrd_json_get(body, "completion_window"));
    err = err ? err : read_metadata(b, nrd_json_get(body, "metadata"));
    err = err ? err : read_expiry(b, nrd_json_get(body, "output_expires_after"));
    if (err) {
        nrd_batch_record_fini(b);
    }
    return err;
}

void nrd_batch_record_fini(nrd_batch_record *b)
{
    nrd_str_fini(&b->metadata);
    nrd_str_fini(&b->faults);
}
