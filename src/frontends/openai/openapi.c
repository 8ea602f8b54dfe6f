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
    "'/models':{'get':{'operationId':'listModelsToo','summary':'The same','responses':{"
    "'200':{'description':'The models','content':{'application/json':{'schema':"
    "{'$ref':'#/components/schemas/ModelList'}}}},"
    "'401':{'$ref':'#/components/responses/Error'}}}},"
    "'/v1/models/{model}':{'get':{'operationId':'retrieveModel','summary':'One model','parameters':["
    "{'name':'model','in':'path','required':true,'schema':{'type':'string','minLength':1}}],'responses':{"
    "'200':{'description':'The model','content':{'application/json':{'schema':"
    "{'$ref':'#/components/schemas/Model'}}}},"
    "'401':{'$ref':'#/components/responses/Error'},'404':{'$ref':'#/components/responses/Error'},"
    "'503':{'$ref':'#/components/responses/Error'}}}},",
#define POST_OR(error, path, id, summary, request, answers)                                        \
    "'" path "':{'post':{'operationId':'" id "','summary':'" summary "','requestBody':{"           \
    "'required':true,'content':{'application/json':{'schema':{'$ref':'#/components/schemas/"       \
    request "'}}}},'responses':{'200':{'description':'The answer','content':{" answers "}},"       \
    "'400':{'$ref':'#/components/responses/" error "'},'401':{'$ref':'#/components/responses/" error "'}," \
    "'404':{'$ref':'#/components/responses/" error "'},'413':{'$ref':'#/components/responses/" error "'}," \
    "'429':{'$ref':'#/components/responses/" error "'},'503':{'$ref':'#/components/responses/" error "'}}}}"
#define POST(path, id, summary, request, answers) POST_OR("Error", path, id, summary, request, answers)
#define ANSWER(schema) "'application/json':{'schema':{'$ref':'#/components/schemas/" schema "'}}"
#define RANKING                                                                                    \
    "'application/json':{'schema':{'anyOf':[{'$ref':'#/components/schemas/RerankAnswer'},"         \
    "{'$ref':'#/components/schemas/TextScores'}]}}"
#define STREAM                                                                                     \
    ",'text/event-stream':{'schema':{'description':'With stream: true, events of " \
    "one line \\\"data: CHUNK\\\" each; the last is \\\"data: [DONE]\\\"'}}"
    POST("/v1/chat/completions", "createChatCompletion", "Messages in, a message out", "ChatRequest",
         ANSWER("ChatAnswer") STREAM) ",",
    POST("/chat/completions", "createChatCompletionPlain", "The same", "ChatRequest", ANSWER("ChatAnswer") STREAM) ",",
    POST("/v1/completions", "createCompletion", "Text or token ids in, text out", "CompletionRequest",
         ANSWER("CompletionAnswer") STREAM) ",",
    POST("/v1/embeddings", "createEmbedding", "Texts or token ids in, vectors out", "EmbeddingRequest",
         ANSWER("EmbeddingAnswer")) ",",
    POST("/v1/rerank", "rerank", "Documents in the order in which they fit a query", "RerankRequest", RANKING) ",",
    POST("/v2/rerank", "rerankV2", "The same", "RerankRequest", RANKING) ",",
    POST("/rerank", "rerankPlain", "The same", "RerankRequest", RANKING) ",",
    POST("/reranking", "reranking", "The same", "RerankRequest", RANKING) ",",
    POST("/v1/score", "score", "How well two texts go together, or each text with its other", "ScoreRequest",
         ANSWER("ScoreAnswer")) ",",
    POST("/score", "scorePlain", "The same", "ScoreRequest", ANSWER("ScoreAnswer")) ",",
    POST("/classify", "classify", "How likely each label of a classifier is", "ClassifyRequest",
         ANSWER("ClassifyAnswer")) ",",
    POST_OR("MessagesError", "/v1/messages", "createMessage", "As Anthropic has it: messages in, a message out",
            "MessagesRequest", ANSWER("MessagesAnswer")
            ",'text/event-stream':{'schema':{'description':'With stream: true, events from "
            "message_start to message_stop'}}") ",",
    POST_OR("MessagesError", "/v1/messages/count_tokens", "countTokens", "Tokens of the prompt of such a request",
            "CountRequest", ANSWER("CountAnswer")) ",",
    POST("/v1/responses", "createResponse", "Items of a conversation in, items out", "ResponsesRequest",
         ANSWER("Response")
         ",'text/event-stream':{'schema':{'description':'With stream: true, events from "
         "response.created to response.completed, response.incomplete or response.failed'}}") ",",
    POST("/v1/responses/input_tokens", "countResponseTokens", "Tokens of the prompt of such a request", "ResponsesRequest",
         ANSWER("InputTokens")) ",",
    POST("/v1/chat/completions/input_tokens", "countChatTokens", "Tokens of the prompt of such a request", "ChatRequest",
         ANSWER("InputTokens")) ",",
#define RESPONSE_ID "{'name':'response_id','in':'path','required':true,'schema':{'type':'string','minLength':1}}"
#define NO_RESPONSE                                                                                \
    "'401':{'$ref':'#/components/responses/Error'},'404':{'$ref':'#/components/responses/Error'}"
    "'/v1/responses/{response_id}':{'get':{'operationId':'getResponse','summary':'A kept answer, or one that is being made in the "
    "background','parameters':[" RESPONSE_ID ",{'name':'stream','in':'query','schema':{'type':'boolean'}},"
    "{'name':'starting_after','in':'query','schema':{'type':'integer','minimum':0}}],'responses':{'200':{'description':'The answer',"
    "'content':{" ANSWER("Response") ",'text/event-stream':{'schema':{'description':'With stream=true, the events of an answer in the "
    "background'}}}},'400':{'$ref':'#/components/responses/Error'}," NO_RESPONSE "}},"
    "'delete':{'operationId':'deleteResponse','summary':'It is kept no longer','parameters':[" RESPONSE_ID
    "],'responses':{'200':{'description':'It is gone','content':{'application/json':{'schema':{'type':'object',"
    "'required':['id','object','deleted']}}}}," NO_RESPONSE "}}},",
    "'/v1/responses/{response_id}/input_items':{'get':{'operationId':'listInputItems','summary':'What it answered',"
    "'parameters':[" RESPONSE_ID ",{'name':'limit','in':'query','schema':{'type':'integer','minimum':1,'maximum':100}},"
    "{'name':'order','in':'query','schema':{'enum':['asc','desc']}},{'name':'after','in':'query','schema':{'type':'string'}}],"
    "'responses':{'200':{'description':'The items','content':{'application/json':{'schema':{'type':'object',"
    "'required':['object','data','first_id','last_id','has_more']}}}},'400':{'$ref':'#/components/responses/Error'}," NO_RESPONSE
    "}}},"
    "'/v1/responses/{response_id}/cancel':{'post':{'operationId':'cancelResponse','summary':'Ends an answer in the "
    "background','parameters':[" RESPONSE_ID "],'responses':{'200':{'description':'The answer','content':{" ANSWER("Response") "}},'400':{'$ref':'#/components/responses/Error'}," NO_RESPONSE "}}},",
#define ID_OF(name) "{'name':'" name "','in':'path','required':true,'schema':{'type':'string','minLength':1}}"
#define BAD "'400':{'$ref':'#/components/responses/Error'},'401':{'$ref':'#/components/responses/Error'}"
#define FOREIGN ",'403':{'$ref':'#/components/responses/Error'}"
#define LIST_OF(schema) "{'type':'object','required':['object','data','first_id','last_id','has_more'],'properties':{'object':{'const':'list'}," \
    "'data':{'type':'array','items':{'$ref':'#/components/schemas/" schema "'}},'first_id':{'type':['string','null']},"                    \
    "'last_id':{'type':['string','null']},'has_more':{'type':'boolean'}}}"
#define PAGE(most) "{'name':'limit','in':'query','schema':{'type':'integer','minimum':1,'maximum':" most "}},"                               \
    "{'name':'after','in':'query','schema':{'type':'string'}}"
#define SPEECH(path, id, summary, language)                                                                                         \
    "'" path "':{'post':{'operationId':'" id "','summary':'" summary "','requestBody':{'required':true,'content':{'multipart/form-data':"    \
    "{'schema':{'type':'object','required':['file'],'properties':{'file':{'type':'string','contentMediaType':"                         \
    "'application/octet-stream'},'model':{'type':'string'}," language "'prompt':{'type':'string'},'response_format':{'enum':['json',"  \
    "'text','verbose_json','srt','vtt']},'temperature':{'type':'number','minimum':0,'maximum':1},'seed':{'type':'integer','minimum':0},"            \
    "'compression_ratio_threshold':{'type':'number'},'logprob_threshold':{'type':'number'},'no_speech_threshold':{'type':'number'},'stream':{'type':'boolean'},"       \
    "'timestamp_granularities[]':{'type':'array','items':{'const':'segment'}},'chunking_strategy':{'const':'auto'}}}}}},'responses':"  \
    "{'200':{'description':'What is said','content':{" ANSWER("SpeechAnswer") ",'text/plain':{},'text/vtt':{},'text/event-stream':{}}}," \
    BAD FOREIGN ",'404':{'$ref':'#/components/responses/Error'},'413':{'$ref':'#/components/responses/Error'},"                       \
    "'503':{'$ref':'#/components/responses/Error'}}}},"
    SPEECH("/v1/audio/transcriptions", "createTranscription", "Sound in, text out", "'language':{'type':'string'},")
    SPEECH("/v1/audio/translations", "createTranslation", "Sound in, English text out", ""),
    "'/v1/files':{'get':{'operationId':'listFiles','summary':'Files of this key','parameters':[" PAGE("10000")
    ",{'name':'order','in':'query','schema':{'enum':['asc','desc']}},{'name':'purpose','in':'query','schema':{'type':'string'}}],"
    "'responses':{'200':{'description':'The files','content':{'application/json':{'schema':" LIST_OF("File") "}}}," BAD "}},"
    "'post':{'operationId':'createFile','summary':'A file for a batch','requestBody':{'required':true,'content':{'multipart/form-data':"
    "{'schema':{'type':'object','required':['purpose','file'],'properties':{'purpose':{'const':'batch'},'file':{'type':'string',"
    "'contentMediaType':'application/octet-stream'},'expires_after[anchor]':{'const':'created_at'},'expires_after[seconds]':{"
    "'type':'integer','minimum':3600,'maximum':2592000}},'additionalProperties':false}}}},'responses':{'200':{'description':'The file',"
    "'content':{" ANSWER("File") "}}," BAD FOREIGN ",'413':{'$ref':'#/components/responses/Error'},"
    "'503':{'$ref':'#/components/responses/Error'}}}},",
    "'/v1/files/{file_id}':{'get':{'operationId':'retrieveFile','summary':'One file','parameters':[" ID_OF("file_id") "],'responses':{"
    "'200':{'description':'The file','content':{" ANSWER("File") "}}," NO_RESPONSE "}},"
    "'delete':{'operationId':'deleteFile','summary':'It is kept no longer','parameters':[" ID_OF("file_id") "],'responses':{"
    "'200':{'description':'It is gone','content':{'application/json':{'schema':{'type':'object','required':['id','object','deleted']}}}},"
    NO_RESPONSE FOREIGN "}}},"
    "'/v1/files/{file_id}/content':{'get':{'operationId':'downloadFile','summary':'Its bytes','parameters':[" ID_OF("file_id")
    "],'responses':{'200':{'description':'The bytes','content':{'application/octet-stream':{}}}," NO_RESPONSE "}}},",
    "'/v1/batches':{'get':{'operationId':'listBatches','summary':'Batches of this key, the newest first','parameters':[" PAGE("100")
    "],'responses':{'200':{'description':'The batches','content':{'application/json':{'schema':" LIST_OF("Batch") "}}}," BAD "}},"
    "'post':{'operationId':'createBatch','summary':'A file of requests is worked through','requestBody':{'required':true,'content':{"
    "'application/json':{'schema':{'$ref':'#/components/schemas/BatchRequest'}}}},'responses':{'200':{'description':'The batch',"
    "'content':{" ANSWER("Batch") "}}," BAD FOREIGN ",'503':{'$ref':'#/components/responses/Error'}}}},"
    "'/v1/batches/{batch_id}':{'get':{'operationId':'retrieveBatch','summary':'One batch','parameters':[" ID_OF("batch_id")
    "],'responses':{'200':{'description':'The batch','content':{" ANSWER("Batch") "}}," NO_RESPONSE "}}},"
    "'/v1/batches/{batch_id}/cancel':{'post':{'operationId':'cancelBatch','summary':'It begins no more requests','parameters':["
    ID_OF("batch_id") "],'responses':{'200':{'description':'The batch','content':{" ANSWER("Batch") "}},"
    "'400':{'$ref':'#/components/responses/Error'}," NO_RESPONSE FOREIGN "}}},",
#define LINES ",'application/x-ndjson':{'schema':{'type':'string','description':'Unless stream is false: lines of JSON'}}"
#define GET_OLLAMA(path, id, summary, schema)                                                      \
    "'" path "':{'get':{'operationId':'" id "','summary':'" summary "','responses':{'200':{"         \
    "'description':'The answer','content':{" ANSWER(schema) "}},"                                     \
    "'401':{'$ref':'#/components/responses/OllamaError'}}}}"
    POST_OR("OllamaError", "/api/chat", "ollamaChat", "As Ollama has it: messages in, a message out",
            "OllamaChatRequest", ANSWER("OllamaAnswer") LINES) ",",
    POST_OR("OllamaError", "/api/generate", "ollamaGenerate", "As Ollama has it: a prompt in, text out",
            "OllamaGenerateRequest", ANSWER("OllamaAnswer") LINES) ",",
    POST_OR("OllamaError", "/api/embed", "ollamaEmbed", "Texts in, vectors out", "OllamaEmbedRequest",
            ANSWER("OllamaEmbedAnswer")) ",",
    POST_OR("OllamaError", "/api/embeddings", "ollamaEmbeddings", "A text in, a vector out", "OllamaVectorRequest",
            ANSWER("OllamaVectorAnswer")) ",",
    POST_OR("OllamaError", "/api/show", "ollamaShow", "One model", "OllamaShowRequest",
            "'application/json':{'schema':{'type':'object','required':['details','parameters','capabilities']}}") ",",
    POST_OR("OllamaError", "/api/pull", "ollamaPull", "A model of the hub comes into a server of several models", "OllamaPullRequest",
            "'application/json':{'schema':{'$ref':'#/components/schemas/OllamaDone'}}" LINES) ",",
    "'/api/delete':{'delete':{'operationId':'ollamaDelete','summary':'A model that was pulled goes','requestBody':{'required':true,"
    "'content':{'application/json':{'schema':{'$ref':'#/components/schemas/OllamaPullRequest'}}}},'responses':{'200':{'description':'It is "
    "gone','content':{" ANSWER("OllamaDone") "}},'400':{'$ref':'#/components/responses/OllamaError'},"
    "'404':{'$ref':'#/components/responses/OllamaError'},'503':{'$ref':'#/components/responses/OllamaError'}}}},",
#define REFUSED_OLLAMA(path, id, what)                                                             \
    "'" path "':{'post':{'operationId':'" id "','summary':'Refused: " what "','responses':{"                \
    "'400':{'$ref':'#/components/responses/OllamaError'},'401':{'$ref':'#/components/responses/OllamaError'}}}}"
    REFUSED_OLLAMA("/api/push", "ollamaPush", "models are not sent on") ",",
    REFUSED_OLLAMA("/api/create", "ollamaCreate", "models are not made by clients") ",",
    REFUSED_OLLAMA("/api/copy", "ollamaCopy", "models are not copied") ",",
    GET_OLLAMA("/api/tags", "ollamaTags", "The models", "OllamaModels") ",",
    GET_OLLAMA("/api/ps", "ollamaPs", "Those that are loaded", "OllamaModels") ",",
    GET_OLLAMA("/api/version", "ollamaVersion", "The version of this server", "OllamaVersion") ",",
    POST("/v1/load_lora_adapter", "loadLoraAdapter",
         "A folder on the machine of the server becomes a model; needs --allow-lora-loading", "LoadAdapterRequest",
         "'text/plain':{'schema':{'type':'string'}}") ",",
    POST("/v1/unload_lora_adapter", "unloadLoraAdapter", "The name means nothing any more", "UnloadAdapterRequest",
         "'text/plain':{'schema':{'type':'string'}}") ",",
    POST("/tokenize", "tokenize", "Text or messages in, token ids out", "TokenizeRequest",
         ANSWER("TokenizeAnswer")) ",",
    POST("/detokenize", "detokenize", "Token ids in, text out", "DetokenizeRequest",
         ANSWER("DetokenizeAnswer")) ",",
#define PIECES ",'text/event-stream':{'schema':{'description':'With stream: true, events with pieces'}}"
#define GET_PLAIN(path, id, summary, answer, security)                                             \
    "'" path "':{'get':{'operationId':'" id "','summary':'" summary "'," security "'responses':{'200':{"  \
    "'description':'The answer','content':{'application/json':{'schema':" answer "}}},"                  \
    "'401':{'$ref':'#/components/responses/LlamaError'},'503':{'$ref':'#/components/responses/LlamaError'}}}}"
#define HEALTH "{'type':'object','required':['status'],'properties':{'status':{'const':'ok'}}}"
    POST_OR("LlamaError", "/completion", "llamaCompletion", "As llama.cpp has it: a prompt in, text out", "LlamaRequest",
            "'application/json':{'schema':{'anyOf':[{'$ref':'#/components/schemas/LlamaAnswer'},{'type':'array','items':"
            "{'$ref':'#/components/schemas/LlamaAnswer'}}]}}" PIECES) ",",
    POST_OR("LlamaError", "/completions", "llamaCompletions", "The same", "LlamaRequest",
            "'application/json':{'schema':{'anyOf':[{'$ref':'#/components/schemas/LlamaAnswer'},{'type':'array','items':"
            "{'$ref':'#/components/schemas/LlamaAnswer'}}]}}" PIECES) ",",
    POST_OR("LlamaError", "/infill", "llamaInfill", "The text between two others, of models with tokens for it", "InfillRequest",
            "'application/json':{'schema':{'$ref':'#/components/schemas/LlamaAnswer'}}" PIECES) ",",
    POST_OR("LlamaError", "/apply-template", "applyTemplate", "What the chat template makes of messages", "TemplateRequest",
            "'application/json':{'schema':{'type':'object','required':['prompt'],'properties':{'prompt':{'type':'string'}}}}") ",",
    GET_PLAIN("/props", "llamaProps", "The model, its template and its sampling",
              "{'type':'object','required':['default_generation_settings','total_slots','chat_template']}", "") ",",
    GET_PLAIN("/slots", "llamaSlots", "Places of the batch, and how many are in use",
              "{'type':'array','items':{'type':'object','required':['id','is_processing']}}", "") ",",
    GET_PLAIN("/health", "health", "Whether the models are ready", HEALTH, "'security':[],") ",",
    GET_PLAIN("/v1/health", "healthOfV1", "The same", HEALTH, "'security':[],") ",",
    GET_PLAIN("/ping", "ping", "The same", HEALTH, "'security':[],") ",",
    GET_PLAIN("/version", "version", "The version of this server", "{'$ref':'#/components/schemas/OllamaVersion'}", "") ",",
    "'/metrics':{'get':{'operationId':'metrics','summary':'For Prometheus','responses':{'200':{'description':'All metrics',"
    "'content':{'text/plain':{'schema':{'type':'string'}}}},'401':{'$ref':'#/components/responses/Error'},"
    "'404':{'$ref':'#/components/responses/Error'}}}},",
    GET_PLAIN("/load", "load", "How many requests generate",
              "{'type':'object','required':['server_load'],'properties':{'server_load':{'type':'integer','minimum':0}}}", "") ",",
    "'/reset_prefix_cache':{'post':{'operationId':'resetPrefixCache','summary':'Refused: the cache is emptied with its model "
    "only','responses':{'400':{'$ref':'#/components/responses/Error'},'401':{'$ref':'#/components/responses/Error'}}}},",
#define MAY_NAME "'parameters':[{'name':'model','in':'query','schema':{'type':'string','minLength':1}}],"
#define ORDER(path, id, summary)                                                                   \
    "'" path "':{'post':{'operationId':'" id "','summary':'" summary "'," MAY_NAME "'responses':{'200':{" \
    "'description':'It is so','content':{'application/json':{'schema':{'type':'object'}}}},"            \
    "'400':{'$ref':'#/components/responses/Error'},'401':{'$ref':'#/components/responses/Error'},"      \
    "'404':{'$ref':'#/components/responses/Error'},'503':{'$ref':'#/components/responses/Error'}}}}"
    ORDER("/sleep", "sleep", "Models give their memory back, when their requests have ended") ",",
    ORDER("/wake_up", "wakeUp", "What was loaded before is loaded again") ",",
    "'/is_sleeping':{'get':{'operationId':'isSleeping','summary':'Whether the models are asleep'," MAY_NAME "'responses':{"
    "'200':{'description':'The answer','content':{'application/json':{'schema':{'type':'object','required':['is_sleeping'],"
    "'properties':{'is_sleeping':{'type':'boolean'}}}}}},'401':{'$ref':'#/components/responses/Error'},"
    "'404':{'$ref':'#/components/responses/Error'}}}},",
    POST("/models/load", "loadModel", "Answers when the model is loaded", "ModelOrder", ANSWER("ModelOrderAnswer")) ",",
    POST("/models/unload", "unloadModel", "The model goes when its requests have ended", "ModelOrder",
         ANSWER("ModelOrderAnswer")) "},",
    /* ---- shared ---- */
    "'security':[{},{'key':[]},{'bare':[]}],"
    "'components':{'securitySchemes':{'key':{'type':'http','scheme':'bearer'},"
    "'bare':{'type':'apiKey','in':'header','name':'x-api-key'}},"
    "'responses':{'Error':{'description':'What is wrong','content':{'application/json':{'schema':"
    "{'$ref':'#/components/schemas/Error'}}}},'MessagesError':{'description':'What is wrong','content':{"
    "'application/json':{'schema':{'$ref':'#/components/schemas/MessagesError'}}}},"
    "'OllamaError':{'description':'What is wrong','content':{"
    "'application/json':{'schema':{'$ref':'#/components/schemas/OllamaError'}}}},"
    "'LlamaError':{'description':'What is wrong','content':{"
    "'application/json':{'schema':{'$ref':'#/components/schemas/LlamaError'}}}}},'schemas':{"
    "'LlamaError':{'type':'object','required':['error'],'additionalProperties':false,'properties':{'error':{'type':'object',"
    "'required':['code','type','message'],'additionalProperties':false,'properties':{'code':{'type':'integer'},"
    "'type':{'type':'string'},'message':{'type':'string'}}}}},"
    "'OllamaError':{'type':'object','required':['error'],'additionalProperties':false,'properties':{"
    "'error':{'type':'string'}}},"
    "'MessagesError':{'type':'object','required':['type','error'],'additionalProperties':false,'properties':{"
    "'type':{'const':'error'},'error':{'type':'object','required':['type','message'],"
    "'additionalProperties':false,'properties':{'message':{'type':'string'},'type':{'enum':["
    "'invalid_request_error','authentication_error','permission_error','not_found_error','request_too_large',"
    "'rate_limit_error','api_error','overloaded_error']}}}}},"
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
    "'additionalProperties':{'type':'number'}},'max_model_len':{'type':'integer','description':'Tokens of a prompt and its answer together'},"
    "'chat':{'type':'boolean','description':'It has a chat template; else it continues text'},"
    "'architecture':{'type':'object','required':['input_modalities','output_modalities'],'properties':{"
    "'input_modalities':{'type':'array','items':{'enum':['text','image']}},'output_modalities':{'type':'array','items':{'const':'text'}},"
    "'family':{'type':'string'},'type':{'type':'string','description':'What most bytes of the weights hold'},'parameters':{'type':'integer'}}},'status':{'type':'object','description':'Of several models','required':['value'],"
    "'properties':{'value':{'enum':['unloaded','loading','loaded','sleeping']}}}}},"
    "'ModelOrder':{'type':'object','required':['model'],'properties':{'model':{'type':'string','minLength':1}}},"
    "'ModelOrderAnswer':{'type':'object','required':['success'],'properties':{'success':{'const':true}}},"
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
    COUNT("max_tokens", "0", "16777216") COUNT("min_tokens", "0", "16777216") COUNT("n", "1", "128")
    COUNT("prompt_logprobs", "0", "20") COUNT("priority", "0", "4294967295")
    "'max_time':{'description':'Seconds; then the answer is what there is','type':['number','null'],"
    "'minimum':0.001,'maximum':86400},"
    FLAG("ignore_eos") FLAG("skip_special_tokens")
    FLAG("include_stop_str_in_output") FLAG("stream") FLAG("return_timings") FLAG("return_token_ids")
    FLAG("return_tokens_as_token_ids") FLAG("add_special_tokens") COUNT("truncate_prompt_tokens", "-1", "2147483647")
    "'cache_salt':{'type':['string','null'],'minLength':1,'maxLength':1024},"
    "'stream_options':{'type':['object','null'],'description':'Only with stream: true','properties':{"
    "'include_usage':{'type':['boolean','null']},'continuous_usage_stats':{'type':['boolean','null']}}},"
    "'seed':{'type':['integer','null'],'minimum':-9223372036854775808,'maximum':18446744073709551615},"
    "'stop':{'anyOf':[{'type':'string'},{'type':'null'},{'type':'array','maxItems':16,"
    "'items':{'type':'string'}}]},"
    "'stop_token_ids':{'anyOf':[{'type':'null'},{'type':'array','maxItems':64,'items':"
    "{'type':'integer','minimum':0}}]},"
    "'allowed_token_ids':{'anyOf':[{'type':'null'},{'type':'array','minItems':1,'items':{'type':'integer','minimum':0}}]},"
    "'bad_words':{'anyOf':[{'type':'null'},{'type':'array','maxItems':256,'items':{'type':'string','minLength':1}}]},"
    "'logit_bias':{'type':['object','null'],'description':'Token ids and numbers',"
    "'propertyNames':{'pattern':'^[0-9]+$'},"
    "'additionalProperties':{'type':'number','minimum':-100,'maximum':100}},",
    "'response_format':{'anyOf':[{'type':'null'},{'type':'object','required':['type'],'properties':{"
    "'type':{'enum':['text','json_object','json_schema','structural_tag']},'json_schema':{'type':'object',"
    "'required':['schema'],'properties':{'schema':{'type':['object','boolean']}}},'format':{'type':'object'},"
    "'structures':{'type':'array','items':{'type':'object','required':['begin','schema','end']}},"
    "'triggers':{'type':'array','items':{'type':'string','minLength':1}}}}]},"
    "'structural_tag':{'description':'The same object as a field of its own, or as text','type':['object','string','null']},"
    "'guided_json':{'description':'A JSON schema, or one as text','type':['object','boolean','string','null']},"
    "'guided_regex':{'type':['string','null']},'guided_grammar':{'type':['string','null']},"
    "'guided_choice':{'anyOf':[{'type':'null'},{'type':'array','minItems':1,'items':{'type':'string'}}]},"
    "'structured_outputs':{'description':'json, regex, grammar or choice, as in guided_*'},"
    "'user':{},'metadata':{},'store':{},'service_tier':{},'safety_identifier':{},'prompt_cache_key':{},"
    "'prompt_cache_retention':{},'prompt_cache_options':{}}},",
    /* ---- chat ---- */
    "'Message':{'type':'object','required':['role'],'properties':{'role':{'enum':['system','developer','user',"
    "'assistant','tool']},'content':{'anyOf':[{'type':['string','null']},{'type':'array','items':{"
    "'anyOf':[{'type':'object','required':['type','text'],'properties':{'type':{'const':'text'},"
    "'text':{'type':'string'}}},{'type':'object','required':['type','image_url'],'properties':{'type':{'const':'image_url'},"
    "'image_url':{'description':'of models that see: {url: data:image/...;base64,...}'}}},{'type':'object','required':['type'],'properties':{"
    "'type':{'enum':['video_url','video']},'video_url':{'description':'of models that take videos: {url: data:video/jpeg;base64,FRAME,FRAME}'},"
    "'video':{'description':'a list of data:image/...;base64,...'},'fps':{'description':'frames a second, 2 where it is not said'}}}]}}]},'name':{},'tool_calls':{},'tool_call_id':{},'reasoning_content':{}}},"
    "'Tool':{'type':'object','required':['type','function'],'properties':{'type':{'const':'function'},"
    "'function':{'type':'object','required':['name'],'properties':{'name':{'type':'string'},"
    "'description':{},'parameters':{}}}}},"
    "'ChatRequest':{'allOf':[{'$ref':'#/components/schemas/Sampling'},{'type':'object',"
    "'required':['messages'],'properties':{'messages':{'type':'array','minItems':1,'items':"
    "{'$ref':'#/components/schemas/Message'}}," COUNT("max_completion_tokens", "1", "16777216")
    FLAG("logprobs") COUNT("top_logprobs", "0", "20") FLAG("parallel_tool_calls")
    FLAG("add_generation_prompt") FLAG("continue_final_message") FLAG("include_reasoning")
    FLAG("separate_reasoning") "'reasoning_format':{'enum':['auto','deepseek','none',null]},"
    "'tools':{'anyOf':[{'type':'null'},{'type':'array','items':{'$ref':'#/components/schemas/Tool'}}]},"
    "'tool_choice':{'description':'none, auto, required or a tool'},'reasoning_effort':{},"
    COUNT("thinking_token_budget", "-1", "16777216") "'reasoning':{'type':['object','null'],'properties':{'effort':{'type':['string','null']},"
    "'max_tokens':{'type':['integer','null']}}},"
    "'modalities':{'description':'of the answer: only text'},'chat_template_kwargs':{'type':['object','null']}}}]},",
    /* ---- messages ---- */
    "'TextBlocks':{'anyOf':[{'type':'string'},{'type':'array','items':{'type':'object',"
    "'required':['type','text'],'properties':{'type':{'const':'text'},'text':{'type':'string'}}}}]},"
    "'MessageTool':{'type':'object','required':['name','input_schema'],'properties':{'name':{'type':'string'},"
    "'description':{'type':'string'},'input_schema':{'type':'object'},'type':{'const':'custom'}}},"
    "'CountRequest':{'type':'object','required':['model','messages'],'properties':{"
    "'model':{'type':'string','description':'As /v1/models lists it'},"
    "'messages':{'type':'array','minItems':1,'items':{'type':'object','required':['role','content'],"
    "'properties':{'role':{'enum':['user','assistant']},'content':{'description':'Text, or blocks of the types text, "
    "tool_use, tool_result and thinking','type':['string','array']}}}},"
    "'system':{'anyOf':[{'type':'null'},{'$ref':'#/components/schemas/TextBlocks'}]},"
    "'tools':{'anyOf':[{'type':'null'},{'type':'array','items':{'$ref':'#/components/schemas/MessageTool'}}]},"
    "'tool_choice':{'anyOf':[{'type':'null'},{'type':'object','required':['type'],'properties':{"
    "'type':{'enum':['auto','any','tool','none']},'name':{'type':'string'},"
    "'disable_parallel_tool_use':{'type':'boolean'}}}]},"
    "'thinking':{'anyOf':[{'type':'null'},{'type':'object','required':['type'],'properties':{"
    "'type':{'enum':['enabled','adaptive','disabled']},'budget_tokens':{'type':'integer'}}}]},"
    "'output_config':{'type':['object','null'],'properties':{'effort':{},'format':{'anyOf':[{'type':'null'},"
    "{'type':'object','required':['type','schema'],'properties':{'type':{'const':'json_schema'},"
    "'schema':{'type':['object','boolean']}}}]}}}}},"
    "'MessagesRequest':{'description':'The fields of chat/completions that are not listed are taken too, but for those "
    "of several answers and of log probabilities.','allOf':[{'$ref':'#/components/schemas/CountRequest'},"
    "{'type':'object','required':['max_tokens'],'properties':{"
    "'max_tokens':{'type':'integer','minimum':1,'maximum':16777216},"
    NUMBER("temperature", "0", "2") NUMBER("top_p", "0", "1") COUNT("top_k", "-1", "2147483647") FLAG("stream")
    "'stop_sequences':{'anyOf':[{'type':'null'},{'type':'array','maxItems':16,'items':{'type':'string'}}]},"
    "'metadata':{},'service_tier':{},'cache_control':{},'inference_geo':{},'container':{}}}]},"
    "'CountAnswer':{'type':'object','required':['input_tokens'],'additionalProperties':false,'properties':{"
    "'input_tokens':{'type':'integer','minimum':1}}},"
    "'MessagesAnswer':{'type':'object','required':['id','type','role','model','content','stop_reason',"
    "'stop_sequence','usage'],'properties':{'id':{'type':'string'},'type':{'const':'message'},"
    "'role':{'const':'assistant'},'model':{'type':'string'},"
    "'stop_reason':{'enum':['end_turn','max_tokens','stop_sequence','tool_use']},"
    "'stop_sequence':{'type':['string','null']},'content':{'type':'array','minItems':1,'items':{'type':'object',"
    "'required':['type'],'properties':{'type':{'enum':['text','thinking','tool_use']},'text':{'type':'string'},"
    "'thinking':{'type':'string'},'signature':{'const':''},'id':{'type':'string'},'name':{'type':'string'},"
    "'input':{'type':'object'}}}},'usage':{'type':'object','required':['input_tokens','output_tokens'],'properties':{"
    "'input_tokens':{'type':'integer','minimum':0},'output_tokens':{'type':'integer','minimum':0},"
    "'cache_read_input_tokens':{'type':'integer','minimum':0},'cache_creation_input_tokens':{'const':0}}}}},",
    /* ---- responses ---- */
    "'InputTokens':{'type':'object','required':['object','input_tokens'],'additionalProperties':false,'properties':{"
    "'object':{'const':'response.input_tokens'},'input_tokens':{'type':'integer','minimum':1}}},"
    "'ResponseItem':{'type':'object','description':'Of the types message (unless it is given), function_call, "
    "function_call_output, custom_tool_call, custom_tool_call_output and reasoning','properties':{'type':{'enum':['message',"
    "'function_call','function_call_output','custom_tool_call','custom_tool_call_output','reasoning']}}},"
    "'ResponsesRequest':{'description':'The fields of chat/completions that are not listed are taken too, but for those of "
    "several answers.','type':'object','required':['model','input'],'properties':{"
    "'model':{'type':'string','description':'As /v1/models lists it'},"
    "'input':{'anyOf':[{'type':'string'},{'type':'array','minItems':1,'items':{'$ref':'#/components/schemas/ResponseItem'}}]},"
    "'instructions':{'type':['string','null']},'previous_response_id':{'type':['string','null']}," FLAG("store") FLAG("stream")
    COUNT("max_output_tokens", "1", "16777216") NUMBER("temperature", "0", "2") NUMBER("top_p", "0", "1")
    COUNT("top_logprobs", "0", "20") FLAG("parallel_tool_calls")
    "'tools':{'anyOf':[{'type':'null'},{'type':'array','items':{'type':'object','required':['type'],'description':"
    "'Of the types function, custom and namespace (with tools in it); others are left out','properties':{"
    "'type':{'type':'string','minLength':1},'name':{'type':'string'},'description':{},'parameters':{},'strict':{},'format':{},'tools':{}}}}]},"
    "'tool_choice':{'description':'none, auto, required, a function or custom tool, or allowed_tools'},"
    "'text':{'type':['object','null'],'properties':{'verbosity':{},'format':{'anyOf':[{'type':'null'},{'type':'object',"
    "'required':['type'],'properties':{'type':{'enum':['text','json_object','json_schema']},"
    "'schema':{'type':['object','boolean']}}}]}}},"
    "'reasoning':{'type':['object','null'],'properties':{'effort':{'type':['string','null']},"
    "'max_tokens':{'type':['integer','null']},'summary':{}}},"
    "'include':{'type':['array','null'],'items':{'type':'string'}},"
    "'metadata':{'type':['object','null'],'maxProperties':16,'additionalProperties':{'type':'string'}},"
    "'background':{'type':['boolean','null']},'truncation':{'enum':['disabled',null]},'stream_options':{},'max_tool_calls':{},"
    "'user':{},'service_tier':{},'safety_identifier':{},'prompt_cache_key':{},'prompt_cache_retention':{},"
    "'prompt_cache_options':{}}},"
    "'Response':{'type':'object','required':['id','object','created_at','status','model','output','usage','error',"
    "'incomplete_details','store','tools','tool_choice'],'properties':{'id':{'type':'string'},'object':{'const':'response'},"
    "'created_at':{'type':'integer'},'status':{'description':'queued and in_progress with background: output and usage come later',"
    "'enum':['queued','in_progress','completed','incomplete','cancelled','failed']},'model':{'type':'string'},"
    "'error':{'type':['object','null']},'incomplete_details':{'anyOf':[{'type':'null'},{'type':'object','required':['reason'],"
    "'properties':{'reason':{'const':'max_output_tokens'}}}]},'store':{'type':'boolean'},"
    "'output':{'type':'array','items':{'type':'object','required':['id','type','status'],'properties':{"
    "'type':{'enum':['message','function_call','custom_tool_call','reasoning']},'status':{'enum':['completed','incomplete']}}}},"
    "'usage':{'type':['object','null'],'required':['input_tokens','input_tokens_details','output_tokens','output_tokens_details',"
    "'total_tokens']}}},",
    /* ---- Ollama ---- */
    "'OllamaShared':{'type':'object','required':['model'],'properties':{'model':{'type':'string'},"
    "'stream':{'type':['boolean','null'],'description':'true unless given'},'keep_alive':{},"
    "'think':{'type':['boolean','string','null']}," FLAG("logprobs") COUNT("top_logprobs", "0", "20")
    "'format':{'anyOf':[{'type':'null'},{'enum':['','json']},{'type':'object','description':'A JSON schema'}]},"
    "'options':{'anyOf':[{'type':'null'},{'$ref':'#/components/schemas/OllamaOptions'}]}}},"
    "'OllamaOptions':{'type':'object','properties':{"
    NUMBER("temperature", "0", "2") NUMBER("top_p", "0", "1") NUMBER("min_p", "0", "1")
    COUNT("top_k", "-1", "2147483647") NUMBER("repeat_penalty", "0.01", "10")
    NUMBER("presence_penalty", "-2", "2") NUMBER("frequency_penalty", "-2", "2")
    "'seed':{'type':['integer','null'],'minimum':-9223372036854775808,'maximum':18446744073709551615},"
    "'num_predict':{'type':['integer','null'],'minimum':-2,'maximum':16777216,'not':{'const':0}},"
    "'stop':{'anyOf':[{'type':'string'},{'type':'null'},{'type':'array','maxItems':16,'items':{'type':'string'}}]}}},"
    "'OllamaChatRequest':{'allOf':[{'$ref':'#/components/schemas/OllamaShared'},{'type':'object',"
    "'required':['messages'],'properties':{'messages':{'type':'array','minItems':1,'items':{'type':'object',"
    "'required':['role','content'],'properties':{'role':{'enum':['system','user','assistant','tool']},"
    "'content':{'type':'string'},'thinking':{'type':'string'},'tool_name':{'type':'string'},'tool_calls':{}}}},"
    "'tools':{'anyOf':[{'type':'null'},{'type':'array','items':{'$ref':'#/components/schemas/Tool'}}]}}}]},"
    "'OllamaGenerateRequest':{'allOf':[{'$ref':'#/components/schemas/OllamaShared'},{'type':'object',"
    "'required':['prompt'],'properties':{'prompt':{'type':'string'},'system':{'type':['string','null']},"
    "'raw':{'type':['boolean','null']}}}]},"
    "'OllamaEmbedRequest':{'type':'object','required':['model','input'],'properties':{'model':{'type':'string'},"
    "'input':{'$ref':'#/components/schemas/Texts'},'dimensions':{'type':['integer','null'],'minimum':1},"
    "'truncate':{},'options':{},'keep_alive':{}}},"
    "'OllamaVectorRequest':{'type':'object','required':['model','prompt'],'properties':{'model':{'type':'string'},"
    "'prompt':{'type':'string'},'options':{},'keep_alive':{}}},"
    "'OllamaVectorAnswer':{'type':'object','required':['embedding'],'properties':{'embedding':{'type':'array','items':{'type':'number'}}}},"
    "'OllamaShowRequest':{'type':'object','required':['model'],'properties':{'model':{'type':'string'}}},",
    "'OllamaPullRequest':{'type':'object','required':['model'],'properties':{'model':{'type':'string','maxLength':200},"
    "'stream':{'type':'boolean'}}},"
    "'OllamaDone':{'type':'object','required':['status'],'properties':{'status':{'const':'success'}}},"
    "'OllamaAnswer':{'type':'object','required':['model','created_at','done','done_reason','total_duration',"
    "'load_duration','prompt_eval_count','prompt_eval_duration','eval_count','eval_duration'],'properties':{"
    "'model':{'type':'string'},'created_at':{'type':'string'},'done':{'const':true},"
    "'done_reason':{'enum':['stop','length']},'message':{'type':'object','required':['role','content'],'properties':{"
    "'role':{'const':'assistant'},'content':{'type':'string'},'thinking':{'type':'string'},'tool_calls':{"
    "'type':'array','items':{'type':'object','required':['function']}}}},'response':{'type':'string'},"
    "'thinking':{'type':'string'}}},"
    "'OllamaEmbedAnswer':{'type':'object','required':['model','embeddings','prompt_eval_count'],'properties':{"
    "'embeddings':{'type':'array','minItems':1,'items':{'type':'array','items':{'type':'number'}}}}},"
    "'OllamaModels':{'type':'object','required':['models'],'properties':{'models':{'type':'array','items':{"
    "'type':'object','required':['name','model','size','digest','details']}}}},"
    "'OllamaVersion':{'type':'object','required':['version'],'properties':{'version':{'type':'string'}}},",
    /* ---- completions, embeddings ---- */
    "'Texts':{'anyOf':[{'type':'string'},{'$ref':'#/components/schemas/TokenIds'},"
    "{'type':'array','minItems':1,'items':{'type':'string'}},"
    "{'type':'array','minItems':1,'items':{'$ref':'#/components/schemas/TokenIds'}}]},"
    "'CompletionRequest':{'allOf':[{'$ref':'#/components/schemas/Sampling'},{'type':'object',"
    "'required':['prompt'],'properties':{'prompt':{'$ref':'#/components/schemas/Texts'},"
    FLAG("echo") COUNT("best_of", "1", "128") COUNT("logprobs", "0", "20")
    "'beam_width':{'description':'Of models with an encoder','type':['integer','null'],'minimum':1,'maximum':8},"
    NUMBER("length_penalty", "-100", "100") COUNT("no_repeat_ngram_size", "0", "65536")
    "'early_stopping':{'enum':[true,false,'never',null]},"
    "'suffix':{'description':'What follows the answer; of models with tokens for it','type':['string','null']}}}]},"
    "'EmbeddingRequest':{'type':'object','required':['model','input'],'properties':{"
    "'model':{'type':'string'},'input':{'$ref':'#/components/schemas/Texts'},"
    "'encoding_format':{'enum':['float','base64',null]},"
    "'dimensions':{'type':['integer','null'],'minimum':1}," COUNT("truncate_prompt_tokens", "-1", "2147483647") "'user':{}}},",
    "'OneText':{'anyOf':[{'type':'string'},{'type':'object','required':['text'],'properties':{'text':{'type':'string'}}}]},"
    "'SomeTexts':{'anyOf':[{'$ref':'#/components/schemas/OneText'},{'type':'array','minItems':1,'maxItems':2048,"
    "'items':{'$ref':'#/components/schemas/OneText'}}]},",
#define CUTS                                                                                       \
    COUNT("truncate_prompt_tokens", "-1", "2147483647") COUNT("max_tokens_per_query", "0", "2147483647") \
    COUNT("max_tokens_per_doc", "0", "2147483647") "'instruction':{'type':['string','null']},"
    "'RerankRequest':{'type':'object','required':['query'],'anyOf':[{'required':['documents']},{'required':['texts']}],"
    "'properties':{'model':{'type':'string'},'query':{'$ref':'#/components/schemas/OneText'},"
    "'documents':{'$ref':'#/components/schemas/SomeTexts'},"
    "'texts':{'description':'Instead of documents, as text-embeddings-inference has it','$ref':'#/components/schemas/SomeTexts'},"
    COUNT("top_n", "0", "2147483647") FLAG("return_documents") FLAG("return_text") FLAG("raw_scores") FLAG("truncate")
    FLAG("use_activation") CUTS "'user':{}}},",
    "'ScoreRequest':{'type':'object','anyOf':[{'required':['text_1','text_2']},{'required':['queries','documents']},"
    "{'required':['queries','items']},{'required':['data_1','data_2']}],'properties':{'model':{'type':'string'},"
    "'text_1':{'$ref':'#/components/schemas/SomeTexts'},'text_2':{'$ref':'#/components/schemas/SomeTexts'},"
    "'queries':{'$ref':'#/components/schemas/SomeTexts'},'documents':{'$ref':'#/components/schemas/SomeTexts'},"
    "'items':{'$ref':'#/components/schemas/SomeTexts'},'data_1':{'$ref':'#/components/schemas/SomeTexts'},"
    "'data_2':{'$ref':'#/components/schemas/SomeTexts'}," FLAG("use_activation") CUTS "'user':{}}},",
    "'ClassifyRequest':{'type':'object','required':['input'],'properties':{'model':{'type':'string'},'input':{'anyOf':["
    "{'$ref':'#/components/schemas/Texts'},{'$ref':'#/components/schemas/TextPair'},{'type':'array','minItems':1,"
    "'items':{'$ref':'#/components/schemas/TextPair'}}]}," FLAG("use_activation")
    COUNT("truncate_prompt_tokens", "-1", "2147483647") "'user':{}}},"
    "'TextPair':{'type':'object','required':['text'],'properties':{'text':{'type':'string'},"
    "'text_pair':{'type':['string','null']}}},",
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
    "'prompt_logprobs':{'$ref':'#/components/schemas/PromptLogprobs'},"
    "'usage':{'$ref':'#/components/schemas/Usage'},'choices':{'type':'array','minItems':1,'items':{"
    "'type':'object','required':['index','message','logprobs','finish_reason'],'properties':{"
    "'index':{'type':'integer'},'finish_reason':{'enum':['stop','length','tool_calls']},"
    "'stop_reason':{'const':'timeout','description':'With length: time was over'},"
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
    "'finish_reason':{'enum':['stop','length','tool_calls',null]},'stop_reason':{'const':'timeout'},"
    "'logprobs':{'$ref':'#/components/schemas/ChatLogprobs'},'delta':{'type':'object','properties':{"
    "'role':{'const':'assistant'},'content':{'type':'string'},'reasoning_content':{'type':'string'},"
    "'tool_calls':{'type':'array','items':{'$ref':'#/components/schemas/ToolCall'}}}}}}}}},",
    "'PromptLogprobs':{'description':'Of the tokens of the prompt, by their ids; null for the first','type':'array','items':{'type':['object','null'],"
    "'additionalProperties':{'type':'object','required':['logprob','rank','decoded_token'],'properties':{'logprob':{'type':'number'},"
    "'rank':{'type':'integer','minimum':1},'decoded_token':{'type':'string'}}}}},",
    "'TextLogprobs':{'anyOf':[{'type':'null'},{'type':'object','required':['tokens','token_logprobs',"
    "'top_logprobs','text_offset'],'properties':{'tokens':{'type':'array','items':{'type':'string'}},"
    "'token_logprobs':{'type':'array','items':{'type':['number','null']}},'top_logprobs':{'anyOf':[{'type':'null'},"
    "{'type':'array','items':{'type':['object','null'],'additionalProperties':{'type':'number'}}}]},"
    "'text_offset':{'type':'array','items':{'type':'integer','minimum':0}}}}]},"
    "'CompletionAnswer':{'description':'Whole; the chunks of a stream are the same, with finish_reason null "
    "until the last and usage only in the last.','type':'object',"
    "'required':['id','object','created','model','choices'],"
    "'properties':{'id':{'type':'string'},'object':{'const':'text_completion'},"
    "'created':{'type':'integer'},'model':{'type':'string'},'system_fingerprint':{'type':'null'},"
    "'usage':{'anyOf':[{'type':'null'},{'$ref':'#/components/schemas/Usage'}]},"
    "'choices':{'type':'array','items':{'type':'object',"
    "'required':['index','text','logprobs','finish_reason'],'properties':{'index':{'type':'integer'},"
    "'text':{'type':'string'},'finish_reason':{'enum':['stop','length',null]},'stop_reason':{'const':'timeout'},"
    "'logprobs':{'$ref':'#/components/schemas/TextLogprobs'},'prompt_logprobs':{'$ref':'#/components/schemas/PromptLogprobs'}}}}}},",
    "'EmbeddingAnswer':{'type':'object','required':['object','data','model','usage'],'properties':{"
    "'object':{'const':'list'},'model':{'type':'string'},'usage':{'type':'object',"
    "'required':['prompt_tokens','total_tokens'],'properties':{'prompt_tokens':{'type':'integer'},"
    "'total_tokens':{'type':'integer'}}},'data':{'type':'array','minItems':1,'items':{'type':'object',"
    "'required':['object','index','embedding'],'properties':{'object':{'const':'embedding'},"
    "'index':{'type':'integer'},'embedding':{'anyOf':[{'type':'string','contentEncoding':'base64'},"
    "{'type':'array','minItems':1,'items':{'type':'number','minimum':-1.000001,'maximum':1.000001}}]}}}}}},",
    "'InputUsage':{'type':'object','required':['prompt_tokens','total_tokens'],'properties':{"
    "'prompt_tokens':{'type':'integer'},'total_tokens':{'type':'integer'}}},"
    "'RerankAnswer':{'type':'object','required':['id','model','usage','results'],'properties':{'id':{'type':'string'},"
    "'model':{'type':'string'},'usage':{'$ref':'#/components/schemas/InputUsage'},'results':{'type':'array','items':{"
    "'type':'object','required':['index','relevance_score'],'properties':{'index':{'type':'integer','minimum':0},"
    "'relevance_score':{'type':'number'},'document':{'type':'object','required':['text'],'properties':{"
    "'text':{'type':'string'}}}}}}}},"
    "'TextScores':{'type':'array','items':{'type':'object','required':['index','score'],'properties':{"
    "'index':{'type':'integer','minimum':0},'score':{'type':'number'},'text':{'type':'string'}}}},",
    "'ScoreAnswer':{'type':'object','required':['id','object','created','model','data','usage'],'properties':{"
    "'id':{'type':'string'},'object':{'const':'list'},'created':{'type':'integer'},'model':{'type':'string'},"
    "'usage':{'$ref':'#/components/schemas/InputUsage'},'data':{'type':'array','items':{'type':'object','required':["
    "'index','object','score'],'properties':{'index':{'type':'integer'},'object':{'const':'score'},"
    "'score':{'type':'number'}}}}}},"
    "'ClassifyAnswer':{'type':'object','required':['id','object','created','model','data','usage'],'properties':{"
    "'id':{'type':'string'},'object':{'const':'list'},'created':{'type':'integer'},'model':{'type':'string'},"
    "'usage':{'$ref':'#/components/schemas/InputUsage'},'data':{'type':'array','items':{'type':'object','required':["
    "'index','label','probs','num_classes'],'properties':{'index':{'type':'integer'},'label':{'type':'string'},"
    "'probs':{'type':'array','minItems':1,'items':{'type':'number'}},'num_classes':{'type':'integer','minimum':1}}}}}},",
    /* ---- speech ---- */
    "'SpeechAnswer':{'type':'object','required':['text','usage'],'properties':{'text':{'type':'string'},'usage':{'type':'object',"
    "'required':['type','seconds'],'properties':{'type':{'const':'duration'},'seconds':{'type':'integer','minimum':0}}},'task':{'enum':["
    "'transcribe','translate']},'language':{'type':'string'},'duration':{'type':'number','minimum':0},'segments':{'type':'array','items':{"
    "'type':'object','required':['id','seek','start','end','text','tokens','temperature','compression_ratio'],'properties':{"
    "'id':{'type':'integer'},'seek':{'type':'integer'},'start':{'type':'number'},'end':{'type':'number'},'text':{'type':'string'},"
    "'tokens':{'type':'array','items':{'type':'integer'}},'temperature':{'type':'number'},'compression_ratio':{'type':'number'},"
    "'avg_logprob':{'type':'number'}}}}}},",
    /* ---- files and batches ---- */
#define TIME(name) "'" name "':{'type':['integer','null']},"
    "'File':{'type':'object','required':['id','object','bytes','created_at','filename','purpose'],'properties':{'id':{'type':'string'},"
    "'object':{'const':'file'},'bytes':{'type':'integer','minimum':0},'created_at':{'type':'integer'}," TIME("expires_at")
    "'filename':{'type':'string'},'purpose':{'enum':['batch','batch_output']},'status':{'const':'processed'},'status_details':{}}},"
    "'BatchRequest':{'type':'object','required':['input_file_id','endpoint','completion_window'],'properties':{"
    "'input_file_id':{'type':'string','minLength':1},'endpoint':{'$ref':'#/components/schemas/BatchEndpoint'},"
    "'completion_window':{'type':'string','pattern':'^[0-9]+[smhd]$'},'metadata':{'type':['object','null'],'maxProperties':16,"
    "'additionalProperties':{'type':'string','maxLength':512}},'output_expires_after':{'type':['object','null'],"
    "'required':['anchor','seconds'],'properties':{'anchor':{'const':'created_at'},'seconds':{'type':'integer','minimum':3600,"
    "'maximum':2592000}}}},'additionalProperties':false},"
    "'BatchEndpoint':{'enum':['/v1/chat/completions','/v1/completions','/v1/embeddings','/v1/responses']},"
    "'Batch':{'type':'object','required':['id','object','endpoint','input_file_id','completion_window','status','created_at','expires_at',"
    "'request_counts'],'properties':{'id':{'type':'string'},'object':{'const':'batch'},'endpoint':{"
    "'$ref':'#/components/schemas/BatchEndpoint'},'input_file_id':{'type':'string'},'output_file_id':{'type':['string','null']},"
    "'error_file_id':{'type':['string','null']},'completion_window':{'type':'string'},'status':{'enum':['validating','in_progress',"
    "'finalizing','cancelling','completed','failed','cancelled','expired']},'created_at':{'type':'integer'},'expires_at':{'type':'integer'},"
    TIME("in_progress_at") TIME("finalizing_at") TIME("completed_at") TIME("failed_at") TIME("cancelling_at") TIME("cancelled_at")
    TIME("expired_at") "'request_counts':{'type':'object','required':['total','completed','failed'],'properties':{'total':{'type':'integer'},"
    "'completed':{'type':'integer'},'failed':{'type':'integer'}}},'usage':{'type':'object','required':['input_tokens','output_tokens',"
    "'total_tokens']},'metadata':{'type':['object','null']},'errors':{'anyOf':[{'type':'null'},{'type':'object','required':['object','data'],"
    "'properties':{'object':{'const':'list'},'data':{'type':'array','items':{'type':'object','required':['code','message','param','line'],"
    "'properties':{'code':{'type':'string'},'message':{'type':'string'},'param':{'type':['string','null']},'line':{"
    "'type':['integer','null']}}}}}}]}}},",
    /* ---- llama.cpp ---- */
    "'LlamaOptions':{'type':'object','properties':{'model':{'type':'string'},"
    COUNT("n_predict", "-2", "16777216") NUMBER("temperature", "0", "2") NUMBER("top_p", "0", "1") NUMBER("min_p", "0", "1")
    COUNT("top_k", "-1", "2147483647") NUMBER("repeat_penalty", "0.01", "10") NUMBER("presence_penalty", "-2", "2")
    NUMBER("frequency_penalty", "-2", "2") COUNT("n_probs", "0", "20") FLAG("ignore_eos") FLAG("stream") FLAG("return_tokens")
    "'seed':{'type':['integer','null'],'minimum':-9223372036854775808,'maximum':18446744073709551615},"
    "'stop':{'anyOf':[{'type':'string'},{'type':'null'},{'type':'array','maxItems':16,'items':{'type':'string'}}]},"
    "'response_fields':{'type':['array','null'],'items':{'type':'string'}},'grammar':{'type':['string','null']},"
    "'json_schema':{'type':['object','boolean','null']},'logit_bias':{'type':['array','object','null']},"
    "'t_max_predict_ms':{'type':['number','null'],'maximum':86400000},'cache_prompt':{},'id_slot':{},'samplers':{}}},"
    "'LlamaPrompt':{'anyOf':[{'type':'string'},{'type':'array','minItems':1,'items':{'type':['string','integer']}},"
    "{'type':'object','required':['prompt_string'],'properties':{'prompt_string':{'type':'string'}},'additionalProperties':false}]},"
    "'LlamaRequest':{'allOf':[{'$ref':'#/components/schemas/LlamaOptions'},{'type':'object','required':['prompt'],'properties':{"
    "'prompt':{'anyOf':[{'$ref':'#/components/schemas/LlamaPrompt'},{'type':'array','minItems':1,'items':"
    "{'$ref':'#/components/schemas/LlamaPrompt'}}]}," COUNT("n_cmpl", "1", "128") "'n_keep':{}}}]},"
    "'InfillRequest':{'allOf':[{'$ref':'#/components/schemas/LlamaOptions'},{'type':'object',"
    "'required':['input_prefix','input_suffix'],'properties':{'input_prefix':{'type':'string'},'input_suffix':{'type':'string'},"
    "'prompt':{'type':['string','null']},'input_extra':{'type':['array','null'],'items':{'type':'object','required':['text'],"
    "'properties':{'filename':{'type':['string','null']},'text':{'type':'string'}}}}}}]},"
    "'LlamaAnswer':{'description':'With response_fields only those members','type':'object','properties':{"
    "'content':{'type':'string'},'tokens':{'$ref':'#/components/schemas/TokenIds'},'stop':{'const':true},'index':{'type':'integer'},"
    "'stop_type':{'enum':['eos','limit','word']},'stopping_word':{'type':'string'},'tokens_predicted':{'type':'integer'},"
    "'tokens_evaluated':{'type':'integer'},'tokens_cached':{'type':'integer'},'timings':{'type':'object'},"
    "'generation_settings':{'type':'object'}}},"
    "'TemplateRequest':{'type':'object','required':['messages'],'properties':{'model':{'type':'string'},'messages':{'type':'array',"
    "'minItems':1,'items':{'$ref':'#/components/schemas/Message'}},'tools':{},'chat_template_kwargs':{},"
    "'add_generation_prompt':{'type':['boolean','null']}}},",
    /* ---- tokens ---- */
    "'TokenizeRequest':{'type':'object','properties':{'model':{'type':'string'},"
    "'content':{'anyOf':[{'type':'string'},{'type':'array','items':{'type':['string','integer']}}]},'add_special':{},'parse_special':{},"
    "'with_pieces':{'const':false},'return_token_strs':{},"
    "'prompt':{'type':'string'},'messages':{'type':'array','minItems':1,'items':"
    "{'$ref':'#/components/schemas/Message'}},'add_special_tokens':{},'add_generation_prompt':{},"
    "'tools':{},'chat_template_kwargs':{}},'anyOf':[{'required':['prompt']},{'required':['messages']},{'required':['content']}]},"
    "'TokenizeAnswer':{'type':'object','required':['count','tokens'],'properties':{"
    "'count':{'type':'integer'},'tokens':{'$ref':'#/components/schemas/TokenIds'}}},"
    "'DetokenizeRequest':{'type':'object','required':['tokens'],'properties':{"
    "'model':{'type':'string'},'tokens':{'$ref':'#/components/schemas/TokenIds'}}},"
    "'DetokenizeAnswer':{'type':'object','required':['prompt'],'properties':{"
    "'prompt':{'type':'string'},'content':{'type':'string'}}}}}}",
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
