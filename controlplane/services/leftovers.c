#include "services/leftovers.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/spool.h"
#include "services/files.h"

struct cp_leftovers {
    cp_services *svc;
    cp_temps *temps;
    cp_work work;
    bool working, closed;
};

static void sweep_run(cp_work *w) {
    cp_temps_swept t;
    cp_temps_sweep(CP_CONTAINER(w, cp_leftovers, work)->svc->state_dir, &t);
    unsigned spilled = cp_spool_sweep();
    if (t.removed || t.failed || spilled)
        cp_log(CP_LOG_INFO, "leftovers.swept", "temporary files of a server that was killed were removed",
               CP_KVI("removed", t.removed + spilled), CP_KVI("failed", t.failed));
}

static void sweep_done(cp_work *w) {
    cp_leftovers *l = CP_CONTAINER(w, cp_leftovers, work);
    l->working = false;
    if (l->closed) free(l);
}

cp_leftovers *cp_leftovers_open(cp_services *s) {
    cp_leftovers *l = cp_new(cp_leftovers);
    l->svc = s;
    l->temps = cp_temps_new(s->state_dir);
    cp_files_record(s->files, l->temps);
    l->working = true;
    cp_workers_submit_to(s->workers, CP_LANE_FILES, CP_OWNER_UPKEEP, &l->work, sweep_run, sweep_done);
    return l;
}

void cp_leftovers_close(cp_leftovers *l) {
    if (!l) return;
    cp_files_record(l->svc->files, NULL);
    cp_temps_free(l->temps);
    l->closed = true;
    if (!l->working) free(l);
}
