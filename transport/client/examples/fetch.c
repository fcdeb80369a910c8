/* One call: run a command and print what it wrote.
 * usage: fetch URL [JSON body of /api/execute]    (CONFLUX_TOKEN: the token) */
#include <conflux/client.h>

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    conflux_options o = {.url = argc > 1 ? argv[1] : "http://127.0.0.1:3000", .token = getenv("CONFLUX_TOKEN")};
    conflux_request rq = {.path = "/api/execute", .body = argc > 2 ? argv[2] : "{\"command\":\"echo hello\"}"};
    conflux_response rs;
    conflux_error err;
    conflux_client *c = conflux_client_new(&o, &err);
    int rc = c ? conflux_fetch(c, &rq, &rs, &err) : -1;
    if (rc == 0) {
        rc = conflux_check(&rs, &err);
        if (rc == 0) puts(rs.body);
        conflux_response_free(&rs);
    }
    if (rc < 0) fprintf(stderr, "%s: %s\n", conflux_kind_name(err.kind), err.message);
    conflux_client_free(c);
    return rc < 0;
}
