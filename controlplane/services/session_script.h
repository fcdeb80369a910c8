#pragma once
/* The text that a session's shell is given: pure functions, bytes in, bytes out.
 *
 * The shell is `bash` reading its program from a pipe. Two short lines are typed per command and never change: the
 * first loads the record file (mapfile reads a seekable file in blocks) and evaluates its first element, the second
 * reports. What the client sent is only ever the value of an element, so no quote, heredoc or comment in it can swallow
 * a line of ours; and since both lines stand at the top level, `break`, `return` and an aborted evaluation cannot skip
 * the report.
 *
 * A command is evaluated inside a loop of one round, which an interrupt leaves: of a list that is interrupted no
 * further command runs. A command whose own `break` or `continue` stands outside of any loop, an error that bash
 * reports before it goes on, is evaluated without; its shell has to be replaced. */
#include <signal.h>

#include "base/buf.h"

/* The one name that a session's shell has from us. An array: driver, command, report, then scratch. */
#define CP_SCRIPT_VAR "__conflux"
/* How a subshell ends whose go-ahead does not come: its server died before. No exit code could be told from one of a
 * command that has run. */
#define CP_SCRIPT_UNBEGUN (SIGRTMAX - 8)
/* Makes the shell leave the command that it evaluates, loops and functions included, as soon as what it waits for has
 * ended. */
#define CP_SCRIPT_INTERRUPT      (SIGRTMAX - 7)
#define CP_SCRIPT_INTERRUPT_NAME "RTMAX-7"

typedef struct cp_script {
    const char *dir; /* the session's private folder */
    uint64_t seq;    /* names this command in reports */
    const char *command;
    const char *cwd;    /* NULL: where the shell is */
    char *const *env;   /* "NAME=value", NULL-terminated, or NULL */
    const char *in;     /* name of the stdin FIFO in dir; NULL: /dev/null */
    unsigned pair;      /* output goes to the FIFOs o<pair> and e<pair> */
    int last_status;    /* $? as the command is to find it */
    bool interruptible; /* cp_script_interruptible(command), for a command in the shell itself */
    bool marked;        /* its processes are told by seq, in the soft limit of file locks (base/mark.h) */
    bool dump;          /* write the exported variables to the FIFO x first */
} cp_script;

/* Does an interrupt end this command? False: it may go on with the rest. Errs on the side of false for what is not in a
 * loop by the order of its words; a `break` that only shows when it runs (an alias, a file, eval of a variable) is not
 * seen, and ends the command when it is in no loop. */
bool cp_script_interruptible(const char *command);
/* The first line of a new shell. */
void cp_script_hello(cp_buf *out);
/* The two typed lines. */
void cp_script_lines(cp_buf *out, const char *dir);
void cp_script_lines_of(cp_buf *out, const char *dir, const char *record); /* the record is dir/record, not dir/c */
/* A line that only reports, as if command `seq` had ended with 0: answered when all before it is done. */
void cp_script_sync(cp_buf *out, const char *dir, uint64_t seq);
/* A line that writes the exported variables, as commands that set them, to the FIFO x: NUL, text, NUL. */
void cp_script_exports(cp_buf *out, const char *dir);
typedef struct cp_script_dump {
    cp_buf text; /* of the dump that has begun */
    bool too_long;
} cp_script_dump;
/* Takes what came out of that FIFO. A dump that is complete replaces *whole. One of more than max bytes, or for which
 * there is no memory, is let go as a whole, and *whole stays: what has lost a part would be other commands. */
void cp_script_exports_feed(cp_script_dump *d, cp_buf *whole, size_t max, cp_str bytes);
/* Records. False: there is no memory for one, and what is in out is to be thrown away.
 *
 * The record of a command run in the shell itself. Reports: "i<seq>" when stdin is open (only with `in`), then
 * "d<seq> <status>". */
bool cp_script_foreground(cp_buf *out, const cp_script *s);
/* The record of a command run in a subshell whose parent ends at once. Reports "p<seq> <pid>" from the subshell, which
 * then waits for a line on the FIFO g<pair>; and "d<seq> <status>" from the shell, in either order. */
bool cp_script_background(cp_buf *out, const cp_script *s);
/* The record that evaluates `command` silently: used to give a new shell the variables of the former. */
bool cp_script_silent(cp_buf *out, const cp_script *s);

typedef struct cp_report {
    char kind; /* 'i' 'd' 'p' */
    uint64_t seq, value;
} cp_report;
/* One line without its newline. False: not a report (any process of the session may write there). */
bool cp_report_parse(cp_str line, cp_report *out);
/* Does a process with this /proc/pid/status catch our interrupt? Where it does not say so: yes. */
bool cp_script_trapped(const char *status);
