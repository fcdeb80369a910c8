#pragma once
/* The limit of open files. A server that cannot accept leaves its clients without a word, for as long as whatever has
 * the descriptors keeps them. So some are never given away: connections and children are refused while there is still
 * one left for the next client to be told so. */
#include "base/err.h"
#include "schema/config.h"

/* What asks for descriptors that it keeps for long. A connection may take what a start may not: somebody must be able
 * to end what there is. */
typedef enum { CP_NOFILE_CONNECTION, CP_NOFILE_START } cp_nofile_for;

/* Under a low limit there are fewer workers and warm shells. Fails when it is too low to serve at all; the message says
 * how high it must be. */
int cp_nofile_fit(cp_config *c, cp_err *err);
/* LIMIT_EXCEEDED when there is no room. Any thread; blocks on /proc at most. */
int cp_nofile_room(cp_nofile_for what, cp_err *err);
