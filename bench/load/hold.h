#pragma once
int hold(void);
