/* SPDX-License-Identifier: Apache-2.0
 * base/limits.h - what one request, one load order or one connection may ask for, by name.
 *
 * Purpose   One table of fixed limits: name, value, unit, what is limited, what is answered. A request
 *           that exceeds one is refused before memory is taken or time is spent. docs/limits.md is
 *           written from this table by scripts/limits.
 * Units     Stand in each row.
 * Owner     Constants.
 */
#ifndef NRD_BASE_LIMITS_H
#define NRD_BASE_LIMITS_H

/* clang-format off */
/*          name                value        unit         of what                                          who exceeds it gets */
#define NRD_LIMITS(X) \
    X(HTTP_HEAD,                64 << 10,    "bytes",     "the request line and headers of an HTTP request", "431") \
    X(HTTP_HEADERS,             100,         "headers",   "an HTTP request",                                "431") \
    X(JSON_VALUES,              4 << 20,     "values",    "the JSON of a body; those of long tensors do not count", "INVALID_ARG; INTERNAL in /v2, as Triton's reader") \
    X(JSON_DEPTH,               64,          "levels",    "the JSON of a body",                             "INVALID_ARG; INTERNAL in /v2, as Triton's reader") \
    X(TENSOR_RANK,              32,          "dimensions", "a tensor",                                      "INVALID_ARG") \
    X(CLASSES,                  1000000,     "values",    "a row of an output that is asked for as classes", "INVALID_ARG") \
    X(WORKER_JOBS,              4096,        "jobs",      "that wait for a worker thread (bodies to read, answers to write)", "UNAVAILABLE: try later") \
    X(CLIENT_JOBS,              1024,        "jobs",      "of one client's address, of these",              "UNAVAILABLE: try later") \
    X(TEMPLATE_STEPS,           20000000,    "steps",     "rendering a chat template: a node evaluated, a turn of a loop, 64 bytes copied", "INVALID_ARG") \
    X(PROMPTS,                  128,         "prompts",   "a request to /v1/completions",                   "INVALID_ARG") \
    X(CHOICES,                  128,         "choices",   "a request of /v1: n, or best_of where it is more, times the prompts", "INVALID_ARG") \
    X(STOPS,                    16,          "strings",   "stop of a request of /v1 and its like",          "INVALID_ARG") \
    X(BAD_WORDS,                256,         "strings",   "bad_words of a request of /v1",                  "INVALID_ARG") \
    X(BAD_WORD_TOKENS,          32768,       "tokens",    "of these strings",                               "INVALID_ARG") \
    X(INPUTS,                   2048,        "inputs",    "a request, a model's configuration",             "INVALID_ARG") \
    X(OUTPUTS,                  2048,        "outputs",   "a request asks for, a model's configuration",    "INVALID_ARG") \
    X(PARAMETERS,               2048,        "parameters", "a request, a response",                         "INVALID_ARG") \
    X(INFLIGHT_MEMORY,          50,          "%",         "of the machine's memory: what the requests in progress take together; --max-inflight-memory-mb sets bytes", "UNAVAILABLE: try later") \
    X(REQUEST_MEMORY,           25,          "%",         "of that: what one request takes, from its body over tensors between models and the engine's part of it to its answer; --max-request-memory-mb sets bytes", "INVALID_ARG") \
    X(GRPC_RECEIVE_MEMORY,      100,         "%",         "of INFLIGHT_MEMORY: what gRPC's library holds, above all messages that have not come whole; at least one message and 16 MB", "nothing: no more is read; then streams are reset (ENHANCE_YOUR_CALM)") \
    X(ORDER_TEXT,               64 << 10,    "bytes",     "the body of an order over HTTP (settings, shared memory, index, unload), but for one that loads a model", "INVALID_ARG") \
    X(PROMPT_TEXT,              64 << 10,    "bytes",     "a prompt's text before it is tokenized; more where an engine's max_input_len times the vocabulary's longest token is more", "INVALID_ARG") \
    X(TOKENIZER_SCRATCH,        8 << 20,     "bytes",     "what a thread keeps behind a tokenized text",   "nothing: more is given back at once") \
    X(GUIDE_TEXT,               1 << 20,     "bytes",     "the text of one guide",                          "INVALID_ARG") \
    X(GUIDE_NODES,              1 << 20,     "nodes",     "of the automaton that one guide becomes",        "INVALID_ARG") \
    X(GUIDE_MARKS,              4096,        "bytes",     "triggers, excluded texts and ends around one free text of a structural tag", "INVALID_ARG") \
    X(GUIDE_STATES,             32768,       "states",    "that one guide comes to while it runs",          "INVALID_ARG; a running request ends with this error") \
    X(GUIDE_PLACES,             1 << 14,     "places",    "of its automaton that one state of a guide holds", "INVALID_ARG; a running request ends with this error") \
    X(GUIDE_BYTES,              128 << 20,   "bytes",     "the states and masks of one guide",              "INVALID_ARG; a running request ends with this error") \
    X(GUIDE_WORK,               4 << 20,     "places",    "of its automaton that a guide visits for one mask", "INVALID_ARG: the request ends with this error") \
    X(GUIDE_STEP_MS,            5,           "ms",        "that a step waits for masks of guides when its logits are there", "nothing: the sequence sits out steps until its mask is made") \
    X(GUIDE_COMPILE_MS,         5000,        "ms",        "the compile of one guide",                       "INVALID_ARG") \
    X(GUIDES_KEPT,              64,          "guides",    "that an engine keeps compiled",                  "nothing: the longest unused goes") \
    X(GUIDES_KEPT_BYTES,        512 << 20,   "bytes",     "the guides that an engine keeps compiled",       "nothing: the longest unused goes") \
    X(RESPONSES_KEPT,           1024,        "answers",   "of /v1/responses that are kept; --openai-responses-kept sets it", "nothing: the longest unused goes") \
    X(RESPONSES_KEPT_BYTES,     64 << 20,    "bytes",     "the kept answers and what they answer; --openai-responses-kept-mb sets it", "nothing: the longest unused goes") \
    X(BACKGROUND,               256,         "answers",   "of /v1/responses with background under way; --openai-background sets it", "UNAVAILABLE: try later") \
    X(BACKGROUND_BYTES,         64 << 20,    "bytes",     "these and their events; --openai-background-mb sets it", "UNAVAILABLE: try later; events that do not fit are dropped, an answer is not") \
    X(BACKGROUND_EVENTS,        16 << 20,    "bytes",     "the events of one answer in the background", "nothing: the events are dropped, the answer is not") \
    X(FILES_KEPT,               1024,        "files",     "of /v1/files that are kept; --openai-files-kept sets it", "413") \
    X(FILE_BYTES,               200 << 20,   "bytes",     "one uploaded file; --openai-file-mb sets it", "413") \
    X(FILES_KEPT_BYTES,         1 << 30,     "bytes",     "all files of /v1/files; --openai-files-mb sets it", "413; a batch whose answers find no room fails") \
    X(FORM_HEAD,                4096,        "bytes",     "the head of one part of a form; it has at most 32 parts, with names of 511 bytes", "INVALID_ARG") \
    X(BATCH_LINES,              50000,       "lines",     "the file of a batch", "the batch fails: too_many_requests") \
    X(BATCH_LINE,               4 << 20,     "bytes",     "one line of it", "the batch fails: line_too_long") \
    X(BATCH_ERRORS,             100,         "errors",    "that a batch tells of its file", "nothing: the first are told") \
    X(BATCHES,                  1024,        "batches",   "that are kept, ended ones too", "the longest ended one is forgotten; INVALID_ARG where all are under way") \
    X(SOUND_FILE,               100 << 20,   "bytes",     "a sound file",                                   "INVALID_ARG") \
    X(SOUND_SECONDS,            7200,        "s",         "the sound in it",                                "INVALID_ARG") \
    X(IMAGES,                   64,          "pictures",  "a request",                                      "INVALID_ARG") \
    X(IMAGE_FILE,               20 << 20,    "bytes",     "a picture as it came",                           "INVALID_ARG") \
    X(IMAGE_SIDE,               16384,       "pixels",    "a side of a picture",                            "INVALID_ARG") \
    X(IMAGE_PIXELS,             64 << 20,    "pixels",    "all of a picture",                               "INVALID_ARG") \
    X(VIDEO_FRAMES,             768,         "frames",    "all videos of a request",                        "INVALID_ARG") \
    X(PICTURES_WAITING,         1024,        "requests",  "with pictures that wait to be read, of an instance of tensorrt_llm; max_queue_size where that is less", "UNAVAILABLE: try later") \
    X(PICTURE_ROWS,             256 << 20,   "bytes",     "the rows of pictures that an engine keeps; picture_cache_bytes sets it", "nothing: the longest unused goes") \
    X(GRPC_HANDSHAKE_SECS,      10,          "s",         "from a gRPC connection to the client's first HTTP/2 settings, TLS included", "the connection is closed") \
    X(TLS_HANDSHAKE_SECS,       10,          "s",         "from the connection to the end of the TLS handshake, HTTP and metrics", "the connection is closed, within 5 s more") \
    X(CACHE_SALT,               1024,        "bytes",     "cache_salt, of /v1 and as a parameter of tensorrt_llm", "INVALID_ARG") \
    X(ANSWER_TEXT,              512 << 20,   "bytes",     "the JSON of one answer; binary outputs do not count", "INVALID_ARG") \
    X(GRPC_MESSAGE_MEMORY,      512 << 20,   "bytes",     "what the fields of one gRPC message take",       "INVALID_ARG") \
    X(REMOTE_OBJECTS,           100000,      "objects",   "a model's folder, or a repository's folders, in S3, GCS or Azure", "the load is refused") \
    X(INSTANCES,                1024,        "instances", "all instance groups of a model, times their GPUs", "the load is refused") \
    X(REQUEST_ROWS,             4096,        "rows",      "the batch of a tensorrt_llm request",            "INVALID_ARG") \
    X(RETURN_SEQUENCES,         1024,        "sequences", "num_return_sequences of one row",                "INVALID_ARG") \
    X(REQUEST_SEQUENCES,        4096,        "sequences", "rows of a tensorrt_llm request, times their num_return_sequences", "INVALID_ARG to the rows that are too many") \
    X(LOGIT_BIAS,               4096,        "tokens",    "that logit_bias of a request names; embedding_bias with more non-zero values takes a vector of the vocabulary", "INVALID_ARG") \
    X(TEXT_ROWS,                65536,       "rows",      "the batch of a preprocessing request, the sequences of a postprocessing request", "INVALID_ARG") \
    X(TEXT_ELEMENTS,            64 << 20,    "elements",  "one output of preprocessing: rows, times the longest or the vocabulary", "INVALID_ARG") \
    X(SWITCHED_MODELS,          256,         "models",    "that come and go in one server (--models-file, /api/pull; nereid serve takes 64)", "the server does not start; a pull is refused") \
    X(SWITCH_WAITING,           16384,       "requests",  "that wait for a model to be loaded",            "UNAVAILABLE: try later") \
    X(PULLS,                    4,           "models",    "that clients have pulled or removed at the same time (/api/pull)", "UNAVAILABLE: try later")
/* clang-format on */

#define NRD_LIMIT_ENUM_(name, value, unit, what, answer) NRD_LIMIT_##name = (value),
enum { NRD_LIMITS(NRD_LIMIT_ENUM_) };
#undef NRD_LIMIT_ENUM_

#endif
