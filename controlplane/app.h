#pragma once
/* The server: opens the layers bottom-up, runs the loop, closes them top-down. */
#include "base/err.h"

/* Serves until the keeper says drain or hand over; returns the exit status of the process. keeper_fd is taken. */
int cp_app_run(int keeper_fd);
