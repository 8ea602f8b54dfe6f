/* SPDX-License-Identifier: Apache-2.0
 * triton/core/tritonrepoagent.h - how the core and a repository agent library talk.
 *
 * Purpose   An agent is a shared library libtritonrepoagent_<name>.so that may look at a model's
 *           folder, or put another in its place, before the model is loaded. Binary compatible with
 *           the published interface, API version 0.1.
 * Owner     The core owns agents and agent models; an agent's functions are called for one model by
 *           one thread at a time.
 * Errors    NULL or an error object; an error for ACTION_LOAD stops the loading.
 */
#ifndef TRITON_CORE_TRITONREPOAGENT_H
#define TRITON_CORE_TRITONREPOAGENT_H

#include <stddef.h>
#include <stdint.h>

#include "triton/core/tritonserver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Visible whatever the compiler's default is; each library's version script has the last word. */
#define TRITONREPOAGENT_DECLSPEC __attribute__((__visibility__("default")))
#define TRITONREPOAGENT_ISPEC __attribute__((__visibility__("default")))

/* Opaque objects. */
typedef struct TRITONREPOAGENT_Agent TRITONREPOAGENT_Agent;
typedef struct TRITONREPOAGENT_AgentModel TRITONREPOAGENT_AgentModel;

/* Same major and a core minor that is not smaller: compatible. */
#define TRITONREPOAGENT_API_VERSION_MAJOR 0
#define TRITONREPOAGENT_API_VERSION_MINOR 1

/* Gives the version of this interface that the core offers. Any thread. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *TRITONREPOAGENT_ApiVersion(uint32_t *major,
                                                                        uint32_t *minor);

/* Kinds of locations; only FILESYSTEM, a folder path, is in use. */
typedef enum TRITONREPOAGENT_artifacttype_enum {
    TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
    TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM,
} TRITONREPOAGENT_ArtifactType;

/* What is about to happen, or has happened, to a model. */
typedef enum TRITONREPOAGENT_actiontype_enum {
    TRITONREPOAGENT_ACTION_LOAD,
    TRITONREPOAGENT_ACTION_LOAD_COMPLETE,
    TRITONREPOAGENT_ACTION_LOAD_FAIL,
    TRITONREPOAGENT_ACTION_UNLOAD,
    TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE,
} TRITONREPOAGENT_ActionType;

/* ---- the model's folder ---- */

/* Gives the folder that the model is to be loaded from; borrowed until it is changed. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryLocation(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
    TRITONREPOAGENT_ArtifactType *artifact_type, const char **location);

/* Gives an empty folder for the agent's own files, the same one each time; borrowed. The core
 * removes it with the model at the latest. INVALID_ARG for a kind other than FILESYSTEM. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryLocationAcquire(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
    const TRITONREPOAGENT_ArtifactType artifact_type, const char **location);

/* Removes the folder of LocationAcquire with what is in it. UNAVAILABLE when there is none. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryLocationRelease(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model, const char *location);

/* Has the model loaded from `location`, which is copied. Only during ACTION_LOAD (INVALID_ARG). */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryUpdate(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
    const TRITONREPOAGENT_ArtifactType artifact_type, const char *location);

/* ---- parameters of the agent in the model's configuration ---- */

/* Gives the number of the agent's parameters in the model's configuration. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *
TRITONREPOAGENT_ModelParameterCount(TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
                                    uint32_t *count);

/* Gives one parameter; name and value are borrowed. INVALID_ARG for an index out of range. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *
TRITONREPOAGENT_ModelParameter(TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
                               const uint32_t index, const char **parameter_name,
                               const char **parameter_value);

/* Gives the configuration as JSON; the caller deletes the message. INVALID_ARG for a
 * config_version other than 1. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *
TRITONREPOAGENT_ModelConfig(TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
                            const uint32_t config_version, TRITONSERVER_Message **model_config);

/* ---- pointers for the agent's own use ---- */

/* Gives the pointer of ModelSetState; NULL at first. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *
TRITONREPOAGENT_ModelState(TRITONREPOAGENT_AgentModel *model, void **state);

/* Keeps a pointer for the agent about this model; the agent owns what it points to. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *
TRITONREPOAGENT_ModelSetState(TRITONREPOAGENT_AgentModel *model, void *state);

/* Gives the pointer of SetState; NULL at first. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *TRITONREPOAGENT_State(TRITONREPOAGENT_Agent *agent,
                                                                   void **state);

/* Keeps a pointer for the agent, which owns what it points to. During Initialize. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error *TRITONREPOAGENT_SetState(TRITONREPOAGENT_Agent *agent,
                                                                      void *state);

/* ---- written by the agent: all but ModelAction are optional ---- */

/* The library is loaded: set up what all models share. On error no model with this agent loads. */
TRITONREPOAGENT_ISPEC TRITONSERVER_Error *TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent *agent);

/* No model uses the agent any more: free what Initialize made. */
TRITONREPOAGENT_ISPEC TRITONSERVER_Error *TRITONREPOAGENT_Finalize(TRITONREPOAGENT_Agent *agent);

/* The agent meets a model: check the parameters, keep a state. On error the model does not load. */
TRITONREPOAGENT_ISPEC TRITONSERVER_Error *
TRITONREPOAGENT_ModelInitialize(TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model);

/* The model is gone: free its state. */
TRITONREPOAGENT_ISPEC TRITONSERVER_Error *
TRITONREPOAGENT_ModelFinalize(TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model);

/* Something is about to happen, or has happened, to the model. An error for ACTION_LOAD stops
 * the loading; for other actions it is written to the log. */
TRITONREPOAGENT_ISPEC TRITONSERVER_Error *
TRITONREPOAGENT_ModelAction(TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
                            const TRITONREPOAGENT_ActionType action_type);

#ifdef __cplusplus
}
#endif

#endif
