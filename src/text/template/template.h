/* SPDX-License-Identifier: Apache-2.0
 * text/template/template.h - chat templates: the part of Jinja that model templates use.
 *
 * Purpose   Compiles a template and renders it over JSON values with the results of Jinja 3.1 as
 *           transformers sets it up: trim_blocks, lstrip_blocks, loop controls, generation blocks,
 *           tojson without HTML escapes, raise_exception, strftime_now, an immutable sandbox.
 * Owner     A compiled template is immutable: any number of threads may render it at once.
 * Units     Text is UTF-8; lengths and slices inside templates count code points, as in Python.
 * Errors    INVALID_ARG with the template's line: a syntax error, a wrong operation, a limit that
 *           was passed, or the text that the template gave to raise_exception. UNSUPPORTED names a
 *           construct, filter, test or method that is not implemented.
 * Limits    nrd_template_limits: a template is foreign code. It can neither loop for ever, nor fill
 *           the memory, nor exhaust the stack, and it reaches nothing but its variables.
 * Lifetime  compile/free; the output belongs to the caller.
 * Sources   Jinja 3.1 template designer documentation; transformers' chat template documentation;
 *           the Python 3 language reference for operators, str methods and json.dumps.
 */
#ifndef NRD_TEXT_TEMPLATE_TEMPLATE_H
#define NRD_TEXT_TEMPLATE_TEMPLATE_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct nrd_template nrd_template;

typedef struct nrd_template_limits {
    uint64_t max_steps;      /* 0: NRD_LIMIT_TEMPLATE_STEPS; a node evaluated, a turn of a loop, 64 bytes copied */
    size_t max_memory_bytes; /* 0: 256 MiB; all values of one rendering */
    size_t max_output_bytes; /* 0: 64 MiB */
} nrd_template_limits;

/* Templates over 1 MiB are refused. */
nrd_error *nrd_template_compile(nrd_template **out, const char *text, size_t n) NRD_MUST_USE;
void nrd_template_free(nrd_template *t);

/* Appends the rendered text. `vars`: an object, its members are the variables; NULL: none. `now`:
 * what strftime_now sees, local time; 0: the clock's. `limits` may be NULL. On error `out` is as
 * before. */
nrd_error *nrd_template_render(const nrd_template *t, const nrd_json *vars, time_t now,
                               const nrd_template_limits *limits, nrd_str *out) NRD_MUST_USE;

/* Does the template mention this name as a variable or attribute ("tools")? */
bool nrd_template_mentions(const nrd_template *t, const char *name);

#endif
