/* SPDX-License-Identifier: Apache-2.0
 * What nereid run says at the end of an answer. */
#include "tools/run_internal.h"

#include "base/json.h"

#include <stdio.h>

typedef struct seconds {
    double first, rest; /* until the first token, and from there to the last one */
} seconds;

static seconds of(const nrd_perf_metrics *p)
{
    return (seconds){(double)(p->first_token_ns - p->first_scheduled_ns) / 1e9, (double)(p->last_token_ns - p->first_token_ns) / 1e9};
}

void nrd_run_print_rates(const nrd_run_result *r)
{
    const seconds s = of(r->perf);

    fprintf(stderr, "prompt: %zu tokens, %.1f tokens/s; decode: %lld tokens", r->n_prompt, s.first > 0 ? (double)r->n_prompt / s.first : 0,
            (long long)r->n_new);
    if (r->n_new > 1 && s.rest > 0) {
        fprintf(stderr, ", %.1f tokens/s", (double)(r->n_new - 1) / s.rest);
    }
    if (r->perf->n_draft_tokens > 0) {
        fprintf(stderr, "; %d of %d drafted tokens held", r->perf->n_accepted_draft_tokens, r->perf->n_draft_tokens);
    }
    if (r->seed) {
        fprintf(stderr, "; seed %llu", (unsigned long long)*r->seed);
    }
    fputc('\n', stderr);
}

static const char *reason(nrd_finish_reason finish)
{
    return finish == NRD_FINISH_LENGTH ? "length" : finish == NRD_FINISH_CANCELLED ? "cancelled" : "stop";
}

void nrd_run_print_json(const nrd_run_result *r)
{
    const seconds s = of(r->perf);
    nrd_str out = {0};

    nrd_str_puts(&out, "{\"text\":");
    nrd_json_put_string(&out, nrd_str_cstr(r->text), r->text->len);
    if (r->reasoning && r->reasoning->len > 0) {
        nrd_str_puts(&out, ",\"reasoning\":");
        nrd_json_put_string(&out, r->reasoning->data, r->reasoning->len);
    }
    nrd_str_printf(&out, ",\"finish_reason\":\"%s\",\"prompt_tokens\":%zu,\"completion_tokens\":%lld", reason(r->finish), r->n_prompt,
                   (long long)r->n_new);
    if (r->perf->n_draft_tokens > 0) {
        nrd_str_printf(&out, ",\"draft_tokens\":%d,\"accepted_draft_tokens\":%d", r->perf->n_draft_tokens, r->perf->n_accepted_draft_tokens);
    }
    if (r->seed) {
        nrd_str_printf(&out, ",\"seed\":%llu", (unsigned long long)*r->seed);
    }
    nrd_str_puts(&out, ",\"first_token_seconds\":");
    nrd_json_put_double(&out, s.first);
    nrd_str_puts(&out, ",\"decode_seconds\":");
    nrd_json_put_double(&out, s.rest);
    nrd_str_putc(&out, '}');
    puts(nrd_str_cstr(&out));
    fflush(stdout);
    nrd_str_fini(&out);
}
