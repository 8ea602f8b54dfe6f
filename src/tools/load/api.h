/* SPDX-License-Identifier: Apache-2.0
 * tools/load/api.h - what is sent to which address, and what the answers say.
 *
 * Purpose   One table of the protocols that language models are asked by: Triton's generate and infer
 *           (this over gRPC too), and the OpenAI API. Bodies of requests are written and answers are read here; how
 *           bytes travel is told in http_client.h.
 * Owner     Stateless; a piece belongs to its caller.
 * Errors    Bodies: none but memory. Answers: whatever comes, a piece says "error".
 */
#ifndef NRD_TOOLS_LOAD_API_H
#define NRD_TOOLS_LOAD_API_H

#include "base/str.h"
#include "tools/load/grpc_plugin.h"
#include "tools/load/prompts.h"

typedef enum {
    NRD_API_GENERATE,
    NRD_API_GENERATE_STREAM,
    NRD_API_INFER,
    NRD_API_INFER_STREAM, /* gRPC alone */
    NRD_API_COMPLETIONS,
    NRD_API_CHAT,
    NRD_API_RAW, /* a body from a file */
} nrd_api_kind;

typedef struct nrd_api {
    nrd_api_kind kind;
    const char *model;
    const char *path;       /* instead of the protocol's own; RAW: needed */
    bool is_plain;          /* completions, chat: the answer at once instead of a stream */
    bool sends_ids;         /* input_ids of tensorrt_llm; completions: the prompt as token ids */
    bool ignores_end;       /* as many tokens as asked for, whatever the model would do */
    bool asks_usage;        /* the stream's last event is to count tokens */
    const char *least;      /* of texts to infer, with ignores_end: the model's input for the fewest tokens of an answer */
    int32_t end_id, pad_id; /* of sends_ids */
    const char *system;     /* of chat: the message before the prompt, or NULL */
    const char *sampling;   /* members of the request's JSON object, without braces, or NULL */
    const nrd_grpc_ops *grpc; /* infer, infer_stream: messages of gRPC instead of JSON */
} nrd_api;

/* "generate", "chat"…: true, kind set. */
bool nrd_api_find(nrd_api_kind *out, const char *name);
const char *nrd_api_names(void); /* of all, for messages */
/* Several pieces for an answer, so that the time of the first says something. */
bool nrd_api_streams(const nrd_api *a);

/* Path of the URL behind the server's own; of gRPC the method. */
void nrd_api_path(const nrd_api *a, nrd_str *out);
/* Appends the body. Not for RAW. */
nrd_error *nrd_api_body(const nrd_api *a, const nrd_prompt *p, nrd_str *out) NRD_MUST_USE;

typedef struct nrd_piece {
    bool is_error, is_end; /* is_end: the stream has said that nothing follows */
    bool has_tokens;       /* text or ids, not just marks */
    int32_t n_tokens;      /* of the answer so far, where the server counts; else 0 */
    int32_t n_in;          /* tokens of the prompt, where the server counts; else 0 */
    nrd_str text; /* what came, or the error's message; kept between pieces, cleared by read */
} nrd_piece;

/* data[0..n): the body of an answer, or one event of a stream. */
void nrd_api_read(const nrd_api *a, const char *data, size_t n, nrd_piece *out);

#endif
