#include "cli/target.h"

static const char *const places[] = {"/api/process/", "/api/execution/"};

/* 0, or -1 with *err. */
static int try_both(cli *c, const char *method, const char *id, const char *behind, cli_answer *a, const char **place,
                    conflux_error *err) {
    cp_autobuf cp_buf path = {0};
    conflux_error first;
    for (size_t i = 0; i < CP_COUNT(places); i++) {
        conflux_request rq = {.method = method, .idempotent = 1};
        *place = places[i];
        cli_path(&path, places[i], id, behind);
        rq.path = path.p;
        if (cli_try_again(c, &rq, a, err) == 0) return 0;
        if (strcmp(err->code, i ? "EXECUTION_NOT_FOUND" : "PROCESS_NOT_FOUND") != 0) return -1;
        if (i == 0) first = *err;
        cli_answer_free(a);
    }
    *err = first;
    return -1;
}

int cli_target(cli *c, const char *method, const char *id, const char *behind, cli_answer *a) {
    const char *place;
    conflux_error err;
    if (!cli_client(c)) return CLI_FAILED;
    return try_both(c, method, id, behind, a, &place, &err) == 0 ? CLI_OK : cli_report(c, &err);
}

int cli_target_path(cli *c, const char *id, cp_buf *path) {
    cli_autoanswer cli_answer a = {0};
    const char *place;
    conflux_error err;
    if (!cli_client(c)) return CLI_FAILED;
    if (try_both(c, "GET", id, "", &a, &place, &err) < 0) return cli_report(c, &err);
    cli_path(path, place, id, "");
    return CLI_OK;
}
