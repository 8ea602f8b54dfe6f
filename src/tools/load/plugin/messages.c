/* SPDX-License-Identifier: Apache-2.0
 * Triton's messages of gRPC: see messages.h. */
#include "tools/load/plugin/messages.h"

#include "grpc_service.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef Inference__ModelInferRequest request;
typedef Inference__ModelInferRequest__InferInputTensor input;
typedef Inference__ModelInferRequest__ParametersEntry entry;
typedef Inference__ModelInferResponse response;
typedef Inference__ModelStreamInferResponse stream_response;

enum { MAX_INPUTS = 8 };

/* [length][bytes], as elements of BYTES are sent; NULL: no memory. */
static uint8_t *put_length(const nrd_grpc_tensor *t)
{
    const uint32_t n = (uint32_t)t->n_data;
    uint8_t *p = malloc(t->n_data + 4);
    if (p) {
        for (int i = 0; i < 4; i++) {
            p[i] = (uint8_t)(n >> 8 * i);
        }
        memcpy(p + 4, t->data, t->n_data);
    }
    return p;
}

char *nrd_grpc_request(const char *model, const nrd_grpc_tensor *inputs, size_t n, bool is_stream, size_t *out_n)
{
    request r = INFERENCE__MODEL_INFER_REQUEST__INIT;
    input tensors[MAX_INPUTS], *pointers[MAX_INPUTS];
    int64_t shapes[MAX_INPUTS][2];
    ProtobufCBinaryData raw[MAX_INPUTS];
    uint8_t *made[MAX_INPUTS] = {0}, *out = NULL;
    Inference__InferParameter yes = INFERENCE__INFER_PARAMETER__INIT;
    entry mark = INFERENCE__MODEL_INFER_REQUEST__PARAMETERS_ENTRY__INIT, *marks[1] = {&mark};

    if (n > MAX_INPUTS) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        const bool is_bytes = !strcmp(inputs[i].type, "BYTES");
        tensors[i] = (input)INFERENCE__MODEL_INFER_REQUEST__INFER_INPUT_TENSOR__INIT;
        shapes[i][0] = 1;
        shapes[i][1] = inputs[i].n;
        tensors[i].name = (char *)(uintptr_t)inputs[i].name;
        tensors[i].datatype = (char *)(uintptr_t)inputs[i].type;
        tensors[i].shape = shapes[i];
        tensors[i].n_shape = 2;
        pointers[i] = &tensors[i];
        raw[i].data = (uint8_t *)(uintptr_t)inputs[i].data;
        raw[i].len = inputs[i].n_data;
        if (is_bytes) {
            made[i] = put_length(&inputs[i]);
            if (!made[i]) {
                goto done;
            }
            raw[i].data = made[i];
            raw[i].len += 4;
        }
    }
    r.model_name = (char *)(uintptr_t)model;
    r.inputs = pointers;
    r.n_inputs = r.n_raw_input_contents = n;
    r.raw_input_contents = raw;
    if (is_stream) { /* a decoupled model's last answer may have no outputs: without this it would not be sent */
        yes.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM;
        yes.bool_param = true;
        mark.key = (char *)(uintptr_t) "triton_enable_empty_final_response";
        mark.value = &yes;
        r.parameters = marks;
        r.n_parameters = 1;
    }
    *out_n = inference__model_infer_request__get_packed_size(&r);
    out = malloc(*out_n ? *out_n : 1);
    if (out) {
        inference__model_infer_request__pack(&r, out);
    }
done:
    for (size_t i = 0; i < n; i++) {
        free(made[i]);
    }
    return (char *)out;
}

static void give_outputs(const response *r, void (*output)(void *arg, const nrd_grpc_output *o), void *arg)
{
    for (size_t i = 0; i < r->n_outputs && i < r->n_raw_output_contents; i++) {
        const nrd_grpc_output o = {r->outputs[i]->name, r->outputs[i]->datatype, r->raw_output_contents[i].data,
                                   r->raw_output_contents[i].len};
        output(arg, &o);
    }
}

const char *nrd_grpc_read(const char *data, size_t n, bool is_stream,
                          void (*output)(void *arg, const nrd_grpc_output *o), void *arg, char *why, size_t n_why)
{
    const char *wrong = NULL;
    if (is_stream) {
        stream_response *s = inference__model_stream_infer_response__unpack(NULL, n, (const uint8_t *)data);
        if (!s) {
            wrong = "the answer is no ModelStreamInferResponse";
        } else if (s->error_message && s->error_message[0]) {
            snprintf(why, n_why, "%s", s->error_message);
            wrong = why;
        } else if (s->infer_response) {
            give_outputs(s->infer_response, output, arg);
        }
        if (s) {
            inference__model_stream_infer_response__free_unpacked(s, NULL);
        }
        return wrong;
    }
    response *r = inference__model_infer_response__unpack(NULL, n, (const uint8_t *)data);
    if (!r) {
        return "the answer is no ModelInferResponse";
    }
    give_outputs(r, output, arg);
    inference__model_infer_response__free_unpacked(r, NULL);
    return NULL;
}

char *nrd_grpc_metadata(const char *model, size_t *out_n)
{
    Inference__ModelMetadataRequest r = INFERENCE__MODEL_METADATA_REQUEST__INIT;
    r.name = (char *)(uintptr_t)model;
    *out_n = inference__model_metadata_request__get_packed_size(&r);
    uint8_t *out = malloc(*out_n ? *out_n : 1);
    if (out) {
        inference__model_metadata_request__pack(&r, out);
    }
    return (char *)out;
}

const char *nrd_grpc_read_metadata(const char *data, size_t n, void (*give)(void *arg, const char *name), void *arg)
{
    Inference__ModelMetadataResponse *r = inference__model_metadata_response__unpack(NULL, n, (const uint8_t *)data);
    if (!r) {
        return "the answer is no ModelMetadataResponse";
    }
    for (size_t i = 0; i < r->n_inputs; i++) {
        give(arg, r->inputs[i]->name);
    }
    inference__model_metadata_response__free_unpacked(r, NULL);
    return NULL;
}

bool nrd_grpc_is_last(const uint8_t *data, size_t n)
{
    stream_response *s = inference__model_stream_infer_response__unpack(NULL, n, data);
    bool is_last = !s || !s->infer_response || (s->error_message && s->error_message[0]);
    for (size_t i = 0; !is_last && i < s->infer_response->n_parameters; i++) {
        const Inference__ModelInferResponse__ParametersEntry *p = s->infer_response->parameters[i];
        is_last = p->key && p->value && !strcmp(p->key, "triton_final_response") && p->value->bool_param;
    }
    if (s) {
        inference__model_stream_infer_response__free_unpacked(s, NULL);
    }
    return is_last;
}
