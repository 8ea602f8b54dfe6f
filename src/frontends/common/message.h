/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/message.h - documents of the core as JSON trees.
 *
 * Purpose   The core answers questions about models with text; this reads it.
 * Owner     Stateless; any thread.
 */
#ifndef NRD_FRONTENDS_COMMON_MESSAGE_H
#define NRD_FRONTENDS_COMMON_MESSAGE_H

#include "base/json.h"
#include "triton/core/tritonserver.h"

/* Takes e and m always. The caller frees the document. */
nrd_error *nrd_from_message(nrd_json_doc **out, TRITONSERVER_Error *e,
                            TRITONSERVER_Message *m) NRD_MUST_USE;

#endif
