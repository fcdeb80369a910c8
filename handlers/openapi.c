/* GET /openapi.json: the route tables as an OpenAPI 3.1 document. */
#include "handlers/families.h"

static const char *const methods[CP_METHOD_COUNT] = {"get", "post", "put", "delete", "head", "options"};

#define X(family) {cp_##family##_routes, &cp_##family##_nroutes},
static const struct family {
    const cp_route *routes;
    const size_t *n;
} families[] = {CP_FAMILIES(X)};
#undef X

static const cp_route *route_at(size_t i) {
    for (size_t f = 0; f < CP_COUNT(families); i -= *families[f].n, f++)
        if (i < *families[f].n) return &families[f].routes[i];
    return NULL;
}

static void parameters(cp_jw *w, const char *pattern) {
    const char *open = strchr(pattern, '{'), *close = open ? strchr(open, '}') : NULL;
    if (!close) return;
    cp_jw_key(w, "parameters");
    cp_jw_arr(w);
    cp_jw_obj(w);
    cp_jw_kstr(w, "name", (cp_str){open + 1, (size_t)(close - open - 1)});
    cp_jw_kz(w, "in", "path");
    cp_jw_kbool(w, "required", true);
    cp_jw_key(w, "schema");
    cp_jw_raw(w, CP_STR("{\"type\":\"string\"}"));
    cp_jw_end_obj(w);
    cp_jw_end_arr(w);
}

/* Answers that show a command: it is in them, or in what they hold. */
#define COMMAND "{\"$ref\":\"#/components/schemas/Command\"}"
static const struct answer {
    const char *op, *schema;
} answers[] = {
    {"command.execute", COMMAND},
    {"execution.get", COMMAND},
    {"process.start", COMMAND},
    {"process.get", "{\"type\":\"object\",\"properties\":{\"process\":" COMMAND "}}"},
    {"process.list", "{\"type\":\"object\",\"properties\":{\"processes\":{\"type\":\"array\",\"items\":" COMMAND "}}}"},
};

static void responses(cp_jw *w, const char *op) {
    cp_jw_obj(w);
    cp_jw_key(w, "200");
    cp_jw_obj(w);
    cp_jw_kz(w, "description", "success");
    for (size_t i = 0; i < CP_COUNT(answers); i++) {
        if (strcmp(answers[i].op, op) != 0) continue;
        cp_jw_key(w, "content");
        cp_jw_obj(w);
        cp_jw_key(w, "application/json");
        cp_jw_obj(w);
        cp_jw_key(w, "schema");
        cp_jw_raw(w, cp_str_of(answers[i].schema));
        cp_jw_end_obj(w);
        cp_jw_end_obj(w);
    }
    cp_jw_end_obj(w);
    cp_jw_key(w, "default");
    cp_jw_raw(w, CP_STR("{\"$ref\":\"#/components/responses/Error\"}"));
    cp_jw_end_obj(w);
}

static void operation(cp_jw *w, const cp_route *r) {
    cp_jw_key(w, methods[r->method]);
    cp_jw_obj(w);
    cp_jw_kz(w, "operationId", r->op);
    cp_jw_kz(w, "summary", r->summary ? r->summary : r->op);
    parameters(w, r->pattern);
    if (r->flags & CP_R_RAW_BODY) {
        cp_jw_key(w, "requestBody");
        cp_jw_raw(w, CP_STR("{\"required\":true,\"content\":{\"application/octet-stream\":{}}}"));
    } else if (r->flags & (CP_R_BODY | CP_R_BODY_400)) {
        cp_jw_key(w, "requestBody");
        cp_jw_raw(w,
                  CP_STR("{\"required\":true,\"content\":{\"application/json\":{\"schema\":{\"type\":\"object\"}}}}"));
    }
    if (r->flags & CP_R_OPEN) {
        cp_jw_key(w, "security");
        cp_jw_raw(w, CP_STR("[]"));
    }
    cp_jw_key(w, "responses");
    responses(w, r->op);
    cp_jw_end_obj(w);
}

static bool seen_before(size_t i, const char *pattern) {
    for (size_t k = 0; k < i; k++)
        if (strcmp(route_at(k)->pattern, pattern) == 0) return true;
    return false;
}

static void paths(cp_jw *w) {
    cp_jw_obj(w);
    for (size_t i = 0; route_at(i); i++) {
        const char *pattern = route_at(i)->pattern;
        if (seen_before(i, pattern)) continue;
        cp_jw_key(w, pattern);
        cp_jw_obj(w);
        for (size_t k = i; route_at(k); k++)
            if (strcmp(route_at(k)->pattern, pattern) == 0) operation(w, route_at(k));
        cp_jw_end_obj(w);
    }
    cp_jw_end_obj(w);
}

static void error_schema(cp_jw *w) {
    cp_jw_obj(w);
    cp_jw_kz(w, "type", "object");
    cp_jw_key(w, "required");
    cp_jw_raw(w, CP_STR("[\"code\",\"message\",\"context\",\"httpStatus\",\"timestamp\"]"));
    cp_jw_key(w, "properties");
    cp_jw_obj(w);
    cp_jw_key(w, "code");
    cp_jw_obj(w);
    cp_jw_kz(w, "type", "string");
    cp_jw_key(w, "enum");
    cp_jw_arr(w);
    for (int c = CP_OK + 1; c < CP_E_COUNT; c++) cp_jw_z(w, cp_code_name((cp_code)c));
    cp_jw_end_arr(w);
    cp_jw_end_obj(w);
    cp_jw_key(w, "message");
    cp_jw_raw(w, CP_STR("{\"type\":\"string\"}"));
    cp_jw_key(w, "context");
    cp_jw_raw(w, CP_STR("{\"type\":\"object\"}"));
    cp_jw_key(w, "operation");
    cp_jw_raw(w, CP_STR("{\"type\":\"string\"}"));
    cp_jw_key(w, "httpStatus");
    cp_jw_raw(w, CP_STR("{\"type\":\"integer\"}"));
    cp_jw_key(w, "timestamp");
    cp_jw_raw(w, CP_STR("{\"type\":\"string\",\"format\":\"date-time\"}"));
    cp_jw_key(w, "suggestion");
    cp_jw_raw(w, CP_STR("{\"type\":\"string\"}"));
    cp_jw_end_obj(w);
    cp_jw_end_obj(w);
}

static void command_member(cp_jw *w, const char *name, const char *type, const char *description) {
    cp_jw_key(w, name);
    cp_jw_obj(w);
    cp_jw_kz(w, "type", type);
    cp_jw_kz(w, "description", description);
    cp_jw_end_obj(w);
}

/* The bounds are CP_COMMAND_WHOLE and CP_COMMAND_HEAD. */
static void command_schema(cp_jw *w) {
    cp_jw_obj(w);
    cp_jw_kz(w, "type", "object");
    cp_jw_key(w, "properties");
    cp_jw_obj(w);
    command_member(w, "command", "string",
                   "What was asked for; of more than 65,536 bytes the first 4,096 or a little less");
    command_member(w, "commandTruncated", "boolean",
                   "true: command is only the head of it; else absent, as are the next");
    command_member(w, "commandLength", "integer", "Bytes of the whole command, in UTF-8");
    command_member(w, "commandSha256", "string", "SHA-256 of the whole command, in hexadecimal");
    cp_jw_end_obj(w);
    cp_jw_end_obj(w);
}

static void components(cp_jw *w) {
    cp_jw_obj(w);
    cp_jw_key(w, "securitySchemes");
    cp_jw_raw(w, CP_STR("{\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\"}}"));
    cp_jw_key(w, "schemas");
    cp_jw_obj(w);
    cp_jw_key(w, "Error");
    error_schema(w);
    cp_jw_key(w, "Command");
    command_schema(w);
    cp_jw_end_obj(w);
    cp_jw_key(w, "responses");
    cp_jw_raw(w, CP_STR("{\"Error\":{\"description\":\"a typed error\",\"content\":{\"application/json\":{\"schema\":"
                        "{\"$ref\":\"#/components/schemas/Error\"}}}}}"));
    cp_jw_end_obj(w);
}

static int openapi(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err) {
    (void)req, (void)err;
    res->status = 200;
    cp_jw w = cp_jw_on(&res->body);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "openapi", "3.1.0");
    cp_jw_key(&w, "info");
    cp_jw_obj(&w);
    cp_jw_kz(&w, "title", "Conflux");
    cp_jw_kz(&w, "version", CONFLUX_VERSION);
    cp_jw_end_obj(&w);
    cp_jw_key(&w, "security");
    cp_jw_raw(&w, ctx->config->has_token ? CP_STR("[{\"bearer\":[]}]") : CP_STR("[]"));
    cp_jw_key(&w, "paths");
    paths(&w);
    cp_jw_key(&w, "components");
    components(&w);
    cp_jw_end_obj(&w);
    return 0;
}

const cp_route cp_openapi_routes[] = {
    {CP_GET, "/openapi.json", CP_R_IO | CP_R_COMPUTE, "openapi", openapi, NULL, "This document"},
};
const size_t cp_openapi_nroutes = CP_COUNT(cp_openapi_routes);
