#pragma once
/* A request head as it lies in a client's buffer, before CivetWeb sees it. Pure; any thread.
 *
 * CivetWeb is given one well-formed head at a time and nothing else. So this finds where the head ends, refuses what a
 * proxy in front might read differently (RFC 9112 sections 2.2, 3, 5 and 11.2), and sets the lines aside that say how
 * the connection and the body are framed: these are ours to judge, and CivetWeb never gets them. */
#include <sys/uio.h>

#include "handlers/request.h"

enum {
    CP_HEAD_MAX = 16 * 1024 - 64, /* bytes; CivetWeb's buffer holds 16 KB */
    CP_HEAD_LINES = 63,           /* header lines: CivetWeb drops those after its array of 64 */
    CP_HEAD_OWN = 8,              /* lines set aside; more of these names are malformed in any case */
};

typedef struct cp_head {
    size_t scanned; /* bytes looked at so far, while it is not whole */
    size_t begin;   /* of the request line: empty lines before it are skipped */
    size_t end;     /* behind the empty line; 0 while it is not whole */
    cp_str method, target, query;
    cp_str fed_method;        /* what CivetWeb is told: it would refuse a method that it does not know, before we can */
    bool http11, origin_form; /* origin_form: the target is a path as it stands */
    size_t nlines;            /* header lines, without those set aside */
    size_t nown;
    cp_header own[CP_HEAD_OWN]; /* Connection, Content-Length, Transfer-Encoding, Upgrade */
    cp_str cut[CP_HEAD_OWN];    /* the same as whole lines, in order */
} cp_head;

/* p[0..n) is all that has come since the last request ended. 1: whole, *h says what it is; all strings borrow from p.
 * 0: more is needed (call again with the same *h and at least as many bytes). -1 with err (INVALID_REQUEST,
 * HEADERS_TOO_LARGE): to be answered, then the connection is closed. Start with *h zeroed. */
int cp_head_scan(cp_head *h, const char *p, size_t n, cp_err *err);

enum { CP_HEAD_PIECES = CP_HEAD_OWN + 5 };
/* The head as CivetWeb is to have it, as pieces of p: the lines set aside are left out, an absolute target is its path,
 * "*" is "/", the version is 1.1, a method that is not ours is GET. Returns the number of pieces. */
int cp_head_pieces(const cp_head *h, const char *p, struct iovec out[CP_HEAD_PIECES]);
