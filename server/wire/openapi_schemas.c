/*
 * openapi_schemas.c - the JSON that is sent and received, as schemas. Written
 * with ' for ", which no schema needs.
 */
#include "wire/openapi.h"

#include <string.h>

#define OBJECT(required, properties)                                           \
    "{'type':'object','required':[" required "],'properties':{" properties "}" \
    "}"
#define ONLY(properties)                                                       \
    "{'type':'object','additionalProperties':false,'properties':{" properties  \
    "}}"
#define STRING       "{'type':'string'}"
#define BOOLEAN      "{'type':'boolean'}"
#define UP_TO_2_53   "'maximum':9007199254740991}"
#define COUNT        "{'type':'integer','minimum':0," UP_TO_2_53
#define POSITIVE     "{'type':'integer','minimum':1," UP_TO_2_53
#define ARRAY(items) "{'type':'array','items':" items "}"
#define REF(name)    "{'$ref':'#/components/schemas/" name "'}"
#define FREE         "{'type':'object'}"
#define KEY                                                                    \
    "{'type':'string','pattern':'^/*[^/.\\\\u0000][^/\\\\u0000]{0,253}$'}"
#define HANDLE "{'type':'string','pattern':'^[A-Za-z0-9+/]{85}[AQgw]==$'}"
#define DATATYPE                                                               \
    "{'enum':['BOOL','UINT8','UINT16','UINT32','UINT64','INT8','INT16',"       \
    "'INT32','INT64','FP16','BF16','FP32','FP64']}"

/* clang-format off */
static const struct {
    const char *name, *json;
} schemas[] = {
    {"Error", OBJECT("'error','code'", "'error':" STRING ",'code':" STRING)},
    {"Live", OBJECT("'live'", "'live':" BOOLEAN)},
    {"Ready", OBJECT("'ready'", "'ready':" BOOLEAN)},
    {"ModelReady", OBJECT("'name','ready'", "'name':" STRING ",'ready':" BOOLEAN)},
    {"Server", OBJECT("'name','version','extensions'",
        "'name':" STRING ",'version':" STRING ",'extensions':" ARRAY(STRING))},
    {"Tensor", OBJECT("'name','datatype','shape'",
        "'name':" STRING ",'datatype':" DATATYPE ",'shape':" ARRAY("{'type':'integer','minimum':-1}")
        ",'parameters':" FREE)},
    {"Model", OBJECT("'name','versions','platform','inputs','outputs'",
        "'name':" STRING ",'versions':" ARRAY(STRING) ",'platform':" STRING
        ",'inputs':" ARRAY(REF("Tensor")) ",'outputs':" ARRAY(REF("Tensor")))},
    {"ConfigTensor", OBJECT("'name','data_type','dims'",
        "'name':" STRING ",'data_type':" STRING ",'dims':" ARRAY("{'type':'integer','minimum':-1}")
        ",'optional':" BOOLEAN ",'parameters':" FREE)},
    {"Config", OBJECT("'name','platform','backend','max_batch_size','input','output'",
        "'name':" STRING ",'platform':" STRING ",'backend':" STRING ",'max_batch_size':" COUNT
        ",'input':" ARRAY(REF("ConfigTensor")) ",'output':" ARRAY(REF("ConfigTensor")))},
    {"Duration", OBJECT("'count','ns'", "'count':" COUNT ",'ns':" COUNT)},
    {"InferStatistics", OBJECT(
        "'success','fail','queue','compute_input','compute_infer','compute_output','cache_hit','cache_miss'",
        "'success':" REF("Duration") ",'fail':" REF("Duration") ",'queue':" REF("Duration")
        ",'compute_input':" REF("Duration") ",'compute_infer':" REF("Duration")
        ",'compute_output':" REF("Duration") ",'cache_hit':" REF("Duration") ",'cache_miss':" REF("Duration"))},
    {"ModelStatistics", OBJECT(
        "'name','version','last_inference','inference_count','execution_count','inference_stats','batch_stats'",
        "'name':" STRING ",'version':" STRING ",'last_inference':" COUNT ",'inference_count':" COUNT
        ",'execution_count':" COUNT ",'inference_stats':" REF("InferStatistics") ",'batch_stats':" ARRAY(FREE))},
    {"Statistics", OBJECT("'model_stats'", "'model_stats':" ARRAY(REF("ModelStatistics")))},
    {"IndexRequest", OBJECT("", "'ready':" BOOLEAN)},
    {"Index", ARRAY(OBJECT("'name','version','state','reason'",
        "'name':" STRING ",'version':" STRING ",'state':" STRING ",'reason':" STRING))},
    {"LogSettings", ONLY(
        "'log_file':{'enum':['']},'log_info':" BOOLEAN ",'log_warning':" BOOLEAN ",'log_error':" BOOLEAN
        ",'log_verbose_level':" COUNT ",'log_format':{'enum':['default']}")},
    {"TraceSettings", FREE},
    {"InferInput", OBJECT("'name','datatype','shape'",
        "'name':" STRING ",'datatype':" DATATYPE ",'shape':" ARRAY(COUNT)
        ",'data':" ARRAY("{}") ",'parameters':" FREE)},
    {"InferOutput", OBJECT("'name','datatype','shape'",
        "'name':" STRING ",'datatype':" DATATYPE ",'shape':" ARRAY(COUNT)
        ",'data':" ARRAY("{}") ",'parameters':" FREE)},
    {"InferRequest", OBJECT("'inputs'",
        "'id':" STRING ",'inputs':" ARRAY(REF("InferInput"))
        ",'outputs':" ARRAY(OBJECT("'name'", "'name':" STRING ",'parameters':" FREE))
        ",'parameters':" FREE)},
    {"InferResponse", OBJECT("'model_name','model_version','outputs'",
        "'id':" STRING ",'model_name':" STRING ",'model_version':" STRING ",'parameters':" FREE
        ",'outputs':" ARRAY(REF("InferOutput")))},
    {"Table", "{'type':'object','minProperties':1}"},
    {"Tables", OBJECT("'tables'", "'tables':" ARRAY(REF("Table")))},
    {"Program", OBJECT("'steps'",
        "'inputs':" ARRAY("{}") ",'parameters':" FREE ",'steps':" ARRAY(FREE) ",'outputs':" ARRAY(STRING))},
    {"ProgramInfo", OBJECT("'name','etag','steps','inputs','outputs','parameters','regions'",
        "'name':" STRING ",'tenant':" STRING ",'etag':" STRING ",'steps':" COUNT ",'inputs':" ARRAY(FREE)
        ",'outputs':" ARRAY(STRING) ",'parameters':" FREE ",'regions':" ARRAY(STRING))},
    {"Programs", OBJECT("'programs'", "'programs':" ARRAY(REF("ProgramInfo")))},
    {"Region", OBJECT("'name','kind','bytes'",
        "'name':" STRING ",'tenant':" STRING ",'kind':{'enum':['resident','system','cuda']},'bytes':" COUNT
        ",'device':" COUNT ",'tensor':" STRING ",'dtype':" STRING ",'shape':" ARRAY(COUNT))},
    {"Devices", OBJECT("'backend','devices'",
        "'backend':" STRING ",'devices':" ARRAY(REF("Device")))},
    {"Device", OBJECT("'device','index','name','healthy','lanes'",
        "'device':" COUNT ",'index':" COUNT ",'name':" STRING ",'detail':" STRING ",'uuid':" STRING
        ",'healthy':" BOOLEAN ",'memory_bytes':" COUNT ",'lanes':" COUNT ",'lanes_busy':" COUNT
        ",'arena_bytes':" COUNT ",'device_bytes':" COUNT ",'region_bytes':" COUNT ",'region_memory':" COUNT
        ",'jobs':" COUNT ",'errors':" COUNT ",'busy_seconds':{'type':'number'}")},
    {"Regions", OBJECT("'region_memory','used','regions'",
        "'region_memory':" COUNT ",'used':" COUNT ",'regions':" ARRAY(REF("Region")))},
    {"SystemMemory", OBJECT("'key','byte_size'",
        "'key':" KEY ",'offset':" COUNT ",'byte_size':" POSITIVE)},
    {"CudaMemory", OBJECT("'raw_handle','device_id','byte_size'",
        "'raw_handle':" OBJECT("'b64'", "'b64':" HANDLE) ",'device_id':" COUNT ",'byte_size':" POSITIVE)},
    {"SharedMemory", ARRAY(OBJECT("'name','byte_size'", "'name':" STRING ",'byte_size':" COUNT))},
    {"Operators", OBJECT("'operators'",
        "'operators':" ARRAY(OBJECT("'name','summary'", "'name':" STRING ",'summary':" STRING)))},
};
/* clang-format on */

static void write_quoted(struct buffer *buffer, const char *text)
{
    while (*text) {
        size_t plain = strcspn(text, "'");
        buffer_append(buffer, text, plain);
        text += plain;
        if (*text == '\'') {
            buffer_append(buffer, "\"", 1);
            text++;
        }
    }
}

void openapi_write_schemas(struct buffer *buffer)
{
    buffer_text(buffer, "\"schemas\":{");
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        buffer_printf(buffer, "%s\"%s\":", i ? "," : "", schemas[i].name);
        write_quoted(buffer, schemas[i].json);
    }
    buffer_text(buffer, "}");
}
