/* SPDX-License-Identifier: Apache-2.0
 * Every option, and the text of --help. */
#include "frontends/options_table.h"

#include "frontends/common/worker.h"

#include <limits.h>
#include <string.h>

#define F(field) offsetof(nrd_options, field)
/* group, name, form, offset, min, max, value in help, parser, help */
#define ROW(...) {__VA_ARGS__, .state = NRD_OPT_USED}
#define REFUSED(...) {__VA_ARGS__, .state = NRD_OPT_REFUSED}
#define NO_GRPC "refused: this build was made without the gRPC library."

const nrd_opt nrd_option_rows[] = {
    ROW("", "help", NRD_OPT_FLAG, F(help), 0, 0, "", NULL, "Print this text and exit."),
    ROW("", "version", NRD_OPT_FLAG, F(version), 0, 0, "", NULL, "Print the version and exit."),

    ROW("Server", "id", NRD_OPT_OWNED, F(id), 0, 0, "string", NULL,
     "Name of this server in its metadata. Default is triton."),
    ROW("Server", "crash-report-dir", NRD_OPT_OWNED, F(crash_dir), 0, 0, "string", NULL,
     "Folder for the report that a server leaves when it dies of a fault (nereid repro). Default is "
     "$NEREID_CACHE/crashes, else ~/.cache/nereid/crashes; where that cannot be written, $TMPDIR."),
    ROW("Server", "crash-report-count", NRD_OPT_I64, F(crash_keep), 0, 1000, "integer", NULL,
     "Reports that are kept in that folder; 0: none is written. Default is 8."),
    ROW("Server", "exit-timeout-secs", NRD_OPT_I64, F(exit_timeout_secs), 0, INT_MAX, "integer", NULL,
     "How long the server waits for requests in flight when it stops; after that it exits all the "
     "same. Default is 30."),

    ROW("Server", "ready-message", NRD_OPT_OWNED, F(ready_message), 0, 0, "string", NULL,
     "Text to write to the standard error once every service is open; nereid serve tells there what is "
     "served and where. Default is none."),

    ROW("Logging", "log-verbose", NRD_OPT_CUSTOM, 0, 0, 0, "integer", nrd_option_parse_log_verbose,
     "Verbose level; 0 turns verbose lines off. Default is 0."),
    ROW("Logging", "log-info", NRD_OPT_BOOL, F(log_info), 0, 0, "boolean", NULL,
     "Write info lines. Default is true."),
    ROW("Logging", "log-warning", NRD_OPT_BOOL, F(log_warning), 0, 0, "boolean", NULL,
     "Write warning lines. Default is true."),
    ROW("Logging", "log-error", NRD_OPT_BOOL, F(log_error), 0, 0, "boolean", NULL,
     "Write error lines. Default is true."),
    ROW("Logging", "log-tables", NRD_OPT_BOOL, F(log_tables), 0, 0, "boolean", NULL,
     "Write the tables of backends, models and options when the server starts; with log-verbose they are "
     "always written. Default is true; nereid serve says false."),
    ROW("Logging", "log-format", NRD_OPT_CUSTOM, 0, 0, 0, "string", nrd_option_parse_log_format,
     "\"default\": a line begins with LMMDD hh:mm:ss.ssssss; \"ISO8601\": with "
     "YYYY-MM-DDThh:mm:ssZ L. Default is \"default\"."),
    ROW("Logging", "log-file", NRD_OPT_OWNED, F(log_file), 0, 0, "string", NULL,
     "File that takes the log lines instead of the console."),

    ROW("Model Repository", "model-store", NRD_OPT_CUSTOM, 0, 0, 0, "string",
     nrd_option_parse_repository, "The same as --model-repository."),
    ROW("Model Repository", "model-repository", NRD_OPT_CUSTOM, 0, 0, 0, "string",
     nrd_option_parse_repository,
     "Folder with models, here or in a store (s3://, gs://, as://). May be given several times; a model name found "
     "in two repositories is not served."),
    ROW("Model Repository", "exit-on-error", NRD_OPT_BOOL, F(exit_on_error), 0, 0, "boolean", NULL,
     "End the server when a model cannot be loaded at start. Default is true."),
    ROW("Model Repository", "restart-on-failure", NRD_OPT_BOOL, F(restart_on_failure), 0, 0, "boolean", NULL,
     "Start the server again, in the same process, when a model fails while it serves: after a fault of "
     "a GPU only a new start can use it. Default is false; nereid serve sets it."),
    ROW("Model Repository", "disable-auto-complete-config", NRD_OPT_FLAG, F(disable_auto_complete), 0,
     0, "", NULL, "Models must bring a complete config.pbtxt; nothing is filled in."),
    ROW("Model Repository", "strict-readiness", NRD_OPT_BOOL, F(strict_readiness), 0, 0, "boolean",
     NULL, "/v2/health/ready answers ready only when every model is available. Default is true."),
    ROW("Model Repository", "model-control-mode", NRD_OPT_CUSTOM, 0, 0, 0, "string",
     nrd_option_parse_control_mode,
     "\"none\": all models are loaded at start and stay; \"poll\": the repository is looked at "
     "again and again and changes take effect; \"explicit\": only --load-model and the load and "
     "unload calls decide. Default is \"none\"."),
    ROW("Model Repository", "repository-poll-secs", NRD_OPT_I64, F(poll_secs), 0, INT_MAX, "integer",
     NULL,
     "Seconds between two looks at the repository with --model-control-mode=poll. Default "
     "is 15."),
    ROW("Model Repository", "load-model", NRD_OPT_CUSTOM, 0, 0, 0, "string",
     nrd_option_parse_startup_model,
     "Model to load at start with --model-control-mode=explicit. May be given several times; a "
     "single '*' loads all."),
    ROW("Model Repository", "model-config-name", NRD_OPT_CUSTOM, 0, 0, 0, "string",
     nrd_option_parse_model_config_name,
     "Reads configs/<name>.pbtxt of a model instead of its config.pbtxt where that file exists."),
    ROW("Model Repository", "model-load-thread-count", NRD_OPT_I64, F(load_threads), 1, 1024,
     "integer", NULL, "Models that are loaded at the same time. Default is 4."),
    ROW("Model Repository", "model-load-retry-count", NRD_OPT_I64, F(load_retries), 0, INT_MAX,
     "integer", NULL, "How often a failed load is tried again. Default is 0."),
    ROW("Model Repository", "model-namespacing", NRD_OPT_BOOL, F(namespacing), 0, 0, "boolean", NULL,
     "Models of the same name in different repositories may be served together. Default is "
     "false."),
    ROW("Model Repository", "enable-peer-access", NRD_OPT_BOOL, F(peer_access), 0, 0, "boolean", NULL,
     "Without effect: the server copies nothing between GPUs. Default is true."),

    ROW("Several Models", "models-file", NRD_OPT_OWNED, F(models_file), 0, 0, "string", NULL,
     "JSON file that names models of which only some are in memory at a time, each loaded when it is first "
     "asked for; nereid serve writes it for several models. Needs --model-control-mode=explicit. Default is none."),
    ROW("Several Models", "model-memory-gb", NRD_OPT_NUM, F(model_memory_gb), 0, 1e9, "number", NULL,
     "Memory, in 10^9 bytes, that these models may take together, weights and KV caches; the one that was not "
     "used for the longest time goes. 0: what the file says, from the machine's memory. Default is 0."),
    ROW("Several Models", "keep-alive", NRD_OPT_CUSTOM, 0, 0, 0, "time", nrd_option_parse_keep_alive,
     "How long a model stays that nobody uses: seconds, or 5m, 1h30m; 0: it goes at once; -1: until its memory "
     "is needed. Ollama's requests may say so themselves. Default is -1."),
    ROW("Several Models", "pin", NRD_OPT_CUSTOM, 0, 0, 0, "name", nrd_option_parse_pin,
     "A model that is loaded at the start and stays. May be given several times."),
    ROW("Several Models", "preload", NRD_OPT_FLAG, F(preload), 0, 0, "", NULL,
     "Load at the start as many of these models as fit, in their order."),
    ROW("Several Models", "allow-pull", NRD_OPT_CUSTOM, 0, 0, 0, "boolean", nrd_option_parse_allow_pull,
     "Whether clients of a server that nereid serve started with several models may bring more from the hub (/api/pull, "
     "the page), and remove these. With API keys they need one. Default is true; false without keys where --http-address is "
     "no loopback address."),
    ROW("Several Models", "model-wait-secs", NRD_OPT_I64, F(model_wait_secs), 1, 86400, "integer", NULL,
     "How long a request waits for its model to be loaded before it is answered 503. Default is 300."),

    ROW("HTTP", "allow-http", NRD_OPT_BOOL, F(allow_http), 0, 0, "boolean", NULL,
     "Serve HTTP requests. Default is true."),
    ROW("HTTP", "trusted-proxies", NRD_OPT_CUSTOM, 0, 0, 0, "CIDR,...", nrd_option_parse_trusted_proxies,
     "Proxies whose X-Forwarded-For, X-Forwarded-Proto or Forwarded is believed: addresses and networks such as "
     "127.0.0.1,10.0.0.0/8. May be given several times. Default is none."),
    ROW("HTTP", "http-address", NRD_OPT_OWNED, F(http_address), 0, 0, "string", NULL,
     "Address that the HTTP service binds to. Default is 0.0.0.0."),
    ROW("HTTP", "http-port", NRD_OPT_I64, F(http_port), 0, 65535, "integer", NULL,
     "Port of the HTTP service; 0 takes any free one. Default is 8000."),
    ROW("HTTP", "reuse-http-port", NRD_OPT_BOOL, F(reuse_http_port), 0, 0, "boolean", NULL,
     "Let several servers with this option listen on the same HTTP port. Default is false."),
    ROW("HTTP", "http-header-forward-pattern", NRD_OPT_OWNED, F(http_forward_pattern), 0, 0,
     "string", NULL,
     "Regular expression; HTTP headers whose name matches become request parameters."),
    ROW("HTTP", "http-thread-count", NRD_OPT_I64, F(http_threads), 1, 256, "integer", NULL,
     "Event loop threads of the HTTP service. Default is one per core, at most 8."),
    ROW("HTTP", "http-restricted-api", NRD_OPT_CUSTOM, 0, 0, 0, "string:string=string",
     nrd_option_parse_restricted_api,
     "<api>,<api>:<header>=<value>: these APIs answer only requests whose header has the value. "
     "APIs: health, metadata, inference, shared-memory, model-config, model-repository, "
     "statistics, trace, logging."),
    ROW("HTTP", "http-max-input-size", NRD_OPT_I64, F(http_max_input_bytes), 1, INT64_MAX / 2,
     "integer", NULL,
     "Largest request body in bytes, before and after decompression. Default is 67108864."),
    ROW("HTTP", "http-use-ssl", NRD_OPT_BOOL, F(http_use_ssl), 0, 0, "boolean", NULL,
     "Encrypt HTTP, the OpenAI port and metrics (TLS 1.2 or 1.3); needs --http-server-cert and "
     "--http-server-key. Default is false."),
    ROW("HTTP", "http-use-ssl-mutual", NRD_OPT_BOOL, F(http_use_ssl_mutual), 0, 0, "boolean", NULL,
     "Encrypt and ask for the client's certificate; needs --http-root-cert too. Default is false."),
    ROW("HTTP", "http-server-cert", NRD_OPT_OWNED, F(http_server_cert), 0, 0, "string", NULL,
     "File with the server's certificate chain (PEM). It is read again when it or the key has changed, and "
     "at SIGHUP."),
    ROW("HTTP", "http-server-key", NRD_OPT_OWNED, F(http_server_key), 0, 0, "string", NULL,
     "File with the server's private key (PEM, without passphrase)."),
    ROW("HTTP", "http-root-cert", NRD_OPT_OWNED, F(http_root_cert), 0, 0, "string", NULL,
     "File with the certificates that sign clients (PEM)."),
    ROW("HTTP", "allowed-host", NRD_OPT_CUSTOM, 0, 0, 0, "string", nrd_option_parse_allowed_host,
     "Name, without port, by which browsers may call the HTTP port, or *; others are answered 403. A "
     "server at a loopback address always takes localhost and loopback addresses. May be given several "
     "times. Default is any name, at a loopback address none."),

    ROW("GRPC", "allow-grpc", NRD_OPT_CUSTOM, 0, 0, 0, "boolean", nrd_option_parse_allow_grpc,
     "Serve gRPC requests. Default is true where the build has the gRPC library."),
    ROW("GRPC", "grpc-address", NRD_OPT_OWNED, F(grpc_address), 0, 0, "string", NULL,
     "Address of the gRPC service. Default is 0.0.0.0."),
    ROW("GRPC", "grpc-port", NRD_OPT_I64, F(grpc_port), 0, 65535, "integer", NULL,
     "Port of the gRPC service; 0 takes any free one. Default is 8001."),
#ifdef NRD_HAVE_GRPC
    ROW("GRPC", "reuse-grpc-port", NRD_OPT_BOOL, F(reuse_grpc_port), 0, 0, "boolean", NULL,
     "Let several servers with this option listen on the same gRPC port. Default is false."),
    ROW("GRPC", "grpc-header-forward-pattern", NRD_OPT_OWNED, F(grpc_forward_pattern), 0, 0,
     "string", NULL, "Regular expression; metadata whose key matches becomes request parameters."),
    ROW("GRPC", "grpc-infer-thread-count", NRD_OPT_I64, F(grpc_infer_threads), 1, 128, "integer",
     NULL, "Threads that take inference calls. Default is 2."),
    ROW("GRPC", "grpc-infer-allocation-pool-size", NRD_OPT_I64, F(grpc_infer_pool), 1, 65536,
     "integer", NULL, "Inference calls that each of these threads keeps prepared. Default is 8."),
    ROW("GRPC", "grpc-max-message-size", NRD_OPT_I64, F(grpc_max_message_bytes), 1, INT_MAX, "integer",
     NULL, "Largest request message in bytes, before and after decompression. Default is 67108864."),
    ROW("GRPC", "grpc-max-response-pool-size", NRD_OPT_I64, F(grpc_max_response_pool), 1, INT_MAX,
     "integer", NULL,
     "Answers that may wait in one stream; a model that brings more is held up until the client "
     "reads. Default is no limit."),
    ROW("GRPC", "grpc-use-ssl", NRD_OPT_BOOL, F(grpc_use_ssl), 0, 0, "boolean", NULL,
     "Encrypt; needs --grpc-server-cert and --grpc-server-key. Default is false."),
    ROW("GRPC", "grpc-use-ssl-mutual", NRD_OPT_BOOL, F(grpc_use_ssl_mutual), 0, 0, "boolean", NULL,
     "Encrypt and ask for the client's certificate; needs --grpc-root-cert too. Default is false."),
    ROW("GRPC", "grpc-server-cert", NRD_OPT_OWNED, F(grpc_server_cert), 0, 0, "string", NULL,
     "File with the server's certificate chain (PEM). It is read again when it has changed."),
    ROW("GRPC", "grpc-server-key", NRD_OPT_OWNED, F(grpc_server_key), 0, 0, "string", NULL,
     "File with the server's private key (PEM)."),
    ROW("GRPC", "grpc-root-cert", NRD_OPT_OWNED, F(grpc_root_cert), 0, 0, "string", NULL,
     "File with the certificates that sign clients (PEM)."),
    ROW("GRPC", "grpc-infer-response-compression-level", NRD_OPT_CUSTOM, 0, 0, 0, "string",
     nrd_option_parse_compression,
     "How much inference answers are compressed: none, low, medium or high. Default is none."),
    ROW("GRPC", "grpc-keepalive-time", NRD_OPT_I64, F(grpc_keepalive_ms), 1, INT_MAX, "integer", NULL,
     "Milliseconds after which a quiet connection is pinged. Default is 7200000."),
    ROW("GRPC", "grpc-keepalive-timeout", NRD_OPT_I64, F(grpc_keepalive_timeout_ms), 1, INT_MAX,
     "integer", NULL, "Milliseconds that the answer to such a ping may take. Default is 20000."),
    ROW("GRPC", "grpc-keepalive-permit-without-calls", NRD_OPT_BOOL, F(grpc_keepalive_idle), 0, 0,
     "boolean", NULL, "Ping connections without calls too. Default is false."),
    ROW("GRPC", "grpc-http2-max-pings-without-data", NRD_OPT_I64, F(grpc_max_pings), 0, INT_MAX,
     "integer", NULL, "Pings in a row without data between them; 0: any number. Default is 2."),
    ROW("GRPC", "grpc-http2-min-recv-ping-interval-without-data", NRD_OPT_I64,
     F(grpc_min_ping_interval_ms), 0, INT_MAX, "integer", NULL,
     "Milliseconds that a client leaves between pings without data. Default is 300000."),
    ROW("GRPC", "grpc-http2-max-ping-strikes", NRD_OPT_I64, F(grpc_max_ping_strikes), 0, INT_MAX,
     "integer", NULL,
     "Pings that come too early before the connection is closed; 0: any number. Default is 2."),
    ROW("GRPC", "grpc-max-connection-age", NRD_OPT_I64, F(grpc_max_age_ms), 0, INT_MAX, "integer",
     NULL, "Milliseconds after which a connection is asked to close; 0: never. Default is 0."),
    ROW("GRPC", "grpc-max-connection-age-grace", NRD_OPT_I64, F(grpc_max_age_grace_ms), 0, INT_MAX,
     "integer", NULL,
     "Milliseconds that its calls get then; 0: as long as they take. Default is 0."),
    ROW("GRPC", "grpc-idle-timeout-secs", NRD_OPT_I64, F(grpc_idle_secs), 0, 1000000, "integer", NULL,
     "Seconds after which a gRPC connection without calls is closed. 0: never. Default is 300."),
    ROW("GRPC", "grpc-restricted-protocol", NRD_OPT_CUSTOM, 0, 0, 0, "string:string=string",
     nrd_option_parse_restricted_protocol,
     "<protocol>,<protocol>:<key>=<value>: these protocols answer only calls whose metadata "
     "triton-grpc-protocol-<key> has the value. Protocols are named like the APIs of "
     "--http-restricted-api."),
#else
    REFUSED("GRPC", "reuse-grpc-port", NRD_OPT_CUSTOM, 0, 0, 0, "boolean", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-header-forward-pattern", NRD_OPT_CUSTOM, 0, 0, 0, "string", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-infer-thread-count", NRD_OPT_CUSTOM, 0, 0, 0, "integer", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-infer-allocation-pool-size", NRD_OPT_CUSTOM, 0, 0, 0, "integer", NULL,
     NO_GRPC),
    REFUSED("GRPC", "grpc-max-message-size", NRD_OPT_CUSTOM, 0, 0, 0, "integer", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-max-response-pool-size", NRD_OPT_CUSTOM, 0, 0, 0, "integer", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-use-ssl", NRD_OPT_CUSTOM, 0, 0, 0, "boolean", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-use-ssl-mutual", NRD_OPT_CUSTOM, 0, 0, 0, "boolean", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-server-cert", NRD_OPT_CUSTOM, 0, 0, 0, "string", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-server-key", NRD_OPT_CUSTOM, 0, 0, 0, "string", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-root-cert", NRD_OPT_CUSTOM, 0, 0, 0, "string", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-infer-response-compression-level", NRD_OPT_CUSTOM, 0, 0, 0, "string", NULL,
     NO_GRPC),
    REFUSED("GRPC", "grpc-keepalive-time", NRD_OPT_CUSTOM, 0, 0, 0, "integer", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-keepalive-timeout", NRD_OPT_CUSTOM, 0, 0, 0, "integer", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-keepalive-permit-without-calls", NRD_OPT_CUSTOM, 0, 0, 0, "boolean", NULL,
     NO_GRPC),
    REFUSED("GRPC", "grpc-http2-max-pings-without-data", NRD_OPT_CUSTOM, 0, 0, 0, "integer", NULL,
     NO_GRPC),
    REFUSED("GRPC", "grpc-http2-min-recv-ping-interval-without-data", NRD_OPT_CUSTOM, 0, 0, 0, "integer",
     NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-http2-max-ping-strikes", NRD_OPT_CUSTOM, 0, 0, 0, "integer", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-max-connection-age", NRD_OPT_CUSTOM, 0, 0, 0, "integer", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-max-connection-age-grace", NRD_OPT_CUSTOM, 0, 0, 0, "integer", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-idle-timeout-secs", NRD_OPT_CUSTOM, 0, 0, 0, "integer", NULL, NO_GRPC),
    REFUSED("GRPC", "grpc-restricted-protocol", NRD_OPT_CUSTOM, 0, 0, 0, "string:string=string", NULL,
     NO_GRPC),
#endif

    ROW("Sagemaker", "allow-sagemaker", NRD_OPT_BOOL, F(allow_sagemaker), 0, 0, "boolean", NULL,
     "Answer Amazon SageMaker (/ping, /invocations, /models) on a port of its own at --http-address. Default is "
     "false."),
    ROW("Sagemaker", "sagemaker-port", NRD_OPT_I64, F(sagemaker_port), 0, 65535, "integer", NULL,
     "Port of the SageMaker service; 0 takes any free one. Default is 8080."),
    ROW("Sagemaker", "sagemaker-safe-port-range", NRD_OPT_CUSTOM, 0, 0, 0, "integer-integer",
     nrd_option_parse_port_range,
     "<low>-<high>: ports outside of it are refused for all services. Default is any."),
    ROW("Sagemaker", "sagemaker-thread-count", NRD_OPT_I64, F(sagemaker_threads), 1, 256, "integer", NULL,
     "Event loop threads of the SageMaker service. Default is one per core, at most 8."),

    ROW("Vertex", "allow-vertex-ai", NRD_OPT_BOOL, F(allow_vertex), 0, 0, "boolean", NULL,
     "Answer Vertex AI (the routes AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE of the environment) on a port of its own "
     "at --http-address. Default is true if AIP_MODE=PREDICTION, which turns HTTP and gRPC off by default, else "
     "false."),
    ROW("Vertex", "vertex-ai-port", NRD_OPT_I64, F(vertex_port), 0, 65535, "integer", NULL,
     "Port of the Vertex AI service; 0 takes any free one. Default is AIP_HTTP_PORT if set, else 8080."),
    ROW("Vertex", "vertex-ai-thread-count", NRD_OPT_I64, F(vertex_threads), 1, 256, "integer", NULL,
     "Event loop threads of the Vertex AI service. Default is one per core, at most 8."),
    ROW("Vertex", "vertex-ai-default-model", NRD_OPT_OWNED, F(vertex_model), 0, 0, "string", NULL,
     "Model that predictions go to. Default is the one in the repository, if there is one only."),

    ROW("Metrics", "allow-metrics", NRD_OPT_BOOL, F(allow_metrics), 0, 0, "boolean", NULL,
     "Serve metrics. Default is true."),
    ROW("Metrics", "allow-gpu-metrics", NRD_OPT_BOOL, F(allow_gpu_metrics), 0, 0, "boolean", NULL,
     "Include GPU metrics; needs --allow-metrics. Default is true."),
    ROW("Metrics", "allow-cpu-metrics", NRD_OPT_BOOL, F(allow_cpu_metrics), 0, 0, "boolean", NULL,
     "Include CPU metrics; needs --allow-metrics. Default is true."),
    ROW("Metrics", "metrics-address", NRD_OPT_OWNED, F(metrics_address), 0, 0, "string", NULL,
     "Address of the metrics service. Default is that of --http-address."),
    ROW("Metrics", "metrics-port", NRD_OPT_I64, F(metrics_port), 0, 65535, "integer", NULL,
     "Port of the metrics service; 0 takes any free one. Default is 8002."),
    ROW("Metrics", "metrics-use-ssl", NRD_OPT_BOOL, F(metrics_use_ssl), 0, 0, "boolean", NULL,
     "false: metrics are not encrypted, though HTTP is. Default is true."),
    ROW("Metrics", "metrics-interval-ms", NRD_OPT_NUM, F(metrics_interval_ms), 1, INT_MAX, "float",
     NULL, "Milliseconds between two readings of GPU and CPU metrics. Default is 2000."),
    ROW("Metrics", "metrics-config", NRD_OPT_CUSTOM, 0, 0, 0, "string=string",
     nrd_option_parse_metrics_config,
     "<setting>=<value>: one setting of the metrics. May be given several times."),

    ROW("Tracing", "trace-config", NRD_OPT_CUSTOM, 0, 0, 0, "string,string=string",
     nrd_option_parse_trace_config,
     "<setting>=<value> with level, rate, count or mode (triton or opentelemetry); "
     "triton,<setting>=<value> with file or log-frequency; opentelemetry,<setting>=<value> with "
     "url "
     "(http or https; default http://localhost:4318/v1/traces), resource=<key>=<value>, "
     "bsp_max_queue_size, bsp_schedule_delay (milliseconds) or bsp_max_export_batch_size."),

    ROW("OpenAI", "allow-openai", NRD_OPT_BOOL, F(allow_openai), 0, 0, "boolean", NULL,
     "Answer OpenAI's API (/v1/chat/completions and others) on the HTTP port. Default is true."),
    ROW("OpenAI", "openai-port", NRD_OPT_I64, F(openai_port), 0, 65535, "integer", NULL,
     "A port that answers OpenAI's API and nothing else, at --http-address, besides the HTTP port (or "
     "instead, with --allow-http=false); 0 takes any free one. Default is none."),
    ROW("OpenAI", "api-key", NRD_OPT_CUSTOM, 0, 0, 0, "string", nrd_option_parse_api_key,
     "Key that /v1 asks for, and on /v2 and gRPC inference, model repository, shared memory, trace and log "
     "settings (Authorization: Bearer). May be given several times. Where it is not given, the environment "
     "variable NEREID_API_KEY is one, which no list of processes shows.",
     .env = "NEREID_API_KEY"),
    ROW("OpenAI", "api-key-file", NRD_OPT_OWNED, F(api_key_file), 0, 0, "string", NULL,
     "File with such keys, one a line; behind a key rate-limit=N, token-limit=N and max-concurrent=N give it limits of its own. "
     "Lines with # are remarks."),
    ROW("OpenAI", "key-rate-limit", NRD_OPT_I64, F(key_rate_limit), 0, INT_MAX, "integer", NULL,
     "Requests a minute for each key, on every API; more are answered 429, RESOURCE_EXHAUSTED on gRPC. 0: any number. "
     "Default is 0."),
    ROW("OpenAI", "key-token-limit", NRD_OPT_I64, F(key_token_limit), 0, INT_MAX, "integer", NULL,
     "Tokens a minute for each key, of prompts and answers; who has used them up is answered 429 until they have come back. "
     "0: any number. Default is 0."),
    ROW("OpenAI", "key-max-concurrent", NRD_OPT_I64, F(key_max_concurrent), 0, INT_MAX, "integer", NULL,
     "Requests that one key may have under way; more are answered 429. 0: any number. Default is 0."),
    ROW("OpenAI", "cache-salt-per-key", NRD_OPT_BOOL, F(cache_salt_per_key), 0, 0, "boolean", NULL,
     "Prompts of different keys share no blocks of the prefix cache, so that nobody learns from the time of an "
     "answer what others asked. Needs --api-key or --api-key-file. Default is false."),
    ROW("OpenAI", "cors-origin", NRD_OPT_CUSTOM, 0, 0, 0, "string", nrd_option_parse_cors_origin,
     "Origin of pages that may call /v1 from a browser, or *; one that is named may also load models and "
     "change settings. May be given several times."),
    ROW("OpenAI", "openai-rate-limit", NRD_OPT_I64, F(key_rate_limit), 0, INT_MAX, "integer", NULL,
     "The same as --key-rate-limit."),
    ROW("OpenAI", "openai-token-limit", NRD_OPT_I64, F(key_token_limit), 0, INT_MAX, "integer", NULL,
     "The same as --key-token-limit."),
    ROW("OpenAI", "openai-max-concurrent", NRD_OPT_I64, F(key_max_concurrent), 0, INT_MAX, "integer", NULL,
     "The same as --key-max-concurrent."),

    ROW("OpenAI", "openai-responses-kept", NRD_OPT_I64, F(openai_responses_kept), 0, 1 << 20, "integer", NULL,
     "Answers of /v1/responses that are kept for previous_response_id; the longest unused go first. 0: none. "
     "Default is 1024."),
    ROW("OpenAI", "openai-responses-kept-mb", NRD_OPT_I64, F(openai_responses_kept_mb), 1, 1 << 20, "integer", NULL,
     "Megabytes that they may take together. Default is 64."),
    ROW("OpenAI", "openai-background", NRD_OPT_I64, F(openai_background), 0, 4096, "integer", NULL,
     "Answers of /v1/responses with background that may be under way; more are answered 503. 0: none. Default is 256."),
    ROW("OpenAI", "openai-background-mb", NRD_OPT_I64, F(openai_background_mb), 1, 1 << 20, "integer", NULL,
     "Megabytes that these and their events may take together; events of those that ended first go first. Default is 64."),

    ROW("OpenAI", "openai-files-dir", NRD_OPT_OWNED, F(openai_files_dir), 0, 0, "string", NULL,
     "Private folder of the files of /v1/files and of batches, which then outlive the server; it is made if it is not "
     "there. Default is a temporary one, which ends with the server."),
    ROW("OpenAI", "openai-files-kept", NRD_OPT_I64, F(openai_files_kept), 1, 1 << 20, "integer", NULL,
     "Files that are kept; an upload beyond is answered 413. Default is 1024."),
    ROW("OpenAI", "openai-files-mb", NRD_OPT_I64, F(openai_files_mb), 1, 1 << 30, "integer", NULL,
     "Megabytes that they may take together, the answers of batches with them. Default is 1024."),
    ROW("OpenAI", "openai-file-mb", NRD_OPT_I64, F(openai_file_mb), 1, 1 << 20, "integer", NULL,
     "Megabytes of one upload. Default is 200."),
    ROW("OpenAI", "openai-files-days", NRD_OPT_I64, F(openai_files_days), 0, 36500, "integer", NULL,
     "Days after which a file is removed. 0: never, unless its client says so. Default is 30."),
    ROW("OpenAI", "openai-batch-requests", NRD_OPT_I64, F(openai_batch_requests), 1, 4096, "integer", NULL,
     "Requests of batches that are under way at a time, behind those of clients. Default is 16."),

    ROW("OpenAI", "batch-file", NRD_OPT_OWNED, F(batch_file), 0, 0, "string", NULL,
     "File of requests, as /v1/batches takes them, that is worked through; then the server ends (nereid help batch). Needs "
     "--batch-output."),
    ROW("OpenAI", "batch-output", NRD_OPT_OWNED, F(batch_output), 0, 0, "string", NULL,
     "File of its answers. Lines that have one there are left out."),
    ROW("OpenAI", "batch-json", NRD_OPT_BOOL, F(batch_json), 0, 0, "boolean", NULL,
     "Print an object at the end: lines, how many failed, tokens, seconds. Default is false."),

    ROW("OpenAI", "strict-model-names", NRD_OPT_BOOL, F(strict_model_names), 0, 0, "boolean", NULL,
     "Answer 404 to a request for a model that is not there also where one model is served. Else it is answered by this one, "
     "and the header x-nereid-warning says so. Default is false."),
    ROW("OpenAI", "allow-lora-loading", NRD_OPT_BOOL, F(allow_lora_loading), 0, 0, "boolean", NULL,
     "Answer /v1/load_lora_adapter and /v1/unload_lora_adapter: clients name folders of this machine, which the "
     "server then reads. Default is false."),
    ROW("OpenAI", "generation-config", NRD_OPT_CUSTOM, 0, 0, 0, "string",
     nrd_option_parse_generation_config,
     "How /v1 samples where a request does not say. \"auto\": as generation_config.json in the tokenizer's "
     "folder says, else temperature 0.8, top_k 40, top_p 0.95, min_p 0.05; \"none\": OpenAI's defaults, "
     "temperature 1 over the whole vocabulary. Default is \"auto\"."),

    ROW("Page", "ui", NRD_OPT_BOOL, F(ui), 0, 0, "boolean", NULL,
     "Show a page at / of the HTTP port: chat with the models, a live view of the server. Default is "
     "true."),

    ROW("Shared Memory", "allow-client-shm", NRD_OPT_BOOL, F(allow_client_shm), 0, 0, "boolean", NULL,
     "Let clients register shared memory, of the system and of CUDA, and use it for inputs and "
     "outputs. Default is true."),

    ROW("Limits", "http-max-connections", NRD_OPT_I64, F(http_max_connections), 0, INT_MAX, "integer",
     NULL,
     "Open HTTP connections; one more is answered 503 and closed. 0: any number. Default is 0."),
    ROW("Limits", "http-idle-timeout-secs", NRD_OPT_I64, F(http_idle_secs), 0, 1000000, "integer", NULL,
     "Seconds after which an HTTP connection that waits for its next request is closed. 0: never. "
     "Default is 300."),
    ROW("Limits", "max-inflight-requests", NRD_OPT_I64, F(max_inflight_requests), 0, INT_MAX,
     "integer", NULL,
     "Inference requests in progress over all protocols; one more is answered UNAVAILABLE (503) at "
     "once. 0: any number. Default is 0."),
    ROW("Limits", "max-inflight-memory-mb", NRD_OPT_I64, F(inflight_memory_mb), 0, INT_MAX, "integer", NULL,
     "MB of memory that the requests in progress may take together: bodies, what is read from them, what the "
     "engine keeps for them, answers. One that would take more is answered UNAVAILABLE (503) before it does. "
     "0: half of the machine's memory. Default is 0."),
    ROW("Limits", "max-request-memory-mb", NRD_OPT_I64, F(request_memory_mb), 0, INT_MAX, "integer", NULL,
     "MB of memory that one request may take, from its body over tensors between models and the engine's part "
     "of it to its answer, all choices of /v1 together. One that would take more is answered INVALID_ARG (400) before it does. 0: a quarter of what all "
     "may take. Default is 0."),
    ROW("Limits", "worker-thread-count", NRD_OPT_I64, F(worker_threads), 0, NRD_WORKERS_MAX_THREADS,
     "integer", NULL,
     "Threads that take long texts, tokenizers and compression off the event loops. 0: half of the "
     "processors, 2 to 8. Default is 0."),

    ROW("Backend", "backend-directory", NRD_OPT_OWNED, F(backend_dir), 0, 0, "string", NULL,
     "Folder with backends. Default is ../backends beside the program's folder, else "
     "/opt/tritonserver/backends."),
    ROW("Backend", "backend-config", NRD_OPT_CUSTOM, 0, 0, 0, "string,string=string",
     nrd_option_parse_backend_config,
     "<backend name>,<setting>=<value>: one setting of a backend; without the name, of all."),

    ROW("Repository Agent", "repoagent-directory", NRD_OPT_OWNED, F(agent_dir), 0, 0, "string", NULL,
     "Folder with repository agents. Default is ../repoagents beside the program's folder, else "
     "/opt/tritonserver/repoagents."),

    ROW("Response Cache", "cache-config", NRD_OPT_CUSTOM, 0, 0, 0, "string,string=string",
     nrd_option_parse_cache_config,
     "<cache name>,<setting>=<value>, such as local,size=1048576: turns that response cache on. In this build: "
     "local, and redis where hiredis is."),
    ROW("Response Cache", "cache-directory", NRD_OPT_OWNED, F(cache_dir), 0, 0, "string", NULL,
     "Folder with response caches. Default is ../caches beside the program's folder, else "
     "/opt/tritonserver/caches."),

    ROW("Rate Limiter", "rate-limit", NRD_OPT_CUSTOM, 0, 0, 0, "string", nrd_option_parse_rate_limit,
     "\"execution_count\": instances run when their resources are free, in the order of priority "
     "and use; \"off\": as soon as they are ready. Default is \"off\"."),
    ROW("Rate Limiter", "rate-limit-resource", NRD_OPT_CUSTOM, 0, 0, 0, "string:integer:integer",
     nrd_option_parse_rate_resource,
     "<resource>:<count>:<device>, the device being optional: how much of a resource exists."),

    ROW("Memory/Device Management", "pinned-memory-pool-byte-size", NRD_OPT_I64, F(pinned_pool_bytes),
     0, INT64_MAX, "integer", NULL,
     "Bytes that backends may take from the server as pinned memory. It is ordinary memory here, not "
     "known to a GPU. Default is 268435456."),
    ROW("Memory/Device Management", "cuda-memory-pool-byte-size", NRD_OPT_CUSTOM, 0, 0, 0,
     "integer:integer", nrd_option_parse_cuda_pool,
     "<GPU device>:<bytes>. Without effect: the server keeps no GPU memory of its own."),
    ROW("Memory/Device Management", "cuda-virtual-address-size", NRD_OPT_CUSTOM, 0, 0, 0,
     "integer:integer", nrd_option_parse_cuda_va,
     "<GPU device>:<bytes>: address range for growing implicit states. Default is 1 GiB."),
    ROW("Memory/Device Management", "min-supported-compute-capability", NRD_OPT_NUM,
     F(min_compute_capability), 0, 1000, "float", NULL,
     "GPUs below this compute capability are not used. Default is 6.0."),
    ROW("Memory/Device Management", "buffer-manager-thread-count", NRD_OPT_I64, F(buffer_threads), 0,
     1024, "integer", NULL, "Without effect: tensors are passed on, not copied together. Default is 0."),
    ROW("Memory/Device Management", "host-policy", NRD_OPT_CUSTOM, 0, 0, 0, "string,string=string",
     nrd_option_parse_host_policy,
     "<policy name>,<setting>=<value> with the settings numa-node (a number) and cpu-cores (0-3 or 0,2): where the "
     "threads of instances with this policy run. Without one of its own an instance has cpu, model or gpu_<N>."),
    ROW("Memory/Device Management", "model-load-gpu-limit", NRD_OPT_CUSTOM, 0, 0, 0,
     "device_id:fraction", nrd_option_parse_gpu_limit,
     "No model is loaded on a GPU whose memory is used above this fraction."),

    ROW("DEPRECATED", "strict-model-config", NRD_OPT_BOOL, F(strict_model_config), 0, 0, "boolean",
     NULL, "Use --disable-auto-complete-config."),
    ROW("DEPRECATED", "response-cache-byte-size", NRD_OPT_CUSTOM, 0, 0, 0, "integer",
     nrd_option_parse_cache_size, "Use --cache-config=local,size=<bytes>."),
    ROW("DEPRECATED", "trace-file", NRD_OPT_CUSTOM, 0, 0, 0, "string", nrd_option_parse_trace_old,
     "Use --trace-config=triton,file=<path>."),
    ROW("DEPRECATED", "trace-level", NRD_OPT_CUSTOM, 0, 0, 0, "string", nrd_option_parse_trace_old,
     "Use --trace-config=level=<OFF|TIMESTAMPS|TENSORS>."),
    ROW("DEPRECATED", "trace-rate", NRD_OPT_CUSTOM, 0, 0, 0, "integer", nrd_option_parse_trace_old,
     "Use --trace-config=rate=<n>."),
    ROW("DEPRECATED", "trace-count", NRD_OPT_CUSTOM, 0, 0, 0, "integer", nrd_option_parse_trace_old,
     "Use --trace-config=count=<n>."),
    ROW("DEPRECATED", "trace-log-frequency", NRD_OPT_CUSTOM, 0, 0, 0, "integer",
     nrd_option_parse_trace_old, "Use --trace-config=triton,log-frequency=<n>."),
};
const size_t nrd_option_n_rows = sizeof nrd_option_rows / sizeof *nrd_option_rows;

static void put_wrapped(nrd_str *out, const char *text)
{
    const size_t width = 72;
    while (strlen(text) > width) {
        size_t n = width;
        while (n > 0 && text[n] != ' ') {
            n--;
        }
        n = n ? n : width;
        nrd_str_printf(out, "        %.*s\n", (int)n, text);
        text += n + (text[n] == ' ');
    }
    nrd_str_printf(out, "        %s\n", text);
}

void nrd_options_help(nrd_str *out)
{
    const char *group = "";
    nrd_str_puts(out, "Usage: tritonserver [options]\n\n");
    for (size_t i = 0; i < nrd_option_n_rows; i++) {
        if (strcmp(group, nrd_option_rows[i].group) != 0) {
            group = nrd_option_rows[i].group;
            nrd_str_printf(out, "\n%s:\n", group);
        }
        if (nrd_option_rows[i].arg[0]) {
            nrd_str_printf(out, "  --%s <%s>\n", nrd_option_rows[i].name, nrd_option_rows[i].arg);
        } else {
            nrd_str_printf(out, "  --%s\n", nrd_option_rows[i].name);
        }
        put_wrapped(out, nrd_option_rows[i].help);
    }
}
