/* SPDX-License-Identifier: Apache-2.0
 * GET /openapi.json: what these endpoints take and give, for tools that read OpenAPI 3.1.
 *
 * The text below writes ' for " (JSON has no other use for it here). Fields that are taken without
 * effect are described as anything, since nothing about them is checked. tests/e2e/test_openapi.py
 * holds live answers against it. */
#include "frontends/openai/internal.h"

static const char *const parts[] = {
    "{'openapi':'3.1.0','info':{'title':'Nereid','version':'" NRD_VERSION "','description':"
    "'The OpenAI API for the language models of this server. Fields that are not listed are accepted, have "
    "no effect and are named in the header x-nereid-warning.'},",
    "'paths':{"
    "'/v1/models':{'get':{'operationId':'listModels','summary':'Models that are ready','responses':{"
    "'200':{'description':'The models','content':{'application/json':{'schema':"
    "{'$ref':'#/components/schemas/ModelList'}}}},"
    "'401':{'$ref':'#/components/responses/Error'}}}},",
    "'/v1/models/{model}':{'get':{'operationId':'retrieveModel','summary':'One model','parameters':["
    "{'name':'model','in':'path','required':true,'schema':{'type':'string','minLength':1}}],'responses':{"
    "'200':{'description':'The model','content':{'application/json':{'schema':"
    "{'$ref':'#/components/schemas/Model'}}}},"
    "'401':{'$ref':'#/components/responses/Error'},'404':{'$ref':'#/components/responses/Error'},"
    "'503':{'$ref':'#/components/responses/Error'}}}},",
#define POST(path, id, summary, request, answers)                                                  \
    "'" path "':{'post':{'operationId':'" id "','summary':'" summary "','requestBody':{"           \
    "'required':true,'content':{'application/json':{'schema':{'$ref':'#/components/schemas/"       \
    request "'}}}},'responses':{'200':{'description':'The answer','content':{" answers "}},"       \
    "'400':{'$ref':'#/components/responses/Error'},'401':{'$ref':'#/components/responses/Error'}," \
    "'404':{'$ref':'#/components/responses/Error'},'413':{'$ref':'#/components/responses/Error'}," \
    "'429':{'$ref':'#/components/responses/Error'},'503':{'$ref':'#/components/responses/Error'}}}}"
#define ANSWER(schema) "'application/json':{'schema':{'$ref':'#/components/schemas/" schema "'}}"
#define STREAM                                                                                     \
    ",'text/event-stream':{'schema':{'type':'string','description':'With stream: true, events of " \
    "one line \\\"data: CHUNK\\\" each; the last is \\\"data: [DONE]\\\"'}}"
    POST("/v1/chat/completions", "createChatCompletion", "Messages in, a message out", "ChatRequest",
         ANSWER("ChatAnswer") STREAM) ",",
    POST("/v1/completions", "createCompletion", "Text or token ids in, text out", "CompletionRequest",
         ANSWER("CompletionAnswer") STREAM) ",",
    POST("/v1/embeddings", "createEmbedding", "Texts or token ids in, vectors out", "EmbeddingRequest",
         ANSWER("EmbeddingAnswer")) ",",
    POST("/v1/load_lora_adapter", "loadLoraAdapter",
         "A folder on the machine of the server becomes a model; needs --allow-lora-loading", "LoadAdapterRequest",
         "'text/plain':{'schema':{'type':'string'}}") ",",
    POST("/v1/unload_lora_adapter", "unloadLoraAdapter", "The name means nothing any more", "UnloadAdapterRequest",
         "'text/plain':{'schema':{'type':'string'}}") ",",
    POST("/tokenize", "tokenize", "Text or messages in, token ids out", "TokenizeRequest",
         ANSWER("TokenizeAnswer")) ",",
    POST("/detokenize", "detokenize", "Token ids in, text out", "DetokenizeRequest",
         ANSWER("DetokenizeAnswer")) "},",
    /* ---- shared ---- */
    "'security':[{},{'key':[]}],"
    "'components':{'securitySchemes':{'key':{'type':'http','scheme':'bearer'}},"
    "'responses':{'Error':{'description':'What is wrong','content':{'application/json':{'schema':"
    "{'$ref':'#/components/schemas/Error'}}}}},'schemas':{"
    "'Error':{'type':'object','required':['error'],'additionalProperties':false,'properties':{'error':"
    "{'type':'object','required':['message','type','param','code'],'additionalProperties':false,"
    "'properties':{'message':{'type':'string'},'type':{'enum':['invalid_request_error',"
    "'authentication_error','not_found_error','rate_limit_error','server_error']},"
    "'param':{'type':['string','null']},'code':{'type':['string','null']}}}}},"
    "'Model':{'type':'object','required':['id','object','created','owned_by'],'properties':{"
    "'id':{'type':'string'},'object':{'const':'model'},'created':{'type':'integer'},"
    "'owned_by':{'type':'string'},'parent':{'type':'string','description':'Of a LoRA adapter: its model'},"
    "'root':{'type':'string','description':'Of a LoRA adapter: its folder'},'sampling':{'type':'object','description':'In force where a request "
    "does not say','required':['temperature','top_p','min_p','top_k','repetition_penalty'],"
    "'additionalProperties':{'type':'number'}}}},"
    "'ModelList':{'type':'object','required':['object','data'],'properties':{'object':{'const':'list'},"
    "'data':{'type':'array','items':{'$ref':'#/components/schemas/Model'}}}},"
    "'TokenIds':{'type':'array','items':{'type':'integer','minimum':0}},",
    /* ---- what both ways of generating take ---- */
#define NUMBER(name, low, high) \
    "'" name "':{'type':['number','null'],'minimum':" low ",'maximum':" high "},"
#define COUNT(name, low, high) \
    "'" name "':{'type':['integer','null'],'minimum':" low ",'maximum':" high "},"
#define FLAG(name) "'" name "':{'type':['boolean','null']},"
    "'Sampling':{'type':'object','required':['model'],'properties':{"
    "'model':{'type':'string','description':'As /v1/models lists it'},"
    NUMBER("temperature", "0", "2") NUMBER("top_p", "0", "1") NUMBER("min_p", "0", "1")
    NUMBER("presence_penalty", "-2", "2") NUMBER("frequency_penalty", "-2", "2")
    NUMBER("repetition_penalty", "0.01", "10") COUNT("top_k", "-1", "2147483647")
    COUNT("max_tokens", "1", "16777216") COUNT("min_tokens", "0", "16777216") COUNT("n", "1", "128")
    COUNT("priority", "0", "4294967295") FLAG("ignore_eos") FLAG("skip_special_tokens")
    FLAG("include_stop_str_in_output") FLAG("stream") FLAG("return_timings")
    "'cache_salt':{'type':['string','null'],'minLength':1,'maxLength':1024},"
    "'stream_options':{'type':['object','null'],'description':'Only with stream: true','properties':{"
    "'include_usage':{'type':['boolean','null']}}},"
    "'seed':{'type':['integer','null'],'minimum':-9223372036854775808,'maximum':18446744073709551615},"
    "'stop':{'anyOf':[{'type':'string'},{'type':'null'},{'type':'array','maxItems':16,"
    "'items':{'type':'string'}}]},"
    "'stop_token_ids':{'anyOf':[{'type':'null'},{'type':'array','maxItems':64,'items':"
    "{'type':'integer','minimum':0}}]},"
    "'logit_bias':{'type':['object','null'],'description':'Token ids and numbers',"
    "'propertyNames':{'pattern':'^[0-9]+$'},"
    "'additionalProperties':{'type':'number','minimum':-100,'maximum':100}},",
    "'response_format':{'anyOf':[{'type':'null'},{'type':'object','required':['type'],'properties':{"
    "'type':{'enum':['text','json_object','json_schema']},'json_schema':{'type':'object',"
    "'required':['schema'],'properties':{'schema':{'type':['object','boolean']}}}}}]},"
    "'guided_json':{'description':'A JSON schema, or one as text','type':['object','boolean','string','null']},"
    "'guided_regex':{'type':['string','null']},'guided_grammar':{'type':['string','null']},"
    "'guided_choice':{'anyOf':[{'type':'null'},{'type':'array','minItems':1,'items':{'type':'string'}}]},"
    "'structured_outputs':{'description':'json, regex, grammar or choice, as in guided_*'},"
    "'user':{},'metadata':{},'store':{},'service_tier':{},'safety_identifier':{},'prompt_cache_key':{},"
    "'prompt_cache_retention':{},'prompt_cache_options':{}}},",
    /* ---- chat ---- */
    "'Message':{'type':'object','required':['role'],'properties':{'role':{'enum':['system','developer','user',"
    "'assistant','tool']},'content':{'anyOf':[{'type':['string','null']},{'type':'array','items':{"
    "'type':'object','required':['type','text'],'properties':{'type':{'const':'text'},"
    "'text':{'type':'string'}}}}]},'name':{},'tool_calls':{},'tool_call_id':{},'reasoning_content':{}}},"
    "'Tool':{'type':'object','required':['type','function'],'properties':{'type':{'const':'function'},"
    "'function':{'type':'object','required':['name'],'properties':{'name':{'type':'string'},"
    "'description':{},'parameters':{}}}}},"
    "'ChatRequest':{'allOf':[{'$ref':'#/components/schemas/Sampling'},{'type':'object',"
    "'required':['messages'],'properties':{'messages':{'type':'array','minItems':1,'items':"
    "{'$ref':'#/components/schemas/Message'}}," COUNT("max_completion_tokens", "1", "16777216")
    FLAG("logprobs") COUNT("top_logprobs", "0", "20") FLAG("parallel_tool_calls")
    FLAG("add_generation_prompt")
    "'tools':{'anyOf':[{'type':'null'},{'type':'array','items':{'$ref':'#/components/schemas/Tool'}}]},"
    "'tool_choice':{'description':'none, auto, required or a tool'},'reasoning_effort':{},"
    "'modalities':{'description':'only text'},'chat_template_kwargs':{'type':['object','null']}}}]},",
    /* ---- completions, embeddings ---- */
    "'Texts':{'anyOf':[{'type':'string'},{'$ref':'#/components/schemas/TokenIds'},"
    "{'type':'array','minItems':1,'items':{'type':'string'}},"
    "{'type':'array','minItems':1,'items':{'$ref':'#/components/schemas/TokenIds'}}]},"
    "'CompletionRequest':{'allOf':[{'$ref':'#/components/schemas/Sampling'},{'type':'object',"
    "'required':['prompt'],'properties':{'prompt':{'$ref':'#/components/schemas/Texts'},"
    FLAG("echo") COUNT("best_of", "1", "128") COUNT("logprobs", "0", "20")
    "'suffix':{'type':'null','description':'refused'}}}]},"
    "'EmbeddingRequest':{'type':'object','required':['model','input'],'properties':{"
    "'model':{'type':'string'},'input':{'$ref':'#/components/schemas/Texts'},"
    "'encoding_format':{'enum':['float','base64',null]},"
    "'dimensions':{'type':['integer','null'],'minimum':1},'user':{}}},",
    "'LoadAdapterRequest':{'type':'object','required':['lora_name','lora_path'],'properties':{"
    "'lora_name':{'type':'string','minLength':1,'maxLength':256},"
    "'lora_path':{'type':'string','minLength':1,'maxLength':4096},'base_model_name':{'type':'string'}}},"
    "'UnloadAdapterRequest':{'type':'object','required':['lora_name'],'properties':{"
    "'lora_name':{'type':'string'}}},",
    /* ---- answers ---- */
    "'Usage':{'type':'object','required':['prompt_tokens','completion_tokens','total_tokens'],'properties':{"
    "'prompt_tokens':{'type':'integer'},'completion_tokens':{'type':'integer'},"
    "'total_tokens':{'type':'integer'},'prompt_tokens_details':{'type':'object','properties':{"
    "'cached_tokens':{'type':'integer'}}},'timings':{'description':'With return_timings: of each choice, when "
    "the engine got its request and made its first and last token (monotonic clock of the server)',"
    "'type':'array','items':{'type':'object','required':['arrival_ns','first_token_ns','last_token_ns'],"
    "'properties':{'arrival_ns':{'type':'integer'},'first_token_ns':{'type':'integer'},"
    "'last_token_ns':{'type':'integer'}}}}}},"
    "'TokenLogprob':{'type':'object','required':['token','logprob','bytes'],'properties':{"
    "'token':{'type':'string'},'logprob':{'type':'number'},"
    "'bytes':{'type':'array','items':{'type':'integer','minimum':0,'maximum':255}},"
    "'top_logprobs':{'type':'array','items':{'$ref':'#/components/schemas/TokenLogprob'}}}},"
    "'ToolCall':{'type':'object','required':['id','type','function'],'properties':{'id':{'type':'string'},"
    "'index':{'type':'integer'},'type':{'const':'function'},'function':{'type':'object',"
    "'required':['name','arguments'],'properties':{'name':{'type':'string'},"
    "'arguments':{'type':'string'}}}}},",
    "'ChatLogprobs':{'anyOf':[{'type':'null'},{'type':'object','required':['content'],'properties':{"
    "'content':{'type':'array','items':{'$ref':'#/components/schemas/TokenLogprob'}},"
    "'refusal':{'type':'null'}}}]},"
    "'ChatAnswer':{'type':'object','required':['id','object','created','model','choices','usage'],"
    "'properties':{'id':{'type':'string'},'object':{'const':'chat.completion'},"
    "'created':{'type':'integer'},'model':{'type':'string'},'system_fingerprint':{'type':'null'},"
    "'usage':{'$ref':'#/components/schemas/Usage'},'choices':{'type':'array','minItems':1,'items':{"
    "'type':'object','required':['index','message','logprobs','finish_reason'],'properties':{"
    "'index':{'type':'integer'},'finish_reason':{'enum':['stop','length','tool_calls']},"
    "'logprobs':{'$ref':'#/components/schemas/ChatLogprobs'},'message':{'type':'object',"
    "'required':['role','content'],'properties':{'role':{'const':'assistant'},"
    "'content':{'type':['string','null']},'refusal':{'type':'null'},"
    "'reasoning_content':{'type':'string'},'tool_calls':{'type':'array','minItems':1,'items':"
    "{'$ref':'#/components/schemas/ToolCall'}}}}}}}}},",
    "'ChatChunk':{'type':'object','required':['id','object','created','model','choices'],"
    "'properties':{'id':{'type':'string'},'object':{'const':'chat.completion.chunk'},"
    "'created':{'type':'integer'},'model':{'type':'string'},"
    "'usage':{'anyOf':[{'type':'null'},{'$ref':'#/components/schemas/Usage'}]},"
    "'choices':{'type':'array','items':{'type':'object',"
    "'required':['index','delta','logprobs','finish_reason'],'properties':{'index':{'type':'integer'},"
    "'finish_reason':{'enum':['stop','length','tool_calls',null]},"
    "'logprobs':{'$ref':'#/components/schemas/ChatLogprobs'},'delta':{'type':'object','properties':{"
    "'role':{'const':'assistant'},'content':{'type':'string'},'reasoning_content':{'type':'string'},"
    "'tool_calls':{'type':'array','items':{'$ref':'#/components/schemas/ToolCall'}}}}}}}}},",
    "'TextLogprobs':{'anyOf':[{'type':'null'},{'type':'object','required':['tokens','token_logprobs',"
    "'top_logprobs','text_offset'],'properties':{'tokens':{'type':'array','items':{'type':'string'}},"
    "'token_logprobs':{'type':'array','items':{'type':'number'}},'top_logprobs':{'anyOf':[{'type':'null'},"
    "{'type':'array','items':{'type':'object','additionalProperties':{'type':'number'}}}]},"
    "'text_offset':{'type':'array','items':{'type':'integer','minimum':0}}}}]},"
    "'CompletionAnswer':{'description':'Whole; the chunks of a stream are the same, with finish_reason null "
    "until the last and usage only in the last.','type':'object',"
    "'required':['id','object','created','model','choices'],"
    "'properties':{'id':{'type':'string'},'object':{'const':'text_completion'},"
    "'created':{'type':'integer'},'model':{'type':'string'},'system_fingerprint':{'type':'null'},"
    "'usage':{'anyOf':[{'type':'null'},{'$ref':'#/components/schemas/Usage'}]},"
    "'choices':{'type':'array','items':{'type':'object',"
    "'required':['index','text','logprobs','finish_reason'],'properties':{'index':{'type':'integer'},"
    "'text':{'type':'string'},'finish_reason':{'enum':['stop','length',null]},"
    "'logprobs':{'$ref':'#/components/schemas/TextLogprobs'}}}}}},",
    "'EmbeddingAnswer':{'type':'object','required':['object','data','model','usage'],'properties':{"
    "'object':{'const':'list'},'model':{'type':'string'},'usage':{'type':'object',"
    "'required':['prompt_tokens','total_tokens'],'properties':{'prompt_tokens':{'type':'integer'},"
    "'total_tokens':{'type':'integer'}}},'data':{'type':'array','minItems':1,'items':{'type':'object',"
    "'required':['object','index','embedding'],'properties':{'object':{'const':'embedding'},"
    "'index':{'type':'integer'},'embedding':{'anyOf':[{'type':'string','contentEncoding':'base64'},"
    "{'type':'array','minItems':1,'items':{'type':'number','minimum':-1.000001,'maximum':1.000001}}]}}}}}},",
    /* ---- tokens ---- */
    "'TokenizeRequest':{'type':'object','required':['model'],'properties':{'model':{'type':'string'},"
    "'prompt':{'type':'string'},'messages':{'type':'array','minItems':1,'items':"
    "{'$ref':'#/components/schemas/Message'}},'add_special_tokens':{},'add_generation_prompt':{},"
    "'tools':{},'chat_template_kwargs':{}},'anyOf':[{'required':['prompt']},{'required':['messages']}]},"
    "'TokenizeAnswer':{'type':'object','required':['count','tokens'],'properties':{"
    "'count':{'type':'integer'},'tokens':{'$ref':'#/components/schemas/TokenIds'}}},"
    "'DetokenizeRequest':{'type':'object','required':['model','tokens'],'properties':{"
    "'model':{'type':'string'},'tokens':{'$ref':'#/components/schemas/TokenIds'}}},"
    "'DetokenizeAnswer':{'type':'object','required':['prompt'],'properties':{"
    "'prompt':{'type':'string'}}}}}}",
};

void nrd_oai_on_openapi(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    char *extra = NULL;
    nrd_str out = {0};

    (void)route;
    if (!nrd_oai_admit(user, req, false, &extra)) {
        return;
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        nrd_str_puts(&out, parts[i]);
    }
    for (size_t i = 0; i < out.len; i++) {
        out.data[i] = out.data[i] == '\'' ? '"' : out.data[i];
    }
    nrd_http_reply_str(req, 200, "application/json", extra, &out);
    nrd_str_fini(&out);
    free(extra);
}
