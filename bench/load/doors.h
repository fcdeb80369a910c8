#pragma once
#include "load/engine.h"

extern const door door_ws, door_ws_close, door_http, door_http_close, door_echo, door_mux;
