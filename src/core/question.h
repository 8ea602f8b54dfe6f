/* SPDX-License-Identifier: Apache-2.0
 * core/question.h - what a request asks, as bytes: two requests with the same bytes get the same response.
 *
 * Purpose   The response cache hashes these bytes into a key, keeps them beside the response, and compares
 *           them when it finds one under the key: a hash may be that of two requests.
 * Owner     A counted buffer (core/memory.h); the bytes count as memory of the request.
 * Errors    NULL: no memory, above the request's limit, or an input that is not readable from here.
 *
 * The bytes are the model's name and version, the request's parameters, which models may read as they
 * read inputs (pictures come in one), the inputs (name, type, shape, content), both in the order of their
 * names, and, when a request asks for some of the outputs only, their names. */
#ifndef NRD_CORE_QUESTION_H
#define NRD_CORE_QUESTION_H

#include "core/memory.h"
#include "core/objects.h"

/* Of a prepared request; its inputs are read once. `head`: n_head bytes in front of all others. */
nrd_buf *nrd_question_new(const nrd_request *r, const void *head, size_t n_head);

#endif
