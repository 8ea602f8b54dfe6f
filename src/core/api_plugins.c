/* The functions that the core offers to repository agents. No such library is loaded yet (model
 * loading refuses agents), so no caller can hold the objects these need; each says so. */
#include "core/core.h"

#include "triton/core/tritonrepoagent.h"

static TRITONSERVER_Error *no_agents(void)
{
    return as_api(nrd_errorf(NRD_ERR_UNSUPPORTED, "repository agents are not supported"));
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryLocation(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
    TRITONREPOAGENT_ArtifactType *artifact_type, const char **location)
{
    (void)agent, (void)model, (void)artifact_type, (void)location;
    return no_agents();
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryLocationAcquire(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
    const TRITONREPOAGENT_ArtifactType artifact_type, const char **location)
{
    (void)agent, (void)model, (void)artifact_type, (void)location;
    return no_agents();
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryLocationRelease(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model, const char *location)
{
    (void)agent, (void)model, (void)location;
    return no_agents();
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryUpdate(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
    const TRITONREPOAGENT_ArtifactType artifact_type, const char *location)
{
    (void)agent, (void)model, (void)artifact_type, (void)location;
    return no_agents();
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelParameterCount(TRITONREPOAGENT_Agent *agent,
                                                        TRITONREPOAGENT_AgentModel *model,
                                                        uint32_t *count)
{
    (void)agent, (void)model, (void)count;
    return no_agents();
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelParameter(TRITONREPOAGENT_Agent *agent,
                                                   TRITONREPOAGENT_AgentModel *model,
                                                   const uint32_t index,
                                                   const char **parameter_name,
                                                   const char **parameter_value)
{
    (void)agent, (void)model, (void)index, (void)parameter_name, (void)parameter_value;
    return no_agents();
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelConfig(TRITONREPOAGENT_Agent *agent,
                                                TRITONREPOAGENT_AgentModel *model,
                                                const uint32_t config_version,
                                                TRITONSERVER_Message **model_config)
{
    (void)agent, (void)model, (void)config_version, (void)model_config;
    return no_agents();
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelState(TRITONREPOAGENT_AgentModel *model, void **state)
{
    (void)model, (void)state;
    return no_agents();
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelSetState(TRITONREPOAGENT_AgentModel *model, void *state)
{
    (void)model, (void)state;
    return no_agents();
}

TRITONSERVER_Error *TRITONREPOAGENT_State(TRITONREPOAGENT_Agent *agent, void **state)
{
    (void)agent, (void)state;
    return no_agents();
}

TRITONSERVER_Error *TRITONREPOAGENT_SetState(TRITONREPOAGENT_Agent *agent, void *state)
{
    (void)agent, (void)state;
    return no_agents();
}
