#pragma once
/* What every command has at hand: its arguments, the server, and the ways to ask it and to print what it says. A
 * command is a function from this to an exit status. */
#include <conflux/client.h>

#include "base/json.h"
#include "cli/args.h"
#include "cli/say.h"
#include "cli/settings.h"

/* Exit statuses; those of a remote command come between them (128 + n for signal n). */
enum {
    CLI_OK = 0,
    CLI_REFUSED = 1,     /* the server said no; for grep: nothing found */
    CLI_TIMED_OUT = 124, /* as timeout(1) has it */
    CLI_FAILED = 125,    /* our own failure: nothing was begun there */
    CLI_CANNOT_RUN = 126,
    CLI_NO_COMMAND = 127,
    CLI_LOST = 255, /* the connection: what became of it there is not known */
};

typedef struct cli {
    cli_args args;
    cli_settings set;
    conflux_client *client; /* NULL until it is needed; cli_client */
    bool json;
} cli;

typedef int cli_run(cli *c);
#define COMMAND(id, order, least, most, operands, options, summary, text) cli_run cli_cmd_##id;
#include "schema/commands.def"
#undef COMMAND

static inline const char *cli_opt(const cli *c, cli_option_id id) { return c->args.value[id]; }

/* ---- the server ---- */

conflux_options cli_client_options(const cli *c);
/* The client, made at the first call. NULL: it has been said why. Nothing is connected yet. */
conflux_client *cli_client(cli *c);

/* Says what went wrong, with what to do about it, and gives the exit status for it. */
int cli_report(const cli *c, const conflux_error *err);
/* The connection is gone or nobody answers: another attempt may do. */
bool cli_is_lost(const conflux_error *err);

/* How long lost connections are tried again (--reconnect). */
int cli_reconnect_ms(const cli *c, uint64_t *ms);
/* For one loss after another: waits a little before the next attempt, false when the time since the first loss is
 * over. Zero-initialise; cli_patience_over when something worked. */
typedef struct cli_patience {
    uint64_t limit_ms, since, pause_ms;
} cli_patience;
bool cli_patience_left(cli_patience *p);
/* The time-out of the next attempt: what is left, but at least a second; `otherwise` while nothing has been lost. */
uint32_t cli_patience_ms(const cli_patience *p, uint32_t otherwise);
static inline void cli_patience_over(cli_patience *p) { p->since = p->pause_ms = 0; }

/* An answer that has been checked: status below 400, and JSON. */
typedef struct cli_answer {
    conflux_response rs;
    yyjson_doc *doc;
    yyjson_val *root;
} cli_answer;
void cli_answer_free(cli_answer *a);
static inline void cli_autoanswer_(cli_answer *a) { cli_answer_free(a); }
#define cli_autoanswer __attribute__((cleanup(cli_autoanswer_)))

/* 0, or -1 with *err (kind SERVER for an error status; the body then is in a->rs). Free *a in both cases. */
int cli_try(cli *c, const conflux_request *rq, cli_answer *a, conflux_error *err);
/* The same, again and again while the connection is lost: only for what may be sent twice. */
int cli_try_again(cli *c, const conflux_request *rq, cli_answer *a, conflux_error *err);
/* CLI_OK, or the exit status with everything said. */
int cli_ask(cli *c, const conflux_request *rq, cli_answer *a);
/* A GET, or a POST of a JSON object; for commands that print what comes. */
int cli_get(cli *c, const char *path, cli_answer *a);
int cli_post(cli *c, const char *path, cp_buf *body, cli_answer *a);

/* Values of an answer; "" and 0 where they are missing. Borrowed. */
const char *cli_str(yyjson_val *obj, const char *key);
int64_t cli_num(yyjson_val *obj, const char *key);
void cli_num_text(yyjson_val *obj, const char *key, char out[24]); /* "" when missing */

/* ---- requests ---- */

/* Refuses what cannot travel in JSON; `what` names it. */
int cli_check_utf8(const char *what, const char *text);
/* "?name=value", or "&name=value" behind another one, percent-encoded; nothing when value is NULL. */
void cli_query_add(cp_buf *out, const char *name, const char *value);
/* "/api/process/ID/logs" from "/api/process/", ID and "/logs". */
void cli_path(cp_buf *out, const char *before, const char *id, const char *behind);
/* The session that was asked for, or the word for none. */
static inline const char *cli_session(const cli *c) {
    const char *session = cli_opt(c, CLI_OPT_session);
    return session ? session : "__DISABLE_SESSION__";
}
/* A body: {"path": …, "sessionId": …}, left open. Paths without a session are looked for in the workspace. */
cp_jw cli_body_begin(const cli *c, cp_buf *out);
cp_jw cli_path_body(const cli *c, cp_buf *out, const char *path);

/* ---- printing ---- */

/* All of it to a descriptor; 0, or -1 with errno. */
int cli_put(int fd, const void *p, size_t n);
/* The same; -1: it cannot be written, which has been said; a closed pipe ends the program by SIGPIPE,
 * as it would end cat. */
int cli_write(int fd, const void *p, size_t n);
int cli_out(cp_buf *text);
/* A line of JSON, cleaned when stdout is a terminal. */
void cli_json_line(cp_buf *out, cp_str json);
int cli_out_json(cp_str json);
int cli_out_answer(const cli_answer *a); /* its body, likewise */
bool cli_terminal(void);                 /* is stdout one? */
size_t cli_width(void);                  /* of the terminal, or 0 */
/* Text from outside: as it is, or cleaned when stdout is a terminal. */
void cli_put_name(cp_buf *out, const char *name);
void cli_put_line(cp_buf *out, cp_buf *line); /* the same, with a newline; empties line */
