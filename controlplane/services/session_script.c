/* Rules that every line here obeys, because the shell belongs to the client:
 * - each word that names a command begins with a backslash: aliases are not expanded then; builtins are called through
 *   `builtin`, so functions named like them do not get in the way;
 * - what may fail stands before || or && or in an if: neither `set -e` nor an ERR trap sees it;
 * - no expansion of a variable that may be unset (`set -u`), every expansion quoted or in an assignment (IFS, globs);
 * - stderr of the shell itself is /dev/null: that is where `set -x` and `set -v` show our lines. */
#include "services/session_script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define V    CP_SCRIPT_VAR
#define EVAL "\\builtin eval \"${" V "[1]}\""

enum { SCRATCH_PWD = 3, SCRATCH_OLDPWD, SCRATCH_MOVED, SCRATCH_ENV, SHALLOW = 256 };

static void quote_z(cp_buf *out, const char *z) { cp_buf_add_word(out, cp_str_of(z)); }

/* <op>'<dir>'/<name> */
static void redirect(cp_buf *out, const char *op, const char *dir, const char *name) {
    cp_buf_addz(out, op);
    quote_z(out, dir);
    cp_buf_addf(out, "/%s", name);
}

/* How a command is left: by a trap on a signal that programs do not use. `break` leaves all loops and, because the
 * command is evaluated in a loop of ours, the list; bash executes nothing while it is on its way out of a loop. A
 * function, or a file that is sourced, is left by `return`, which goes back to a list: the trap must run again before
 * the next command there, so it sends itself a signal first. WINCH, because bash lets no pending WINCH run inside the
 * trap of WINCH (any other would run before the `return`, in itself, forever), and one that is left by `return` stays
 * pending. A trap on RETURN would run in between, and meet the pending one.
 *
 * Before bash 5.2 a `return` in a trap leaves the shell believing that the trap still runs. There the shell stops
 * itself instead: it is replaced. */
#define IN_FUNCTION "if [[ ${FUNCNAME-} ]];then "
#define LEAVE_LOOPS "\\builtin break 999"
static const char unwind[] = IN_FUNCTION
    "\\builtin trap - RETURN;\\builtin kill -WINCH $$;\\builtin return;fi;\\builtin trap - WINCH;" LEAVE_LOOPS;
static const char give_up[] = IN_FUNCTION "\\builtin kill -STOP $$;fi;" LEAVE_LOOPS;

static void set_trap(cp_buf *out, const char *action, const char *sig) {
    cp_buf_addz(out, "\\builtin trap ");
    quote_z(out, action);
    cp_buf_addf(out, " %s", sig);
}

/* BASH_ARGV0 makes error messages begin with "bash:" whatever path was started. */
void cp_script_hello(cp_buf *out) {
    cp_autobuf cp_buf start = {0};
    cp_buf_addz(&start, IN_FUNCTION);
    set_trap(&start, unwind, "WINCH");
    cp_buf_addz(&start, ";\\builtin kill -WINCH $$;else " LEAVE_LOOPS ";fi");
    cp_buf_addz(out, "BASH_ARGV0=bash;if ((BASH_VERSINFO[0]*100+BASH_VERSINFO[1]>501));then ");
    set_trap(out, cp_buf_z(&start), CP_SCRIPT_INTERRUPT_NAME ";else ");
    set_trap(out, give_up, CP_SCRIPT_INTERRUPT_NAME ";fi\n");
}

/* ---- may a loop of ours stand around a command? ---- */

/* Only an estimate: words are taken where they stand, in quotes, comments and heredocs too. */
static const char SEPARATORS[] = " \t\n;&|(){}<>`\"'\\";

/* How many loops does a `break` leave whose operand begins at p? 0: not known. */
static uint64_t loops_left(const char *p) {
    uint64_t n = 0;
    p += strspn(p, " \t");
    size_t digits = strspn(p, "0123456789"), word = strcspn(p, SEPARATORS);
    if (word == 0 || *p == '#' || p[digits] == '<' || p[digits] == '>') return 1;
    return digits == word && cp_str_u64((cp_str){p, word}, UINT64_MAX, &n) ? n : 0;
}

bool cp_script_interruptible(const char *command) {
    if (!strstr(command, "break") && !strstr(command, "continue")) return true;
    uint64_t depth = 0;
    for (const char *p = command; *(p += strspn(p, SEPARATORS));) {
        cp_str word = {p, strcspn(p, SEPARATORS)};
        p += word.n;
        if (cp_str_is(word, "do")) depth++;
        else if (cp_str_is(word, "done")) depth -= depth > 0;
        else if (cp_str_is(word, "break") || cp_str_is(word, "continue")) {
            uint64_t n = loops_left(p);
            if (n == 0 || n > depth) return false;
        }
    }
    return true;
}

/* ---- records ---- */

/* && : when the record cannot be read (no descriptor is free), the former one must not run again. -n 3: what a longer
 * record left behind in the file is not read. */
void cp_script_lines(cp_buf *out, const char *dir) { cp_script_lines_of(out, dir, "c"); }

void cp_script_lines_of(cp_buf *out, const char *dir, const char *record) {
    cp_buf_addz(out, "\\builtin mapfile -n3 -td '' " V);
    redirect(out, " <", dir, record);
    cp_buf_addz(out, "&&\\builtin eval \"$" V "\"\n\\builtin eval \"${" V "[2]}\"\n");
}

static void report(cp_buf *out, const char *dir, uint64_t seq, const char *status) {
    cp_buf_addf(out, "\\builtin printf 'd%llu %%s\\n' %s", (unsigned long long)seq, status);
    redirect(out, " >", dir, "s");
    cp_buf_addc(out, '\n');
}

void cp_script_sync(cp_buf *out, const char *dir, uint64_t seq) { report(out, dir, seq, "0"); }

static cp_str env_name(const char *assignment) {
    const char *eq = strchr(assignment, '=');
    return (cp_str){assignment, eq ? (size_t)(eq - assignment) : strlen(assignment)};
}

static void export_one(cp_buf *out, const char *assignment) {
    cp_str name = env_name(assignment);
    const char *value = assignment[name.n] ? assignment + name.n + 1 : "";
    cp_buf_addz(out, "\\builtin export ");
    cp_buf_add(out, name.p, name.n);
    cp_buf_addc(out, '=');
    quote_z(out, value);
    cp_buf_addz(out, "||:\n");
}

/* For inside a subshell, where a list of commands is a tree for bash that is as deep as the list is long: from some
 * 20,000 on it ends by SIGSEGV. Lists of lists stay shallow. */
static void export_all(cp_buf *out, char *const *env) {
    for (int i = 0; env && env[i]; i++) {
        if (i % SHALLOW == 0) cp_buf_addz(out, i ? "}\n{\n" : "{\n");
        export_one(out, env[i]);
    }
    if (env && env[0]) cp_buf_addz(out, "}\n");
}

/* Remembers "x" + attributes (empty: unset) and the value of each variable, then exports the new one. */
static void env_enter(cp_buf *out, char *const *env) {
    for (int i = 0; env && env[i]; i++) {
        cp_str n = env_name(env[i]);
        int at = SCRATCH_ENV + 2 * i, len = (int)n.n;
        cp_buf_addf(out, V "[%d]=${%.*s+x${%.*s@a}};" V "[%d]=${%.*s-}\n", at, len, n.p, len, n.p, at + 1, len, n.p);
        export_one(out, env[i]);
    }
}

static void env_leave(cp_buf *out, char *const *env) {
    int count = 0;
    while (env && env[count]) count++;
    for (int i = count - 1; i >= 0; i--) { /* backwards: a name that is given twice gets its first value back */
        cp_str n = env_name(env[i]);
        int at = SCRATCH_ENV + 2 * i, len = (int)n.n;
        cp_buf_addf(out, "case ${" V "[%d]} in '')\\builtin unset -v %.*s||:;;", at, len, n.p);
        cp_buf_addf(out, "x*x*)%.*s=${" V "[%d]};;", len, n.p, at + 1);
        cp_buf_addf(out, "*)%.*s=${" V "[%d]};\\builtin export -n %.*s||:;;esac\n", len, n.p, at + 1, len, n.p);
    }
}

/* $? as the former command left it. A function is the only way to set it without a fork; it removes itself. */
static void set_status(cp_buf *out, int status) {
    if (status) cp_buf_addf(out, V "(){ \\builtin unset -f " V ";\\builtin return %d;};" V "&&:\n", status & 255);
}

static void cd_to(cp_buf *out, const char *cwd) {
    cp_buf_addz(out, "\\builtin cd -- ");
    cp_autobuf cp_buf path = {0};
    if (cwd[0] != '/') cp_buf_addz(&path, "./"); /* or CDPATH would be searched */
    cp_buf_addz(&path, cwd);
    cp_buf_add_word(out, cp_buf_str(&path));
    cp_buf_addz(out, " >/dev/null 2>&1");
}

static void cd_failed(cp_buf *out, const char *cwd) {
    cp_autobuf cp_buf text = {0};
    cp_buf_addf(&text, "Failed to change directory to '%s'", cwd);
    cp_buf_addz(out, "\\builtin printf '%s\\n' ");
    cp_buf_add_word(out, cp_buf_str(&text));
}

/* Each name stands four times in what goes before the command, and four times in each of the two ends that a command
 * with a folder of its own has. A value stands once, and a quote in it becomes four bytes. */
static size_t env_room(char *const *env) {
    enum { NAMES = 12, AROUND = 512 };
    size_t n = 0;
    for (; env && *env; env++) {
        n += NAMES * env_name(*env).n + AROUND;
        for (const char *p = *env; *p; p++) n += *p == '\'' ? 4 : 1;
    }
    return n;
}

/* At least as much as any record of s takes. What is not the client's own text is small: paths, and our lines. */
static size_t record_room(const cp_script *s) {
    enum { FOLDERS = 32, LINES = 8192 };
    size_t cwd = s->cwd ? strlen(s->cwd) : 0;
    return strlen(s->command) + env_room(s->env) + FOLDERS * (strlen(s->dir) + cwd) + LINES;
}

static void fifo_name(char name[32], char kind, unsigned pair) { snprintf(name, 32, "%c%u", kind, pair); }

/* stderr first: when a later redirection fails the client reads why. <>: with a read end of their own the shell and the
 * command meet no SIGPIPE when a server dies and its read ends with it; they wait for the next one. */
static void redirect_output(cp_buf *out, const cp_script *s) {
    char name[32];
    fifo_name(name, 'e', s->pair);
    redirect(out, " 2<>", s->dir, name);
    fifo_name(name, 'o', s->pair);
    redirect(out, " 1<>", s->dir, name);
}

static void redirect_all(cp_buf *out, const cp_script *s) {
    redirect_output(out, s);
    if (s->in) redirect(out, " <", s->dir, s->in);
    else cp_buf_addz(out, " </dev/null");
}

static void evaluate(cp_buf *out, const cp_script *s) {
    if (s->interruptible) cp_buf_addz(out, "for " V " in '';do ");
    if (s->in) {
        cp_buf_addf(out, "{ \\builtin printf 'i%llu\\n'", (unsigned long long)s->seq);
        redirect(out, " >", s->dir, "s");
        cp_buf_addc(out, '\n');
    }
    set_status(out, s->last_status);
    cp_buf_addz(out, EVAL);
    if (s->in) cp_buf_addz(out, "\n}");
    redirect_all(out, s);
    cp_buf_addz(out, s->interruptible ? "\ndone\n" : "\n");
}

static void finish_report(cp_buf *out, const cp_script *s, const char *status) {
    report(out, s->dir, s->seq, status);
    if (s->cwd)
        cp_buf_addf(out,
                    "if [[ ${" V "[%d]} ]];then \\builtin cd -- \"${" V "[%d]}\" >/dev/null 2>&1||:;OLDPWD=${" V
                    "[%d]};fi\n",
                    SCRATCH_MOVED, SCRATCH_PWD, SCRATCH_OLDPWD);
    env_leave(out, s->env);
}

static bool evaluate_in_cwd(cp_buf *out, const cp_script *s) {
    char name[32];
    cp_autobuf cp_buf failed = {0};
    if (!cp_buf_try_reserve(&failed, record_room(s))) return false;
    cp_buf_addf(out, V "[%d]=${PWD-};" V "[%d]=${OLDPWD-};" V "[%d]=\nif ", SCRATCH_PWD, SCRATCH_OLDPWD, SCRATCH_MOVED);
    cd_to(out, s->cwd);
    cp_buf_addf(out, ";then\n" V "[%d]=1\n", SCRATCH_MOVED);
    evaluate(out, s);
    cp_buf_addz(out, "else\n");
    cd_failed(out, s->cwd);
    fifo_name(name, 'e', s->pair);
    redirect(out, " 1<>", s->dir, name);
    finish_report(&failed, s, "1");
    cp_buf_addz(out, "\n" V "[2]=");
    cp_buf_add_word(out, cp_buf_str(&failed));
    cp_buf_addz(out, "\nfi\n");
    return true;
}

static void end_element(cp_buf *out) { cp_buf_addc(out, '\0'); }

static void add_tail(cp_buf *out, const cp_script *s) {
    end_element(out);
    cp_buf_addz(out, s->command);
    end_element(out);
    finish_report(out, s, "\"$?\"");
    end_element(out);
}

/* NUL ends a dump and begins the next: half a dump is never taken for a whole one. */
void cp_script_exports(cp_buf *out, const char *dir) {
    cp_buf_addz(out, "{ \\builtin printf '\\0';\\builtin export -p;\\builtin printf '\\0'; }");
    redirect(out, " 1<>", dir, "x"); /* or the shell itself would die of SIGPIPE when its server does */
    cp_buf_addz(out, "||:\n");
}

static void mark(cp_buf *out, uint64_t seq) {
    cp_buf_addf(out, "\\builtin ulimit -Sx %llu||:\n", (unsigned long long)seq);
}

/* The shell keeps the number until the next command: what a trap starts in between is this one's. */
bool cp_script_foreground(cp_buf *out, const cp_script *s) {
    if (!cp_buf_try_reserve(out, record_room(s))) return false;
    if (s->marked) mark(out, s->seq);
    if (s->dump) cp_script_exports(out, s->dir);
    env_enter(out, s->env);
    if (!s->cwd) evaluate(out, s);
    else if (!evaluate_in_cwd(out, s)) return false;
    add_tail(out, s);
    return true;
}

bool cp_script_silent(cp_buf *out, const cp_script *s) {
    if (!cp_buf_try_reserve(out, record_room(s))) return false;
    cp_buf_addz(out, EVAL " </dev/null >/dev/null 2>&1");
    cp_script plain = *s;
    plain.cwd = NULL;
    plain.env = NULL;
    add_tail(out, &plain);
    return true;
}

/* ( ( … ) & ): the outer subshell ends at once, so the inner one is the keeper's to reap; and the shell itself has no
 * job of ours in its table: `wait`, `jobs` and $! are the client's. The shell gives up the number of the former command
 * first: until they have their own, the subshells would be killed with that. They get it in the outer one, whose stderr
 * is still /dev/null: `set -x` shows no line of it. */
bool cp_script_background(cp_buf *out, const cp_script *s) {
    char name[32];
    if (!cp_buf_try_reserve(out, record_room(s))) return false;
    if (s->marked) cp_buf_addz(out, "\\builtin ulimit -Sx hard||:\n");
    cp_buf_addz(out, "( ");
    if (s->marked) mark(out, s->seq);
    cp_buf_addz(out, "(\n");
    export_all(out, s->env);
    /* The FIFO is open before the report: the go-ahead has a place to wait. A server that is gone gives none. -t: or
     * the client's TMOUT would count. */
    cp_buf_addf(out, "{ \\builtin printf 'p%llu %%s\\n' \"${BASHPID-}\"", (unsigned long long)s->seq);
    redirect(out, " >", s->dir, "s");
    cp_buf_addz(out,
                "\n\\builtin read -rt 3600 " V "||{ \\builtin kill -RTMAX-8 \"${BASHPID-}\";\\builtin exit 125;}\n}");
    fifo_name(name, 'g', s->pair);
    redirect(out, " <", s->dir, name);
    cp_buf_addz(out, "||\\builtin exit 125\n"); /* it is not there: nobody will ever say so */
    if (s->cwd) {
        cd_to(out, s->cwd);
        cp_buf_addz(out, "||{\n");
        cd_failed(out, s->cwd);
        cp_buf_addz(out, " >&2\n\\builtin exit 1\n}\n");
    }
    set_status(out, s->last_status);
    cp_buf_addz(out, EVAL "\n)");
    redirect_all(out, s);
    cp_buf_addz(out, " & )\n");
    cp_script plain = *s;
    plain.cwd = NULL;
    plain.env = NULL;
    add_tail(out, &plain);
    return true;
}

bool cp_report_parse(cp_str line, cp_report *out) {
    if (line.n < 2 || !line.p[0] || !strchr("idp", line.p[0])) return false;
    *out = (cp_report){.kind = line.p[0]};
    const char *space = memchr(line.p, ' ', line.n);
    cp_str seq = {line.p + 1, (space ? (size_t)(space - line.p) : line.n) - 1};
    if (!cp_str_u64(seq, UINT64_MAX, &out->seq)) return false;
    if (out->kind == 'i') return !space;
    if (!space) return false;
    cp_str value = {space + 1, line.n - seq.n - 2};
    return cp_str_u64(value, INT32_MAX, &out->value);
}

void cp_script_exports_feed(cp_script_dump *d, cp_buf *whole, size_t max, cp_str bytes) {
    while (bytes.n) {
        const char *nul = memchr(bytes.p, '\0', bytes.n);
        size_t len = nul ? (size_t)(nul - bytes.p) : bytes.n, taken = len + (nul != NULL);
        d->too_long |= len > max - d->text.n || !cp_buf_try_reserve(&d->text, len);
        if (d->too_long) cp_buf_free(&d->text);
        else cp_buf_add(&d->text, bytes.p, len);
        bytes.p += taken;
        bytes.n -= taken;
        if (!nul) continue;
        d->too_long = false;
        if (!d->text.n) continue;
        cp_buf_free(whole);
        *whole = cp_take(d->text);
    }
}

bool cp_script_trapped(const char *status) {
    const char *caught = strstr(status, "\nSigCgt:");
    return !caught || strtoull(caught + 8, NULL, 16) & (uint64_t)1 << (CP_SCRIPT_INTERRUPT - 1);
}
